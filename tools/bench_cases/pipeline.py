#!/usr/bin/env python3
"""bench pipeline: the same run on two ranks of one thread each, as two replicas and as two stages of a pipeline.

In every round each layout trains the same few steps, one after the other; the losses of all must be the same to the last digit.
Two replicas have no bubble and exchange gradients; two stages exchange activations and idle while the pipeline fills and
drains: of m microbatches a share 1 / (m + 1) with equal stages (Narayanan et al. 2021), 1 / (2 m + 1) with two chunks on
each, once for each lane, and 1 / (3 m + 1) with weight gradients computed apart that take as long as input gradients and
forwards (Qi et al. 2024). Layers and head do not divide evenly, and that shows as well.
"""
import statistics
import sys
import tempfile
from pathlib import Path

from _common import HOLDFAST, MPIRUN, fail, parser, positive, train_and_time, write_config, write_json, write_tokens

RANKS, LANES, WARMUP_STEPS, VOCABULARY = 2, 2, 2, 32000
LAYOUTS = {
    "two replicas": [],
    "1f1b": ["--parallel.pipeline=2"],
    "gpipe": ["--parallel.pipeline=2", "--parallel.pipeline_schedule=gpipe"],
    "interleaved, 2 chunks": ["--parallel.pipeline=2", "--parallel.pipeline_schedule=interleaved", "--parallel.pipeline_chunks=2"],
    "zero_bubble": ["--parallel.pipeline=2", "--parallel.pipeline_schedule=zero_bubble"],
}


def bubble(layout, microbatches_per_lane):
    """The formula's share of a step; a pipeline that is not interleaved does not drain between its lanes."""
    if layout == "two replicas":
        return 0.0
    if layout.startswith("interleaved"):
        return 1 / (2 * microbatches_per_lane + 1)
    if layout == "zero_bubble":
        return 1 / (3 * LANES * microbatches_per_lane + 1)
    return 1 / (LANES * microbatches_per_lane + 1)


def train(folder, config, layout, number):
    """(milliseconds of a step, losses)"""
    run = folder / f"run-{number}"
    command = [MPIRUN, "-np", str(RANKS), HOLDFAST, "train", str(config), f"--run.directory={run}", *LAYOUTS[layout]]
    return train_and_time(command, run, WARMUP_STEPS)[:2]


def main():
    arguments = parser(__doc__)
    arguments.add_argument("--preset", default="llama-15m")
    arguments.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    arguments.add_argument("--sequence-length", type=positive, default=256)
    arguments.add_argument("--microbatch-size", type=positive, default=1)
    arguments.add_argument("--microbatches-per-lane", type=positive, default=4)
    arguments.add_argument("--steps", type=positive, default=3, help=f"that count, after {WARMUP_STEPS} that do not")
    arguments.add_argument("--rounds", type=positive, default=5)
    options = arguments.parse_args()
    steps_ms, losses = {layout: [] for layout in LAYOUTS}, {}
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as name:
        folder = Path(name)
        write_tokens(folder / "tokens.bin", 400_000, VOCABULARY)
        config = folder / "run.toml"
        write_config(config, "unset", folder / "tokens.bin", options.preset, steps=WARMUP_STEPS + options.steps,
                     sequence_length=options.sequence_length, microbatch_size=options.microbatch_size,
                     microbatches_per_lane=options.microbatches_per_lane, precision=options.precision)
        config.write_text(f"threads = 1\n{config.read_text()}[parallel]\nlanes = {LANES}\n")
        for number in range(options.rounds):
            for index, layout in enumerate(LAYOUTS):
                step_ms, losses[layout] = train(folder, config, layout, number * len(LAYOUTS) + index)
                steps_ms[layout].append(step_ms)
    if any(losses[layout] != losses["two replicas"] for layout in LAYOUTS):
        fail(f"the layouts do not have the same losses: {losses}")
    print(f"{options.preset}, {options.precision}, {LANES} lanes of {options.microbatches_per_lane} microbatches of "
          f"{options.microbatch_size} x {options.sequence_length} tokens, {RANKS} ranks of 1 thread, {options.rounds} rounds of "
          f"{options.steps} steps; losses are the same in all layouts")
    print("| layout | ms/step, median (range of the rounds) | of two replicas | 1 / (1 - bubble) by the formula |")
    print("|---|---|---|---|")
    figures = {}
    for layout, mine in steps_ms.items():
        ratio = statistics.median(own / its for own, its in zip(mine, steps_ms["two replicas"]))
        share = bubble(layout, options.microbatches_per_lane)
        figures[layout] = {"step_ms": statistics.median(mine), "rounds_ms": mine, "ratio": ratio, "bubble": share}
        print(f"| {layout} | {statistics.median(mine):.0f} ({min(mine):.0f} to {max(mine):.0f}) | {ratio:.2f} | {1 / (1 - share):.2f} |")
    write_json(options.json, "pipeline", figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
