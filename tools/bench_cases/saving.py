#!/usr/bin/env python3
"""bench saving: what it costs to save while training continues, and how soon a state is durable.

In every round the same run trains once without saving and once with a save every few steps, one after the other. Compared is
the time from one step that is followed by a save to another such step: with saving there are `--saves` whole saves in it, their
stalls and everything that happens beside the steps. Per save: `stall` is how long the training loop waited for it, `durable`
when it was visible with all its bytes synced, from its beginning. On a machine whose speed changes from run to run a nearer
comparison is printed, too: the steps beside which a save runs against those around them in the same run. Of ours also: how long the copy, the drain and publishing took, and what
the thread of these two had of a processor. With --peer, PyTorch trains the same model and saves it by
torch.distributed.checkpoint.async_save into the same file system, in the same rounds (tools/bench_peers/torch_saving.py).
"""
import dataclasses
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from _common import HOLDFAST, events, fail, parser, positive, write_config, write_json, write_tokens

PEERS = Path(__file__).resolve().parent.parent / "bench_peers"
sys.path.insert(0, str(PEERS))
sys.dont_write_bytecode = True
from cases import CASES  # noqa: E402

PARTS = ("copy_ms", "drain_ms", "publish_ms", "processor_ms")
USUAL_DURABLE_MS = 1000  # of a save that a run without them might have had
BY_NAME = {case.name: case for case in CASES if case.preset}


def window_of(step_times_us, options):
    """Milliseconds of a step, between the first step before a save and the last one."""
    first, last = options.every, options.every * (1 + options.saves)
    return (step_times_us[last] - step_times_us[first]) / 1000 / (last - first)


def costs_within(step_times_us, options, durable_ms):
    """Of each save, in percent of the steps from one save to the next: what the steps that a save runs beside take longer than
    the median of those around them. Of a run without saves too, where nothing should come out."""
    costs = []
    for save in range(options.every, options.every * (1 + options.saves), options.every):
        took_us = {step: step_times_us[step] - step_times_us[step - 1] for step in range(save - options.every // 2 + 1, save + options.every)
                   if step > 1}
        beside = [step for step in took_us if step > save and step_times_us[step - 1] < step_times_us[save] + durable_ms * 1000]
        others = [took for step, took in took_us.items() if step not in beside]
        if not others:
            fail(f"saves every {options.every} steps leave no step without one to compare with; expected a larger --every")
        usual_us = median(others)
        costs.append(100 * sum(took_us[step] - usual_us for step in beside) / (options.every * usual_us))
    return costs


def train(folder, config, options, saving):
    run = folder / "run"
    every = options.every if saving else 0
    steps = options.every * (1 + options.saves)
    command = [HOLDFAST, "train", str(config), f"--run.directory={run}", f"--training.steps={steps}",
               f"--checkpoint.every_steps={every}", *options.override]
    outcome = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if outcome.returncode != 0:
        fail(f"{' '.join(command)} ended with exit code {outcome.returncode}: {outcome.stdout}")
    lines = events(run)
    shutil.rmtree(run)
    step_times_us = {line["step"]: line["time_us"] for line in lines if line["event"] == "step"}
    saves = [line for line in lines if line["event"] == "checkpoint" and line["step"] < steps]
    if len(saves) != (options.saves if saving else 0):
        fail(f"{len(saves)} saves while training went on, expected {options.saves if saving else 0}: {outcome.stdout}")
    durable_ms = max((save["durable_ms"] for save in saves), default=USUAL_DURABLE_MS)
    result = {"step_ms": window_of(step_times_us, options), "costs_within": costs_within(step_times_us, options, durable_ms)}
    if saving:
        result["stall_ms"] = [save["stall_ms"] for save in saves]
        result["durable_ms"] = [save["durable_ms"] for save in saves]
        for part in PARTS:
            result[part] = [save[part] for save in saves]
        result["bytes"] = max(save["bytes"] for save in saves)
    return result


def train_peer(folder, case, options, saving):
    arguments = {"shape": dataclasses.asdict(case.shape), "batch": case.batch, "length": case.length,
                 "precision": options.precision, "threads": options.threads, "every": options.every, "saves": options.saves,
                 "saving": saving, "folder": str(folder / "peer")}
    command = [options.peer, str(PEERS / "torch_saving.py"), json.dumps(arguments)]
    outcome = subprocess.run(command, capture_output=True, text=True, check=False)
    if outcome.returncode != 0:
        fail(f"{' '.join(command)} ended with exit code {outcome.returncode}: {outcome.stderr}")
    shutil.rmtree(folder / "peer", ignore_errors=True)
    return json.loads(outcome.stdout.splitlines()[-1])


def summarise(name, rounds):
    """rounds: [(without, with)]"""
    costs = [100 * (saving["step_ms"] / plain["step_ms"] - 1) for plain, saving in rounds]
    stalls, durables = ([value for _, saving in rounds for value in saving[key]] for key in ("stall_ms", "durable_ms"))
    megabytes = rounds[0][1]["bytes"] / 1e6
    print(f"| {name} | {median(plain['step_ms'] for plain, _ in rounds):.0f} | "
          f"{median(saving['step_ms'] for _, saving in rounds):.0f} | "
          f"{median(costs):+.1f} % ({min(costs):+.1f} to {max(costs):+.1f}) | "
          f"{median(stalls):.0f} ({min(stalls):.0f} to {max(stalls):.0f}) | "
          f"{median(durables):.0f} ({min(durables):.0f} to {max(durables):.0f}) | {megabytes:.0f} |")
    return {"rounds": rounds, "cost_percent": median(costs), "stall_ms": median(stalls), "durable_ms": median(durables)}


def parse_arguments():
    arguments = parser(__doc__)
    arguments.add_argument("--case", choices=BY_NAME, default="gpt2-124m-b1-t1024")
    arguments.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    arguments.add_argument("--every", type=positive, default=10, help="steps between saves")
    arguments.add_argument("--saves", type=positive, default=2, help="that are counted in a run")
    arguments.add_argument("--rounds", type=positive, default=3)
    arguments.add_argument("--threads", type=positive, default=2)
    arguments.add_argument("--folder", type=Path, help="on the disk to save to (default: that of temporary files)")
    arguments.add_argument("--override", action="append", default=[], metavar="--KEY=VALUE", help="for our runs")
    arguments.add_argument("--peer", metavar="PYTHON", help="also PyTorch, by this Python, which has torch")
    return arguments.parse_args()


def main():
    options = parse_arguments()
    case = BY_NAME[options.case]
    sides = {"holdfast": lambda folder, saving: train(folder, folder / "run.toml", options, saving)}
    if options.peer:
        sides["torch.distributed.checkpoint"] = lambda folder, saving: train_peer(folder, case, options, saving)
    rounds = {name: [] for name in sides}
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-", dir=options.folder) as name:
        folder = Path(name)
        write_tokens(folder / "tokens.bin", 400_000, case.shape.vocabulary)
        write_config(folder / "run.toml", "unset", folder / "tokens.bin", case.preset, steps=1, sequence_length=case.length,
                     microbatch_size=case.batch, precision=options.precision)
        text = (folder / "run.toml").read_text()
        (folder / "run.toml").write_text(f"threads = {options.threads}\n{text}[parallel]\nlanes = 1\n[evaluation]\nevery_steps = 0\n")
        for _ in range(options.rounds):
            for name, run in sides.items():
                rounds[name].append((run(folder, False), run(folder, True)))
    print(f"{case.name}, {options.precision}, {options.threads} threads, a save every {options.every} steps, {options.rounds} rounds "
          f"of {options.saves} saves")
    print("| program | ms/step without | with saving | cost of saving (range of the rounds) | stall ms of a save | durable after ms "
          "| MB |")
    print("|---|---|---|---|---|---|---|")
    figures = {name: summarise(name, measured) for name, measured in rounds.items()}
    for index, title in enumerate(("where nothing is saved", "of a save")):
        values = [value for each in rounds["holdfast"] for value in each[index]["costs_within"]]
        print(f"steps beside the others of their own run, {title}: median {median(values):+.2f} % ({min(values):+.2f} to {max(values):+.2f})")
    for part in PARTS:
        values = [value for _, saving in rounds["holdfast"] for value in saving[part]]
        print(f"{part.removesuffix('_ms')} {median(values):.0f} ms ({min(values):.0f} to {max(values):.0f})")
    if options.peer:
        ours, its = figures.values()
        print(f"{its['stall_ms'] / max(ours['stall_ms'], 0.001):.1f} times less stall, durable "
              f"{its['durable_ms'] / ours['durable_ms']:.2f} times as fast")
    write_json(options.json, "saving", figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
