#!/usr/bin/env python3
"""bench startup: from the start of `holdfast train` to its first step, and where that time goes.

The run is llama-15m in fp32 with 4 x 64 tokens a step in one lane on made-up tokens, in an empty run directory.
"""
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from _common import HOLDFAST, events, fail, parser, positive, write_config, write_json, write_tokens

TARGET_S = 1.0
PHASES = {  # of the start event
    "join_ms": "joined: config, data, start point",
    "worker_ms": "memory and kernels",
    "state_ms": "initial weights",
    "gemm_peak_ms": "rate of one large product",
}


def start_once(folder, config):
    """Milliseconds by phase, in order."""
    run = folder / "run"
    shutil.rmtree(run, ignore_errors=True)
    begin_s = time.time()
    outcome = subprocess.run([HOLDFAST, "train", str(config)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                             text=True, check=False)
    if outcome.returncode != 0:
        fail(f"the run ended with exit code {outcome.returncode}: {outcome.stdout}")
    start = next(event for event in events(run) if event["event"] == "start")
    step = next(event for event in events(run) if event["event"] == "step")
    total = step["time_us"] / 1e3 - begin_s * 1e3
    until_start = start["time_us"] / 1e3 - begin_s * 1e3
    named = {name: start[key] for key, name in PHASES.items()}
    return {"loading the program": until_start - sum(named.values()), **named,
            "run directory, first batch": total - until_start - step["step_duration_ms"],
            "the first step": step["step_duration_ms"], "total": total}


def main():
    arguments = parser(__doc__)
    arguments.add_argument("--repeat", type=positive, default=5)
    options = arguments.parse_args()
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as name:
        folder = Path(name)
        write_tokens(folder / "tokens.bin", 100_000, 32000)
        config = folder / "run.toml"
        write_config(config, folder / "run", folder / "tokens.bin", "llama-15m", steps=1, sequence_length=64,
                     microbatch_size=4)
        config.write_text(config.read_text() + "[parallel]\nlanes = 1\n")
        rounds = [start_once(folder, config) for _ in range(options.repeat)]
    medians = {phase: statistics.median(each[phase] for each in rounds) for phase in rounds[0]}
    total = medians.pop("total")
    print(f"llama-15m, fp32, 4x64 tokens: median of {options.repeat} starts")
    for phase, milliseconds in medians.items():
        print(f"  {phase:<36}{milliseconds:8.1f} ms")
    print(f"  {'start to the end of the first step':<36}{total:8.1f} ms (target: below {TARGET_S * 1e3:.0f})")
    write_json(options.json, "startup", {"phases_ms": medians, "total_ms": total, "rounds": rounds})
    return 0


if __name__ == "__main__":
    sys.exit(main())
