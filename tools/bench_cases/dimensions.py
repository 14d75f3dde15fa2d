#!/usr/bin/env python3
"""bench dimensions: what each dimension of parallelism costs on this machine, beside one rank with the same processors.

Every layout has two processors: one rank of two threads, or two ranks of one. In every round each of them trains the same few
steps, one after the other. Layouts of one run (the same lanes and tensor lanes) must have the same losses to the last digit;
runs with other tensor lanes must agree to rounding. Tensor lanes on one rank cost what smaller products and the tree of sums
cost; the ranks of a tensor group wait for each other four times in a layer, forward and backward; the stages of a pipeline idle
while it fills and drains (1 / (m + 1) of m microbatches). The processor time is that of all ranks, start-up included: what a
layout computes more, without the waiting.
"""
import statistics
import sys
import tempfile
from pathlib import Path

from _common import HOLDFAST, MPIRUN, fail, parser, positive, train_and_time, write_json, write_tokens

LANES, WARMUP_STEPS, VOCABULARY = 2, 2, 32000
AGREEMENT = {"fp32": 1e-5, "bf16": 1e-2}  # of losses with other tensor lanes
BASE = "1 rank"
LAYOUTS = {  # ranks, tensor lanes, options
    BASE: (1, 1, []),
    "data 2": (2, 1, []),
    "pipeline 2": (2, 1, ["--parallel.pipeline=2"]),
    "tensor lanes 2": (1, 2, []),
    "tensor lanes 4": (1, 4, []),
    "tensor 2": (2, 2, ["--parallel.tensor=2"]),
    "tensor 2, tensor lanes 4": (2, 4, ["--parallel.tensor=2"]),
}


def train(folder, config, layout, number):
    """(milliseconds of a step, losses, processor seconds)"""
    ranks, tensor_lanes, options = LAYOUTS[layout]
    run = folder / f"run-{number}"
    launcher = [MPIRUN, "-np", str(ranks)] if ranks > 1 else []
    command = [*launcher, HOLDFAST, "train", str(config), f"--run.directory={run}", f"--threads={2 // ranks}",
               f"--parallel.tensor_lanes={tensor_lanes}", *options]
    return train_and_time(command, run, WARMUP_STEPS)


def check_losses(losses, precision):
    for layout, (_, tensor_lanes, _) in LAYOUTS.items():
        same = next(other for other, (_, lanes, _) in LAYOUTS.items() if lanes == tensor_lanes)
        if losses[layout] != losses[same]:
            fail(f"{layout} and {same} do not have the same losses: {losses[layout]}, {losses[same]}")
        if any(abs(mine / its - 1) > AGREEMENT[precision] for mine, its in zip(losses[layout], losses[BASE])):
            fail(f"{layout} and {BASE} differ by more than {AGREEMENT[precision]}: {losses[layout]}, {losses[BASE]}")


def main():
    arguments = parser(__doc__)
    arguments.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    arguments.add_argument("--heads", type=positive, default=8, help="of queries and of keys and values; tensor lanes divide them")
    arguments.add_argument("--layers", type=positive, default=6)
    arguments.add_argument("--width", type=positive, default=512)
    arguments.add_argument("--sequence-length", type=positive, default=256)
    arguments.add_argument("--microbatch-size", type=positive, default=1)
    arguments.add_argument("--microbatches-per-lane", type=positive, default=4)
    arguments.add_argument("--steps", type=positive, default=3, help=f"that count, after {WARMUP_STEPS} that do not")
    arguments.add_argument("--rounds", type=positive, default=5)
    options = arguments.parse_args()
    steps_ms, processor_s, losses = {layout: [] for layout in LAYOUTS}, {layout: [] for layout in LAYOUTS}, {}
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as name:
        folder = Path(name)
        write_tokens(folder / "tokens.bin", 400_000, VOCABULARY)
        config = folder / "run.toml"
        config.write_text(f"""
[run]
directory = "unset"
[model]
layers = {options.layers}
heads = {options.heads}
kv_heads = {options.heads}
width = {options.width}
vocabulary = {VOCABULARY}
[data]
sources = [{{path = "{folder / 'tokens.bin'}", format = "llmc"}}]
[training]
steps = {WARMUP_STEPS + options.steps}
sequence_length = {options.sequence_length}
microbatch_size = {options.microbatch_size}
microbatches_per_lane = {options.microbatches_per_lane}
precision = "{options.precision}"
[parallel]
lanes = {LANES}
[checkpoint]
every_steps = 0
ram_every_steps = 0
""")
        for number in range(options.rounds):
            for index, layout in enumerate(LAYOUTS):
                step_ms, losses[layout], seconds = train(folder, config, layout, number * len(LAYOUTS) + index)
                steps_ms[layout].append(step_ms)
                processor_s[layout].append(seconds)
    check_losses(losses, options.precision)
    print(f"{options.layers} layers of width {options.width}, {options.heads} heads, {options.precision}, {LANES} lanes of "
          f"{options.microbatches_per_lane} microbatches of {options.microbatch_size} x {options.sequence_length} tokens, two "
          f"processors, {options.rounds} rounds of {options.steps} steps; losses as they must be")
    print(f"| layout | ms/step, median (range of the rounds) | of {BASE} | processor s of the run | of {BASE} |")
    print("|---|---|---|---|---|")
    figures = {}
    for layout, mine in steps_ms.items():
        def of_base(values):
            return statistics.median(own / its for own, its in zip(values[layout], values[BASE]))
        figures[layout] = {"step_ms": statistics.median(mine), "rounds_ms": mine, "ratio": of_base(steps_ms),
                           "processor_s": processor_s[layout], "processor_ratio": of_base(processor_s)}
        print(f"| {layout} | {statistics.median(mine):.0f} ({min(mine):.0f} to {max(mine):.0f}) | {of_base(steps_ms):.2f} | "
              f"{statistics.median(processor_s[layout]):.1f} | {of_base(processor_s):.2f} |")
    write_json(options.json, "dimensions", figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
