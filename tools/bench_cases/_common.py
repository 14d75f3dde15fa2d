"""What the Python cases of tools/bench share: their command line, made-up tokens, runs of holdfast and their events."""
import argparse
import concurrent.futures
import json
import math
import os
import random
import resource
import statistics
import struct
import subprocess
import sys
import time
from array import array
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
HOLDFAST = os.environ.get("HOLDFAST", str(ROOT / "build/release/bin/holdfast"))
MPIRUN = str(ROOT / "tools/mpirun")


def parser(description):
    result = argparse.ArgumentParser(description=description)
    result.add_argument("--json", type=Path, help="write every figure to this file")
    return result


def positive(text):
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {value}")
    return value


def write_json(path, case, result):
    if path is None:
        return
    processor = next((line.split(":", 1)[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines()
                      if line.startswith("model name")), "unknown")
    document = {"case": case, "arguments": sys.argv[1:], "time_us": int(time.time() * 1e6),
                "machine": {"host": os.uname().nodename, "processor": processor,
                            "processors": len(os.sched_getaffinity(0))},
                "result": result}
    path.write_text(json.dumps(document, indent=1) + "\n")


def write_tokens(path, count, vocabulary):
    """An llm.c shard of random tokens (runtime/data/source.h has the format)."""
    narrow = vocabulary <= 65536
    header = [0] * 256
    header[:3] = [20240520, 1, count] if narrow else [20240801, 7, count]
    generator = random.Random(0)
    tokens = array("H" if narrow else "I", (generator.randrange(vocabulary) for _ in range(count)))
    path.write_bytes(struct.pack("<256i", *header) + tokens.tobytes())


SAVE_NOTHING = "every_steps = 0\nram_every_steps = 0\n"


def write_config(path, run_directory, tokens, preset, checkpoint=SAVE_NOTHING, **training):
    """Writes the config of a run that saves nothing before its end, unless `checkpoint` (lines of that table) says otherwise."""
    lines = [f'[run]\ndirectory = "{run_directory}"', f'[model]\npreset = "{preset}"',
             f'[data]\nsources = [{{ path = "{tokens}", format = "llmc" }}]', "[training]"]
    lines += [f"{key} = {json.dumps(value)}" for key, value in training.items()]
    path.write_text("\n".join([*lines, "[checkpoint]", checkpoint]))


SMALL_MODEL = """\
[model]
style = "llama"
layers = 2
heads = 4
width = 64
vocabulary = 256
"""
PRESET_MODEL = '[model]\npreset = "llama-15m"\n'


def write_case(folder, case, steps, threads, ranks):
    """The config of one of the models that the costs of a run are measured with ("small", "llama-15m", "gpt2-124m"), on made-up
    tokens, with nothing saved or evaluated before the end."""
    model, vocabulary, length, batch = {"small": (SMALL_MODEL, 256, 64, 4), "llama-15m": (PRESET_MODEL, 32_000, 256, 2),
                                        "gpt2-124m": (PRESET_MODEL.replace("llama-15m", "gpt2-124m"), 50_257, 256, 2)}[case]
    tokens = folder / f"{case}.bin"
    write_tokens(tokens, 400_000, vocabulary)
    config = folder / f"{case}.toml"
    write_config(config, "unset", tokens, "llama-15m", steps=steps, sequence_length=length, microbatch_size=batch)
    text = config.read_text().replace(PRESET_MODEL, model)
    config.write_text(f"threads = {threads}\n{text}[parallel]\nlanes = {ranks}\n[evaluation]\nevery_steps = 0\n")
    return config


def cost_parser(description, cases, ranks, rounds):
    """Of a case that measures what something costs a run of write_case()."""
    result = parser(description)
    result.add_argument("--case", choices=cases, action="append", help="default: all")
    result.add_argument("--ranks", type=positive, default=ranks, help="of each run")
    result.add_argument("--threads", type=positive, default=1)
    result.add_argument("--steps", type=positive, help="of a run (default: by case)")
    result.add_argument("--rounds", type=positive, default=rounds)
    result.add_argument("--override", action="append", default=[], metavar="--KEY=VALUE")
    return result


def side_by_side(train, first, second):
    """Two runs at the same time, each on half of the processors, so that what else goes on in the machine slows both; then again with
    the halves changed over, so that it does not count which are the faster ones. train(side, processors) gives (ms of a step,
    losses). What the second costs beside the first, in percent, and the ms of both."""
    processors = sorted(os.sched_getaffinity(0))
    half = len(processors) // 2
    if half == 0:
        fail("two runs beside each other need two processors")
    halves = (processors[:half], processors[half:2 * half])
    turns = []
    for places in (halves, halves[::-1]):
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            both = list(pool.map(train, (first, second), places))
        if both[0][1] != both[1][1]:
            fail("two runs that should differ in time alone differ in a loss")
        turns.append([step_ms for step_ms, _ in both])
    quotients = [second_ms / first_ms for first_ms, second_ms in turns]
    return {"cost_percent": 100 * (math.sqrt(math.prod(quotients)) - 1), "step_ms": turns}


def on_processors(processors, ranks, *words):
    launcher = [MPIRUN, "-np", str(ranks)] if ranks > 1 else []
    return ["taskset", "--cpu-list", ",".join(map(str, processors)), *launcher, HOLDFAST, *map(str, words)]


def cost_row(name, rounds):
    """Of rounds with "cost" and "noise", each of side_by_side(): (| columns |, figures)."""
    costs, noise = ([each[key]["cost_percent"] for each in rounds] for key in ("cost", "noise"))
    step_ms = [statistics.median(turn[side] for each in rounds for turn in each["cost"]["step_ms"]) for side in (0, 1)]
    row = (f"| {name} | {step_ms[0]:.2f} | {step_ms[1]:.2f} | {statistics.median(costs):+.2f} % ({min(costs):+.2f} to {max(costs):+.2f}) | "
           f"{statistics.median(noise):+.2f} % ({min(noise):+.2f} to {max(noise):+.2f}) |")
    return row, {"rounds": rounds, "cost_percent": statistics.median(costs), "noise_percent": statistics.median(noise)}


def events(run_directory):
    """The events of a run so far, without a line that is still being written."""
    path = Path(run_directory) / "events.jsonl"
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def fail(sentence):
    print(f"bench: {sentence}", file=sys.stderr)
    sys.exit(1)


def train_and_time(command, run, warmup_steps):
    """(median milliseconds of a step after the first ones, losses of all steps, processor seconds of all ranks' whole run)"""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    outcome = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if outcome.returncode != 0:
        fail(f"{' '.join(command)} ended with exit code {outcome.returncode}: {outcome.stdout}")
    steps = [event for event in events(run) if event["event"] == "step"]
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    processor_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    step_ms = statistics.median(step["step_duration_ms"] for step in steps[warmup_steps:])
    return step_ms, [step["loss"] for step in steps], processor_s
