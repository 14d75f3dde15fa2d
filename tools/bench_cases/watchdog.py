#!/usr/bin/env python3
"""bench watchdog: what the watchdog costs a run: the guard of the host, the board that the ranks write, and the flight record
that is always kept.

In every round the same run trains once without it (watchdog.guard = false) and once with it, in turns which is first. Compared
are the medians of the steps' durations, after the first ones; the cost is the median of the rounds' quotients. Beside it stands what
a step of the same run differs by from round to round without a watchdog, below which no cost can be told.
"""
import shutil
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


def train(folder, config, options, guard):
    run = folder / "run"
    launcher = [MPIRUN, "-np", str(options.ranks)] if options.ranks > 1 else []
    command = [*launcher, HOLDFAST, "train", str(config), f"--run.directory={run}", f"--watchdog.guard={str(guard).lower()}",
               *options.override]
    step_ms, losses, processor_s = train_and_time(command, run, WARMUP_STEPS)
    shutil.rmtree(run)
    return {"step_ms": step_ms, "losses": losses, "processor_s": processor_s}


def measure(folder, name, options):
    config = prepare(folder, name, options)
    rounds = []
    for index in range(options.rounds):
        order = (False, True) if index % 2 == 0 else (True, False)
        figures = {guard: train(folder, config, options, guard) for guard in order}
        if figures[False].pop("losses") != figures[True].pop("losses"):
            fail("the watchdog changed a loss")
        rounds.append((figures[False], figures[True]))
    plain = [without["step_ms"] for without, _ in rounds]
    costs = [100 * (watched["step_ms"] / without["step_ms"] - 1) for without, watched in rounds]
    noise = 100 * (max(plain) / min(plain) - 1)
    print(f"| {name} | {options.ranks} | {median(plain):.2f} | {median(watched['step_ms'] for _, watched in rounds):.2f} | "
          f"{median(costs):+.2f} % ({min(costs):+.2f} to {max(costs):+.2f}) | {noise:.2f} % |", flush=True)
    return {"case": name, "ranks": options.ranks, "rounds": rounds, "cost_percent": median(costs), "noise_percent": noise}


def parse_arguments():
    arguments = parser(__doc__)
    arguments.add_argument("--case", choices=CASES, action="append", help="default: all")
    arguments.add_argument("--ranks", type=positive, default=2)
    arguments.add_argument("--threads", type=positive, default=1)
    arguments.add_argument("--steps", type=positive, help="of a run (default: by case)")
    arguments.add_argument("--rounds", type=positive, default=7)
    arguments.add_argument("--override", action="append", default=[], metavar="--KEY=VALUE")
    return arguments.parse_args()


def main():
    options = parse_arguments()
    if options.steps is not None and options.steps <= WARMUP_STEPS:
        fail(f"--steps must be more than {WARMUP_STEPS}")
    print(f"{options.rounds} rounds, {options.threads} thread(s) a rank")
    print("| model | ranks | ms/step without | with the watchdog | cost (range of the rounds) | range without |")
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as name:
        figures = [measure(Path(name), case, options) for case in options.case or CASES]
    write_json(options.json, "watchdog", figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
