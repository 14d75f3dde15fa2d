#!/usr/bin/env python3
"""bench snapshots: what RAM snapshots cost a run of several ranks, and what their replicas add, at every step and now and then.

In every round the same run trains three times: without RAM snapshots, with them (checkpoint.replicas = off), and with a replica of
each in another rank (on), each time in another order. Compared is the time from one step that is followed by a snapshot to
another such step, so that whole snapshots and everything behind the steps are in it; the cost is the median of the rounds'
quotients. Beside it stands how far the runs without any are apart, below which no cost can be told. Of replicas also: how many of the
snapshots that were due were confirmed (the next one is left out while one is still sent), how many bytes a rank sent for one, and how
long it took from its begin until all ranks knew.

The losses of all runs of a round must be the same.
"""
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from _common import HOLDFAST, MPIRUN, cost_parser, events, fail, positive, write_case, write_json

CASES = {"small": 400, "llama-15m": 40}  # steps of a round
SIDES = {"none": ["--checkpoint.ram_every_steps=0"], "ram": ["--checkpoint.replicas=off"], "replicas": ["--checkpoint.replicas=on"]}


def train(folder, config, every, steps, side, options):
    """Counted from the second snapshot on, because the first ones of a process meet cold memory."""
    run = folder / "run"
    launcher = [MPIRUN, "-np", str(options.ranks)] if options.ranks > 1 else []
    command = [*launcher, HOLDFAST, "train", str(config), f"--run.directory={run}", f"--training.steps={steps + 1}",
               f"--checkpoint.ram_every_steps={every}", *SIDES[side], *options.override]
    outcome = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if outcome.returncode != 0:
        fail(f"{' '.join(command)} ended with exit code {outcome.returncode}: {outcome.stdout}")
    if "no RAM snapshots" in outcome.stdout or "no replicas" in outcome.stdout:
        fail(f"{' '.join(command)} did without: {outcome.stdout}")
    lines = events(run)
    shutil.rmtree(run)
    end_us = {line["step"]: line["time_us"] for line in lines if line["event"] == "step"}
    first, last = max(2 * every, 6 // every * every), steps // every * every
    snapshots = [line for line in lines if line["event"] == "snapshot" and first < line["step"] <= last]
    figures = {"step_ms": (end_us[last] - end_us[first]) / 1e3 / (last - first),
               "losses": [line["loss"] for line in lines if line["event"] == "step"]}
    if side == "replicas":
        figures |= {"due": (last - first) // every, "bytes_sent": [line["bytes_sent"] for line in snapshots],
                    "duration_ms": [line["duration_ms"] for line in snapshots]}
        if not snapshots:
            fail(f"{' '.join(command)} confirmed no snapshot between steps {first} and {last}: more --steps")
    return figures


def cost_percent(rounds, side):
    return [100 * (each[side]["step_ms"] / each["none"]["step_ms"] - 1) for each in rounds]


def range_text(values, form):
    return f"{median(values):{form}} ({min(values):{form}} to {max(values):{form}})"


def measure(folder, name, every, options):
    steps = options.steps or CASES[name]
    config = write_case(folder, name, steps, options.threads, options.ranks)
    sides, rounds = list(SIDES), []
    for index in range(options.rounds):
        turn = index % len(sides)
        figures = {side: train(folder, config, every, steps, side, options) for side in sides[turn:] + sides[:turn]}
        if len({tuple(each.pop("losses")) for each in figures.values()}) != 1:
            fail("snapshots changed a loss")
        rounds.append(figures)
    plain = [each["none"]["step_ms"] for each in rounds]
    noise = 100 * (max(plain) / min(plain) - 1)
    costs = {side: cost_percent(rounds, side) for side in ("ram", "replicas")}
    sent, durations = ([value for each in rounds for value in each["replicas"][key]] for key in ("bytes_sent", "duration_ms"))
    due = sum(each["replicas"]["due"] for each in rounds)
    print(f"| {name} | {every} | {median(plain):.2f} | {range_text(costs['ram'], '+.2f')} % | {range_text(costs['replicas'], '+.2f')} % "
          f"| {noise:.2f} % | {len(sent)} of {due} | {median(sent) / 1e6:.2f} | {range_text(durations, '.1f')} |", flush=True)
    return {"case": name, "every": every, "ranks": options.ranks, "rounds": rounds, "noise_percent": noise,
            "ram_cost_percent": median(costs["ram"]), "replicas_cost_percent": median(costs["replicas"]),
            "confirmed": len(sent), "due": due, "bytes_sent": median(sent), "duration_ms": median(durations)}


def parse_arguments():
    arguments = cost_parser(__doc__, CASES, ranks=2, rounds=6)
    arguments.add_argument("--every", type=positive, action="append", help="steps between snapshots (default: 1 and 10)")
    return arguments.parse_args()


def main():
    options = parse_arguments()
    if options.ranks < 2:
        fail("--ranks must be at least 2: a replica is in another rank")
    intervals = options.every or [1, 10]
    if options.steps is not None and options.steps < max(8, 4 * max(intervals)):
        fail(f"--steps must be at least {max(8, 4 * max(intervals))}")
    print(f"{options.ranks} ranks of {options.threads} thread(s), {options.rounds} rounds")
    print("| model | every | ms/step without | cost of RAM snapshots (range of the rounds) | with replicas | range without "
          "| confirmed | MB a rank sends | ms until all know |")
    print("|---|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as name:
        figures = [measure(Path(name), case, every, options) for case in options.case or CASES for every in intervals]
    write_json(options.json, "snapshots", figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
