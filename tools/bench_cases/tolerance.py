#!/usr/bin/env python3
"""bench tolerance: what all of fault tolerance costs a run of several ranks: the watchdog with its flight record, RAM snapshots as often
as the run chooses by itself (checkpoint.ram_every_steps = "auto"), their replicas in other ranks, and verdicts on its numbers.

The same run trains with all of it and without (watchdog.guard = false, checkpoint.ram_every_steps = 0, verdict.preset = "off") at the same time, each on
processors of its own, then with the processors changed over (bench watchdog says why). There are more ranks than processors, so
what is done in the background takes its time from the steps as well. Compared is the time from one step to the last, which holds whole
snapshots and everything between the steps, not the median of the steps. The vote of a step is in both: it carries the loss.

What snapshots and replicas alone cost is also read from the runs with them, far more exactly: by how much the steps after the
begin of a snapshot are longer than the other steps of the same run (means of what is left without the shortest and longest tenth).
"""
import functools
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import mean, median

from _common import cost_parser, cost_row, events, fail, on_processors, side_by_side, write_case, write_json

# steps of a run, and the step after which time counts: the first snapshots of a process meet cold memory, and the run tries
# out what one costs
CASES = {"small": (1000, 100), "llama-15m": (100, 10), "gpt2-124m": (16, 3)}
SIDES = {"without": ["--watchdog.guard=false", "--checkpoint.ram_every_steps=0", "--verdict.preset=off"],
         "with": ["--checkpoint.ram_every_steps=auto", "--checkpoint.replicas=on"]}


BESIDE = 6  # steps after the begin of a snapshot: until it is copied, sent and known to be


def middle(values):
    """The mean without the shortest and the longest tenth."""
    cut = len(values) // 10
    return mean(sorted(values)[cut:len(values) - cut])


def cost_within(lines, first):
    """(ms that one snapshot costs, ms of a step beside none, snapshots, steps), after step `first`; none: too few snapshots."""
    end_us = {line["step"]: line["time_us"] for line in lines if line["event"] == "step"}
    took_ms = {step: (end_us[step] - end_us[step - 1]) / 1e3 for step in end_us if step > first}
    begun = [line["step"] for line in lines if line["event"] == "snapshot" and line["step"] > first]
    begun = [step for step in begun if step + BESIDE in took_ms]
    beside = {step + behind for step in begun for behind in range(1, BESIDE + 1)}
    others = [took for step, took in took_ms.items() if step not in beside]
    if not begun or not others:
        return None
    usual_ms = middle(others)
    one_ms = sum(middle([took_ms[step + behind] for step in begun]) - usual_ms for behind in range(1, BESIDE + 1))
    return one_ms, usual_ms, len(begun), len(took_ms)


def train(folder, config, options, first, snapshots, side, processors):
    with tempfile.TemporaryDirectory(dir=folder) as name:
        command = on_processors(processors, options.ranks, "train", config, f"--run.directory={name}/run", *SIDES[side], *options.override)
        outcome = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if outcome.returncode != 0 or "no RAM snapshots" in outcome.stdout or "no replicas" in outcome.stdout:
            fail(f"{' '.join(command)} ended with exit code {outcome.returncode}: {outcome.stdout}")
        lines = events(f"{name}/run")
    steps = [line for line in lines if line["event"] == "step"]
    if side == "with":
        snapshots.append({"count": sum(line["event"] == "snapshot" for line in lines), "within": cost_within(lines, first)})
    measured = steps[first - 1:]
    return (measured[-1]["time_us"] - measured[0]["time_us"]) / 1e3 / (len(measured) - 1), [step["loss"] for step in steps]


def measure(folder, name, options):
    steps, first = options.steps or CASES[name][0], CASES[name][1]
    config = write_case(folder, name, steps, options.threads, options.ranks)
    snapshots = []
    run = functools.partial(train, folder, config, options, first, snapshots)
    row, figures = cost_row(name, [{"cost": side_by_side(run, "without", "with"), "noise": side_by_side(run, "without", "without")}
                                   for _ in range(options.rounds)])
    within = [each["within"] for each in snapshots if each["within"] is not None]
    percents = [100 * one_ms * count / (usual_ms * steps_of) for one_ms, usual_ms, count, steps_of in within]
    told = f"{median(percents):+.2f} % ({min(percents):+.2f} to {max(percents):+.2f})" if percents else "too few"
    print(f"{row} {sum(each['count'] for each in snapshots)} in {len(snapshots)} runs of {steps} steps | {told} |", flush=True)
    return {"case": name, "ranks": options.ranks, "snapshots": snapshots, "within_percent": percents} | figures


def main():
    options = cost_parser(__doc__, CASES, ranks=2, rounds=5).parse_args()
    if options.ranks < 2:
        fail("--ranks must be at least 2: a replica is in another rank")
    if options.steps is not None and any(options.steps <= CASES[name][1] + 1 for name in options.case or CASES):
        fail("--steps must be more than " + " and ".join(f"{first + 1} ({name})" for name, (_, first) in CASES.items()))
    print(f"{options.rounds} rounds, {options.ranks} ranks of {options.threads} thread(s)")
    print("| model | ms/step without | with all | cost (range of the rounds) | of none beside none | snapshots | their cost within a run |")
    print("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as name:
        figures = [measure(Path(name), case, options) for case in options.case or CASES]
    write_json(options.json, "tolerance", figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
