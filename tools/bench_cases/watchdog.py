#!/usr/bin/env python3
"""bench watchdog: what the watchdog costs a run: the guard of the host, the board that the ranks write, and the flight record
that is always kept.

The same run trains with it and without it (watchdog.guard = false) at the same time, each on processors of its own, so that what
else goes on in the machine slows both; then both again with the processors changed over, so that it does not count which are
the faster ones. Compared are the medians of the steps' durations, after the first ones; a round's cost is the geometric mean of its two
quotients, and the cost is the median of the rounds. Beside it stands the same figure of two runs without a watchdog, below which no
cost can be told.
"""
import concurrent.futures
import math
import os
import sys
import tempfile
from pathlib import Path
from statistics import median

from _common import HOLDFAST, MPIRUN, fail, parser, positive, train_and_time, write_config, write_json, write_tokens

WARMUP_STEPS = 5
SMALL = """\
[model]
style = "llama"
layers = 2
heads = 4
width = 64
vocabulary = 256
"""
# name: model, tokens of it, sequence length, microbatch, steps of a round
CASES = {"small": (SMALL, 256, 64, 4, 400), "llama-15m": ('[model]\npreset = "llama-15m"\n', 32_000, 256, 2, 25)}


def prepare(folder, name, options):
    model, vocabulary, length, batch, steps = CASES[name]
    tokens = folder / f"{name}.bin"
    write_tokens(tokens, 400_000, vocabulary)
    config = folder / f"{name}.toml"
    write_config(config, "unset", tokens, "llama-15m", steps=options.steps or steps, sequence_length=length, microbatch_size=batch)
    text = config.read_text().replace('[model]\npreset = "llama-15m"\n', model)
    config.write_text(f"threads = {options.threads}\n{text}[parallel]\nlanes = {options.ranks}\n[checkpoint]\nevery_steps = 0\n"
                      "[evaluation]\nevery_steps = 0\n")
    return config


def train(folder, config, options, guard, processors):
    """(milliseconds of a step, losses), on these processors alone"""
    with tempfile.TemporaryDirectory(dir=folder) as name:
        launcher = [MPIRUN, "-np", str(options.ranks)] if options.ranks > 1 else []
        command = ["taskset", "--cpu-list", ",".join(map(str, processors)), *launcher, HOLDFAST, "train", str(config),
                   f"--run.directory={name}/run", f"--watchdog.guard={str(guard).lower()}", *options.override]
        step_ms, losses, _ = train_and_time(command, f"{name}/run", WARMUP_STEPS)
    return step_ms, losses


def quotient(folder, config, options, guards):
    """Of the second run's step and the first one's, and the milliseconds of both."""
    processors = sorted(os.sched_getaffinity(0))
    half = len(processors) // 2
    sides = (processors[:half], processors[half:2 * half])
    turns = []
    for places in (sides, sides[::-1]):
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            both = list(pool.map(lambda guard, place: train(folder, config, options, guard, place), guards, places))
        if both[0][1] != both[1][1]:
            fail("the watchdog changed a loss")
        turns.append([step_ms for step_ms, _ in both])
    return {"cost_percent": 100 * (math.sqrt(math.prod(second / first for first, second in turns)) - 1), "step_ms": turns}


def measure(folder, name, options):
    config = prepare(folder, name, options)
    rounds = [{"with": quotient(folder, config, options, (False, True)), "without": quotient(folder, config, options, (False, False))}
              for _ in range(options.rounds)]
    costs = [each["with"]["cost_percent"] for each in rounds]
    noise = [each["without"]["cost_percent"] for each in rounds]
    step_ms = [median(turn[side] for each in rounds for turn in each["with"]["step_ms"]) for side in (0, 1)]
    print(f"| {name} | {options.ranks} | {step_ms[0]:.2f} | {step_ms[1]:.2f} | {median(costs):+.2f} % ({min(costs):+.2f} to {max(costs):+.2f}) | "
          f"{median(noise):+.2f} % ({min(noise):+.2f} to {max(noise):+.2f}) |", flush=True)
    return {"case": name, "ranks": options.ranks, "rounds": rounds, "cost_percent": median(costs), "noise_percent": median(noise)}


def parse_arguments():
    arguments = parser(__doc__)
    arguments.add_argument("--case", choices=CASES, action="append", help="default: all")
    arguments.add_argument("--ranks", type=positive, default=1, help="of each run")
    arguments.add_argument("--threads", type=positive, default=1)
    arguments.add_argument("--steps", type=positive, help="of a run (default: by case)")
    arguments.add_argument("--rounds", type=positive, default=7)
    arguments.add_argument("--override", action="append", default=[], metavar="--KEY=VALUE")
    return arguments.parse_args()


def main():
    options = parse_arguments()
    if options.steps is not None and options.steps <= WARMUP_STEPS:
        fail(f"--steps must be more than {WARMUP_STEPS}")
    if len(os.sched_getaffinity(0)) < 2:
        fail("two runs beside each other need two processors")
    print(f"{options.rounds} rounds, {options.threads} thread(s) a rank")
    print("| model | ranks | ms/step without | with the watchdog | cost (range of the rounds) | of none beside none |")
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as name:
        figures = [measure(Path(name), case, options) for case in options.case or CASES]
    write_json(options.json, "watchdog", figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
