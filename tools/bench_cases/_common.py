"""What the Python cases of tools/bench share: their command line, made-up tokens, runs of holdfast and their events."""
import argparse
import json
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


def write_config(path, run_directory, tokens, preset, **training):
    lines = [f'[run]\ndirectory = "{run_directory}"', f'[model]\npreset = "{preset}"',
             f'[data]\nsources = [{{ path = "{tokens}", format = "llmc" }}]', "[training]"]
    lines += [f"{key} = {json.dumps(value)}" for key, value in training.items()]
    path.write_text("\n".join(lines) + "\n")


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
