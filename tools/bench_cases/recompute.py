#!/usr/bin/env python3
"""bench recompute: what each mode of training.recompute costs in time and saves in memory.

In every round each mode trains the same few steps from the same seed, one after the other; the losses of all modes must be
the same to the last digit. Milliseconds are those of a step, peak memory is the most that was resident.
"""
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from _common import HOLDFAST, events, fail, parser, positive, write_config, write_json, write_tokens

MODES = ("none", "selective", "full")
WARMUP_STEPS = 2
VOCABULARY = 32000  # known to every preset


def train(folder, config, mode):
    """(milliseconds of each step but the first few, losses, peak MiB)"""
    run = folder / "run"
    shutil.rmtree(run, ignore_errors=True)
    log = folder / "log"
    with open(log, "w") as output:
        process = subprocess.Popen([HOLDFAST, "train", str(config), f"--training.recompute={mode}"], stdout=output,
                                   stderr=subprocess.STDOUT)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)  # nobody else can wait for it any more
    if process.returncode != 0:
        fail(f"the run with training.recompute = {mode} ended with exit code {process.returncode}: {log.read_text()}")
    steps = [event for event in events(run) if event["event"] == "step"]
    return ([step["step_duration_ms"] for step in steps[WARMUP_STEPS:]], [step["loss"] for step in steps],
            usage.ru_maxrss / 1024)


def main():
    arguments = parser(__doc__)
    arguments.add_argument("--preset", default="llama-15m")
    arguments.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    arguments.add_argument("--sequence-length", type=positive, default=256)
    arguments.add_argument("--microbatch-size", type=positive, default=8)
    arguments.add_argument("--steps", type=positive, default=3, help=f"that count, after {WARMUP_STEPS} that do not")
    arguments.add_argument("--rounds", type=positive, default=5)
    options = arguments.parse_args()
    steps_ms, peak_mib, losses = {mode: [] for mode in MODES}, dict.fromkeys(MODES, 0.0), {}
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as name:
        folder = Path(name)
        write_tokens(folder / "tokens.bin", 400_000, VOCABULARY)
        config = folder / "run.toml"
        write_config(config, folder / "run", folder / "tokens.bin", options.preset, steps=WARMUP_STEPS + options.steps,
                     sequence_length=options.sequence_length, microbatch_size=options.microbatch_size,
                     precision=options.precision)
        config.write_text(config.read_text() + "[parallel]\nlanes = 1\n")
        for _ in range(options.rounds):
            for mode in MODES:
                durations, losses[mode], memory = train(folder, config, mode)
                steps_ms[mode].append(statistics.median(durations))
                peak_mib[mode] = max(peak_mib[mode], memory)
    if any(losses[mode] != losses["none"] for mode in MODES):
        fail(f"the modes do not have the same losses: {losses}")
    base = steps_ms["none"]
    print(f"{options.preset}, {options.precision}, {options.microbatch_size} x {options.sequence_length} tokens, {options.rounds} "
          f"rounds of {options.steps} steps; losses are the same in all modes")
    print("| training.recompute | ms/step, median (range of the rounds) | of none | peak MiB |")
    print("|---|---|---|---|")
    figures = {}
    for mode in MODES:
        ratio = statistics.median(mine / its for mine, its in zip(steps_ms[mode], base))
        figures[mode] = {"step_ms": statistics.median(steps_ms[mode]), "rounds_ms": steps_ms[mode], "ratio": ratio,
                         "peak_memory_mib": peak_mib[mode]}
        print(f"| {mode} | {figures[mode]['step_ms']:.0f} ({min(steps_ms[mode]):.0f} to {max(steps_ms[mode]):.0f}) | {ratio:.2f} | "
              f"{peak_mib[mode]:.0f} |")
    write_json(options.json, "recompute", figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
