#!/usr/bin/env python3
"""bench watchdog: what the watchdog costs a run: the guard of the host, the board that the ranks write, and the flight record
that is always kept.

The same run trains with it and without it (watchdog.guard = false) at the same time, each on processors of its own, so that what
else goes on in the machine slows both; then both again with the processors changed over, so that it does not count which are
the faster ones. Compared are the medians of the steps' durations, after the first ones; a round's cost is the geometric mean of its two
quotients, and the cost is the median of the rounds. Beside it stands the same figure of two runs without a watchdog, below which no
cost can be seen.
"""
import functools
import sys
import tempfile
from pathlib import Path

from _common import cost_parser, cost_row, fail, on_processors, side_by_side, train_and_time, write_case, write_json

WARMUP_STEPS = 5
CASES = {"small": 400, "llama-15m": 25}  # steps of a run


def train(folder, config, options, guard, processors):
    with tempfile.TemporaryDirectory(dir=folder) as name:
        command = on_processors(processors, options.ranks, "train", config, f"--run.directory={name}/run",
                                f"--watchdog.guard={str(guard).lower()}", *options.override)
        step_ms, losses, _ = train_and_time(command, f"{name}/run", WARMUP_STEPS)
    return step_ms, losses


def measure(folder, name, options):
    config = write_case(folder, name, options.steps or CASES[name], options.threads, options.ranks)
    run = functools.partial(train, folder, config, options)
    row, figures = cost_row(name, [{"cost": side_by_side(run, False, True), "noise": side_by_side(run, False, False)}
                                   for _ in range(options.rounds)])
    print(row, flush=True)
    return {"case": name, "ranks": options.ranks} | figures


def main():
    options = cost_parser(__doc__, CASES, ranks=1, rounds=7).parse_args()
    if options.steps is not None and options.steps <= WARMUP_STEPS:
        fail(f"--steps must be more than {WARMUP_STEPS}")
    print(f"{options.rounds} rounds, {options.ranks} rank(s) of {options.threads} thread(s)")
    print("| model | ms/step without | with the watchdog | cost (range of the rounds) | of none beside none |")
    print("|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as name:
        figures = [measure(Path(name), case, options) for case in options.case or CASES]
    write_json(options.json, "watchdog", figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
