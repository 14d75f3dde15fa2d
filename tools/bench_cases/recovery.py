#!/usr/bin/env python3
"""bench recovery: measures how long a run pauses for a rank that dies, for one that comes back, and for a start.

One run trains a preset on several ranks under mpirun. In every round one of its ranks (never the leader, unless
--leader is given) is killed with SIGKILL in the middle of a step, the others continue in place, and the run grows back. After the
rounds all ranks are killed and the run is started again. Each figure is beyond one ordinary step, the median one with as many ranks
as there are then:

  next step     from the kill to the end of the first step that was made since, also one that is computed again
  again         from the kill to the end of the step during which the rank died
  growth        from the last step before the growth to the first one after it
  start         from the start of mpirun to the end of the first step, of a new run and of one that continues

The phases are those of the recovery and start events (docs/watchdog.md): shrink, plan, load (memory, kernels, state), replay (the
first step). Beside them stands what memory allows: the bytes of state that the survivors must fill again (weights and two moments in
fp32), over the rate at which all processors copy memory.
"""
import ctypes
import json
import multiprocessing
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from _common import HOLDFAST, MPIRUN, events, fail, parser, positive, write_config, write_json, write_tokens

VOCABULARIES = {"llama": 32_000, "gpt2": 50_257}
SEQUENCE, STEPS = 64, 1_000_000
WAIT_S = 120
SNAPSHOTS = {"ram": 'every_steps = 0\nram_every_steps = 1\nreplicas = "off"\n', "disk": 'every_steps = 5\nram_every_steps = 0\n', "default": ""}


class Run:
    """One run directory, and one start of it at a time."""

    def __init__(self, folder, options):
        self.directory, self.options, self.process = folder / "run", options, None
        self.log, self.config, tokens = folder / "log.txt", folder / "run.toml", folder / "tokens.bin"
        vocabulary = VOCABULARIES[options.preset.partition("-")[0]]
        write_tokens(tokens, 400_000, vocabulary)
        write_config(self.config, self.directory, tokens, options.preset, checkpoint=SNAPSHOTS[options.snapshots], steps=STEPS,
                     sequence_length=SEQUENCE, microbatch_size=1, precision=options.precision)
        self.config.write_text(f"threads = {options.threads}\n{self.config.read_text()}[parallel]\nlanes = {options.ranks}\n"
                               "[elastic]\ngrow_after = \"1s\"\n[evaluation]\nevery_steps = 0\n")

    def start(self):
        words = [MPIRUN, "-np", str(self.options.ranks), HOLDFAST, "train", str(self.config), *self.options.override]
        with open(self.log, "ab") as log:
            self.begun_s = time.time()
            self.process = subprocess.Popen(words, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)

    def events(self, name):
        return [event for event in events(self.directory) if event["event"] == name]

    def ranks(self):
        """Returns the pids of the ranks, the leader's first."""
        found = []
        for entry in Path("/proc").iterdir():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if entry.name.isdigit() and words[0] == HOLDFAST.encode() and str(self.config).encode() in words:
                found.append(int(entry.name))
        return sorted(found)

    def wait_for(self, what, condition):
        """Returns what condition() returns as soon as it is true."""
        end_s = time.monotonic() + WAIT_S
        while time.monotonic() < end_s:
            result = condition()
            if result:
                return result
            if self.process.poll() is not None:
                fail(f"the run ended with {self.process.returncode} before {what}: {self.log.read_text()[-3000:]}")
            time.sleep(0.005)
        fail(f"no {what} within {WAIT_S} s: {self.log.read_text()[-3000:]}")

    def wait_for_steps(self, count, after):
        """Waits until there are `count` step events after the first `after` ones, and returns all after those."""
        def more():
            steps = self.events("step")
            return steps[after:] if len(steps) >= after + count else None
        return self.wait_for(f"step {after + count}", more)

    def end(self):
        """Ends the ranks with SIGKILL, and waits for mpirun."""
        for pid in self.ranks():
            os.kill(pid, signal.SIGKILL)
        try:
            self.process.wait(WAIT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        while self.ranks():
            time.sleep(0.01)

    def remove(self):
        if self.process is not None and self.process.poll() is None:
            self.end()
        subprocess.run([HOLDFAST, "clean", str(self.directory)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)


def median_step_ms(steps):
    """Returns the median duration of the steps without the first one, which is the slow one."""
    return statistics.median(step["step_duration_ms"] for step in steps[1:])


def phases_of(event):
    return {name: event[f"{name}_ms"] for name in ("shrink", "plan", "load", "replay")}


def kill_one(run, options, generator):
    """Kills a rank, and measures the recovery and the growth after it."""
    before = len(run.events("step"))
    steady = run.wait_for_steps(options.steps, before)
    full_ms = median_step_ms(steady)
    ranks = run.ranks()
    if len(ranks) != options.ranks:
        fail(f"{len(ranks)} ranks where {options.ranks} were expected")
    victim = generator.choice(ranks if options.leader else ranks[1:])
    time.sleep(generator.random() * full_ms / 1e3)
    seen = len(run.events("step"))
    recoveries = len(run.events("recovery"))
    killed_us = time.time() * 1e6
    os.kill(victim, signal.SIGKILL)
    run.wait_for("the recovery", lambda: len(run.events("recovery")) > recoveries)
    recovery = run.events("recovery")[recoveries]
    # A step may have been reported between the count and the kill.
    steps = [step for step in run.wait_for_steps(4, seen) if step["time_us"] > killed_us]
    last = max(step["step"] for step in run.events("step") if step["time_us"] <= killed_us)
    fewer_ms = statistics.median(step["step_duration_ms"] for step in steps[1:4])
    reached = run.wait_for(f"step {last + 1} after the kill", lambda: next(
        (step for step in run.events("step")[seen:] if step["time_us"] > killed_us and step["step"] > last), None))
    death = {"next_step_ms": (steps[0]["time_us"] - killed_us) / 1e3 - fewer_ms, "again_ms": (reached["time_us"] - killed_us) / 1e3 - fewer_ms,
             "noticed_ms": (recovery["time_us"] - killed_us) / 1e3 - recovery["duration_ms"], "lost_steps": recovery["lost_steps"],
             "from": recovery["resumed_from"], "step_ms": fewer_ms, **phases_of(recovery)}
    run.wait_for("the growth", lambda: len(run.events("recovery")) > recoveries + 1)
    growth = run.events("recovery")[recoveries + 1]
    if growth["reason"] != "growth":
        fail(f"a {growth['reason']} where a growth was expected")
    all_steps = run.events("step")
    first = next(i for i, step in enumerate(all_steps) if step["time_us"] >= growth["time_us"] - growth["replay_ms"] * 1e3)
    gap_ms = (all_steps[first]["time_us"] - all_steps[first - 1]["time_us"]) / 1e3
    return {"death": death, "growth": {"next_step_ms": gap_ms - full_ms, "step_ms": full_ms, **phases_of(growth)}}


def start_once(run):
    """Measures the time from the start of mpirun to the end of the first step."""
    before = len(run.events("step"))
    starts = len(run.events("start"))
    run.start()
    step = run.wait_for_steps(1, before)[0]
    start = run.events("start")[starts]
    phases = {name: start[f"{name}_ms"] for name in ("join", "worker", "state", "gemm_peak")}
    return {"total_ms": step["time_us"] / 1e3 - run.begun_s * 1e3, "step_ms": step["step_duration_ms"],
            "until_start_ms": start["time_us"] / 1e3 - run.begun_s * 1e3, **phases}


def copy_seconds(size):
    source, target = (ctypes.create_string_buffer(size) for _ in range(2))
    ctypes.memmove(target, source, size)
    begin = time.monotonic()
    for _ in range(4):
        ctypes.memmove(target, source, size)
    return (time.monotonic() - begin) / 4


def copy_rate():
    """Returns the bytes a second that all processors copy from memory to memory."""
    size, count = 128 << 20, len(os.sched_getaffinity(0))
    with multiprocessing.Pool(count) as pool:
        return size * count / max(pool.map(copy_seconds, [size] * count))


def percentile(values, share):
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def print_kind(name, rounds, keys):
    for key in keys:
        values = [each[key] for each in rounds]
        print(f"  {name + ', ' + key.removesuffix('_ms').replace('_', ' '):<28}{statistics.median(values):10.0f} ms"
              f"{percentile(values, 0.99):10.0f} ms", flush=True)


def main():
    arguments = parser(__doc__)
    arguments.add_argument("--preset", default="llama-15m")
    arguments.add_argument("--precision", default="bf16", choices=["fp32", "bf16"])
    arguments.add_argument("--ranks", type=positive, default=3)
    arguments.add_argument("--threads", type=positive, default=1)
    arguments.add_argument("--rounds", type=positive, default=5, help="deaths, each with its growth")
    arguments.add_argument("--steps", type=positive, default=6, help="that are made before each death")
    arguments.add_argument("--seed", type=int, default=1)
    arguments.add_argument("--leader", action="store_true", help="the leader may be the one that dies")
    arguments.add_argument("--snapshots", choices=SNAPSHOTS, default="default",
                           help="ram: at every step; disk: at every fifth step, none in RAM; default: what a config without keys gets")
    arguments.add_argument("--override", action="append", default=[], metavar="--KEY=VALUE")
    options = arguments.parse_args()
    if options.ranks < 2:
        fail("a run whose only rank dies does not recover in place: --ranks is at least 2")
    generator = random.Random(options.seed)
    rate = copy_rate()
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as name:
        run = Run(Path(name), options)
        try:
            start = start_once(run)
            rounds = [kill_one(run, options, generator) for _ in range(options.rounds)]
            run.wait_for_steps(2, len(run.events("step")))
            run.end()
            restart = start_once(run)
            parameters = run.events("start")[0]["parameters"]
        finally:
            run.remove()
    state_bytes = 12 * parameters
    print(f"{options.preset}, {options.precision}, {options.ranks} ranks x {options.threads} threads, {options.rounds} deaths and growths; "
          f"beyond one ordinary step ({rounds[0]['growth']['step_ms']:.0f} ms)")
    print(f"  {'':<28}{'median':>10}   {'p99':>10}")
    phases = ["shrink_ms", "plan_ms", "load_ms", "replay_ms"]
    plain = [{key if key.endswith("_ms") or key in ("from", "lost_steps") else key + "_ms": value for key, value in each["death"].items()}
             for each in rounds]
    print_kind("death", plain, ["next_step_ms", "again_ms", "noticed_ms", *phases])
    grown = [{key if key.endswith("_ms") else key + "_ms": value for key, value in each["growth"].items()} for each in rounds]
    print_kind("growth", grown, ["next_step_ms", *phases])
    for kind, figures in (("start", start), ("restart", restart)):
        parts = ", ".join(f"{key.removesuffix('_ms').replace('_', ' ')} {value:.0f}" for key, value in figures.items() if key != "total_ms")
        print(f"  {kind + ' to the first step':<28}{figures['total_ms']:10.0f} ms  ({parts})")
    print(f"  {'limit: state over memory':<28}{state_bytes / rate * 1e3:10.0f} ms  ({state_bytes / 1e6:.0f} MB at {rate / 1e9:.1f} GB/s)")
    write_json(options.json, "recovery", {"rounds": rounds, "start": start, "restart": restart, "state_bytes": state_bytes,
                                          "copy_bytes_per_s": rate})
    return 0


if __name__ == "__main__":
    sys.exit(main())
