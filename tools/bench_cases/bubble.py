#!/usr/bin/env python3
"""bench bubble: the bubble of a pipeline beside the formula of its schedule, for several numbers of microbatches.

Every rank computes on one thread. The layers are equal and the head is small, so the stages are as equal as they can be. Of
recorded steps `holdfast timeline` says three bubbles: measured by the clock, which has everything in it that happens on a
machine with fewer processors than ranks, or with other users; replayed from the processor time that each part took, which has
only the parts; and the formula. The last column is the processor time of the hosts' threads (schedule, messages, vote,
waiting) beside that of forward and backward.
"""
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from _common import HOLDFAST, MPIRUN, fail, parser, positive, write_json

CONFIG = """\
threads = 1
[run]
directory = "unset"
[model]
layers = {layers}
heads = 4
width = {width}
[data]
sources = [{{ path = "{text}" }}]
[training]
steps = {steps}
sequence_length = 128
microbatch_size = {microbatch_size}
microbatches_per_lane = {microbatches}
[parallel]
lanes = 1
pipeline = {stages}
pipeline_schedule = "{schedule}"
pipeline_chunks = {chunks}
[checkpoint]
every_steps = 0
ram_every_steps = 0
[trace]
first_step = 3
steps = {traced}
"""
SENTENCE = re.compile(r"measured ([\d.]+) %, replayed with the measured parts ([\d.]+) %, formula ([\d.]+) %\n"
                      r"processor time of the hosts: ([\d.]+) %")


def run_program(command):
    outcome = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if outcome.returncode != 0:
        fail(f"{' '.join(map(str, command))} ended with exit code {outcome.returncode}: {outcome.stdout}")
    return outcome.stdout


def measure(folder, number, microbatches, options):
    """(measured, replayed, formula, hosts) in percent"""
    text, config, run = folder / "text.txt", folder / f"run-{number}.toml", folder / f"run-{number}"
    text.write_text("".join(f"line {i} says {i * 7919:x};\n" for i in range(40_000)))
    config.write_text(CONFIG.format(text=text, layers=options.layers, width=options.width, steps=2 + options.steps,
                                    microbatch_size=options.microbatch_size, microbatches=microbatches, stages=options.stages,
                                    schedule=options.schedule, chunks=options.chunks, traced=options.steps))
    run_program([MPIRUN, "-np", str(options.stages), HOLDFAST, "train", str(config), f"--run.directory={run}"])
    return [float(share) for share in SENTENCE.search(run_program([HOLDFAST, "timeline", str(run)])).groups()]


def main():
    arguments = parser(__doc__)
    arguments.add_argument("--stages", type=positive, default=2)
    arguments.add_argument("--schedule", choices=("1f1b", "gpipe", "interleaved"), default="1f1b")
    arguments.add_argument("--chunks", type=positive, default=1)
    arguments.add_argument("--microbatches", type=positive, nargs="+", default=[4, 8, 16, 32])
    arguments.add_argument("--layers", type=positive, default=8)
    arguments.add_argument("--width", type=positive, default=256)
    arguments.add_argument("--microbatch-size", type=positive, default=4)
    arguments.add_argument("--steps", type=positive, default=3, help="that are recorded, after two that are not")
    arguments.add_argument("--rounds", type=positive, default=3)
    options = arguments.parse_args()
    rounds = {microbatches: [] for microbatches in options.microbatches}
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as name:
        number = 0
        for _ in range(options.rounds):
            for microbatches, shares in rounds.items():
                shares.append(measure(Path(name), number, microbatches, options))
                number += 1
    print(f"{options.schedule}, {options.stages} ranks of 1 thread, {options.layers} layers of width {options.width} in "
          f"{options.stages} stages{f' of {options.chunks} chunks' if options.chunks > 1 else ''}, microbatches of "
          f"{options.microbatch_size} x 128 bytes; medians of {options.rounds} rounds of {options.steps} steps (range)")
    print("| microbatches | measured by the clock | replayed from processor time | formula | hosts / forward and backward |")
    print("|---|---|---|---|---|")
    figures = {}
    for microbatches, shares in rounds.items():
        measured, replayed, formula, hosts = ([one[i] for one in shares] for i in range(4))
        cells = [f"{statistics.median(each):.1f} % ({min(each):.1f} to {max(each):.1f})" for each in (measured, replayed, hosts)]
        print(f"| {microbatches} | {cells[0]} | {cells[1]} | {formula[0]:.1f} % | {cells[2]} |")
        figures[microbatches] = {"measured": measured, "replayed": replayed, "formula": formula[0], "hosts": hosts}
    write_json(options.json, "bubble", figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
