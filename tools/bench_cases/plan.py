#!/usr/bin/env python3
"""bench plan: the step time that `holdfast plan` estimates beside the one that the same run takes.

In every round each run is planned and then trained for a few steps, one after the other, so that what else the machine does
meets both. The ratio is that of the medians; its range is that of the rounds.
"""
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from _common import HOLDFAST, MPIRUN, events, fail, parser, positive, write_config, write_json, write_tokens

WARMUP_STEPS, VOCABULARY, LANES = 2, 32000, 2
# name: (preset, ranks, tokens of a microbatch as samples x length, microbatches of a lane, overrides)
RUNS = {
    "one rank": ("llama-15m", 1, (4, 256), 1, []),
    "one rank, bf16": ("llama-15m", 1, (4, 256), 1, ["--training.precision=bf16"]),
    "one rank of a larger model": ("gpt2-124m", 1, (4, 64), 1, []),
    "one rank of gpt2-355m": ("gpt2-355m", 1, (4, 64), 1, []),
    "two replicas": ("llama-15m", 2, (4, 256), 1, []),
    "two replicas that recompute": ("llama-15m", 2, (4, 256), 1, ["--training.recompute=full"]),
    "two stages": ("llama-15m", 2, (1, 256), 4, ["--parallel.pipeline=2"]),
}


def run(command):
    outcome = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
    if outcome.returncode != 0:
        fail(f"{' '.join(command)} ended with exit code {outcome.returncode}: {outcome.stdout}{outcome.stderr}")
    return outcome.stdout


def planned_ms(config, ranks, overrides):
    plan = json.loads(run([HOLDFAST, "plan", str(config), "--ranks", str(ranks), "--json", *overrides]))
    return plan["layout"]["time"]["step_ms"]


def trained_ms(folder, config, ranks, overrides, number):
    directory = folder / f"run-{number}"
    start = [] if ranks == 1 else [MPIRUN, "-np", str(ranks)]
    run([*start, HOLDFAST, "train", str(config), f"--run.directory={directory}", *overrides])
    steps = [event["step_duration_ms"] for event in events(directory) if event["event"] == "step"]
    return statistics.median(steps[WARMUP_STEPS:])


def main():
    arguments = parser(__doc__)
    arguments.add_argument("--sequence-length", type=positive, help="of every run, instead of its own")
    arguments.add_argument("--steps", type=positive, default=4, help=f"that count, after {WARMUP_STEPS} that do not")
    arguments.add_argument("--rounds", type=positive, default=5)
    arguments.add_argument("--runs", nargs="+", choices=RUNS, default=list(RUNS), metavar="NAME", help=f"of: {', '.join(RUNS)}")
    options = arguments.parse_args()
    runs = {name: RUNS[name] for name in options.runs}
    planned, trained = {name: [] for name in runs}, {name: [] for name in runs}
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as name:
        folder = Path(name)
        write_tokens(folder / "tokens.bin", 400_000, VOCABULARY)
        for index, (preset, _, (samples, length), microbatches, _) in enumerate(runs.values()):
            config = folder / f"{index}.toml"
            write_config(config, "unset", folder / "tokens.bin", preset, steps=WARMUP_STEPS + options.steps,
                         sequence_length=options.sequence_length or length, microbatch_size=samples,
                         microbatches_per_lane=microbatches)
            config.write_text(f"{config.read_text()}[parallel]\nlanes = {LANES}\n")
        for number in range(options.rounds):
            for index, (run_name, (_, ranks, _, _, overrides)) in enumerate(runs.items()):
                config = folder / f"{index}.toml"
                planned[run_name].append(planned_ms(config, ranks, overrides))
                trained[run_name].append(trained_ms(folder, config, ranks, overrides, number * len(runs) + index))
    print(f"{LANES} lanes, {options.rounds} rounds of {options.steps} steps, all processors")
    print("| run | planned ms/step, median (range) | trained ms/step, median (range) | planned / trained (range of the rounds) |")
    print("|---|---|---|---|")
    figures = {}
    for run_name in runs:
        plans, steps = planned[run_name], trained[run_name]
        ratio = statistics.median(plans) / statistics.median(steps)
        ratios = [mine / its for mine, its in zip(plans, steps)]
        figures[run_name] = {"planned_ms": plans, "trained_ms": steps, "ratio": ratio}
        print(f"| {run_name} | {statistics.median(plans):.0f} ({min(plans):.0f} to {max(plans):.0f}) | "
              f"{statistics.median(steps):.0f} ({min(steps):.0f} to {max(steps):.0f}) | "
              f"{ratio:.2f} ({min(ratios):.2f} to {max(ratios):.2f}) |")
    write_json(options.json, "plan", figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
