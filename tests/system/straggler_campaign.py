"""Runs of two ranks, one of which is made slow from a known step on, from outside: is it named, and after how many steps? For
stragglers_test.py, and for tables:

    python3 tests/system/straggler_campaign.py --runs 135 --record build/stragglers.jsonl     # a line for each run
    python3 tests/system/straggler_campaign.py --runs 0 --record build/stragglers.jsonl       # the table of what is recorded

A case is a place (what the two ranks share), means (what makes the rank slow), a shape (when) and a factor. A program that takes all of
a processor is `factor` times slower with a quota of 1 / factor of one, or where it is stopped for the rest of each 20 ms. Input is slow
by a fault point that sleeps before the first batch of a step.
"""
import argparse
import collections
import contextlib
import dataclasses
import itertools
import json
import os
import random
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import harness

RANKS = LANES = 2
# A step of some 50 ms, so that one is a block of the rule (runtime/health/straggler_rule.h).
OPTIONS = ["--threads=1", "--model.layers=2", "--model.width=64", "--training.sequence_length=128", "--training.microbatch_size=32",
           "--training.microbatches_per_lane=1", "--parallel.tensor_lanes=2", "--checkpoint.every_steps=0",
           "--checkpoint.ram_every_steps=0", "--evaluation.every_steps=0", "--training.steps=100000"]
# Options, and how often a step of a rank asks for a batch.
PLACES = {"data": ([], 1), "tensor": (["--parallel.tensor=2"], 2), "pipeline": (["--parallel.pipeline=2"], 2)}
FACTORS = (1.1, 1.2, 1.5, 2.0, 4.0)
SHAPES = ("constant", "duty", "bursts")
MEANS = ("quota", "stops", "input")
PREPARED, BEGIN = 20, 150  # steps: the rule knows the noise by then
WATCHED = 120  # steps in which nothing is promised; else so many more than half of these
DUTY_S, BURST_S = 2.0, (0.2, 0.6)
PERIOD_S = 0.02   # of stops, which takes turns with a quota of half of it
CALIBRATED = 40   # steps
SHARES = 16 * 1024  # of processors; a group has 1024 where nobody says otherwise
LIMIT_S = 120


@dataclasses.dataclass(frozen=True)
class Case:
    place: str
    means: str
    shape: str
    factor: float
    seed: int

    @property
    def rank(self):
        return self.seed % RANKS

    def promise(self):
        """Steps within which the rank must be named; None where nothing is promised."""
        if self.shape == "constant":
            return 20 if self.factor >= 1.5 else 200 if self.factor >= 1.2 else None
        return 100 if self.factor >= 2 else None

    def watched(self):
        """Steps after which nobody waits for a verdict any more."""
        promised = self.promise()
        return WATCHED if promised is None else promised + WATCHED // 2

    def name(self):
        return f"{self.place}-{self.means}-{self.shape}-{self.factor}-{self.seed}"


def cases(count):
    """So many of all cases, again and again in another order; first those for which something is promised."""
    every = list(itertools.product(PLACES, MEANS, SHAPES, FACTORS))
    found = []
    for round_ in range(-(-count // len(every))):
        random.Random(round_).shuffle(every)
        drawn = [Case(*each, seed=round_ * len(every) + number) for number, each in enumerate(every)]
        found += sorted(drawn, key=lambda case: case.promise() is None)
    return found[:count]


class Quota:
    """Holds a process to a part of a processor while it is on, by a control group of its own (version 1 or 2), which is ahead of other
    programs."""

    def __init__(self, pid, factor):
        self.pid, self.factor = pid, factor
        first = Path("/sys/fs/cgroup/cpu")
        self.is_first = (first / "cpu.cfs_quota_us").exists() or not Path("/sys/fs/cgroup/cgroup.controllers").exists()
        self.group = (first if self.is_first else Path("/sys/fs/cgroup")) / f"holdfast-test-{pid}"
        try:
            self.group.mkdir()
            self.off()
            (self.group / ("cpu.shares" if self.is_first else "cpu.weight")).write_text(str(SHARES if self.is_first else SHARES // 10))
            (self.group / "cgroup.procs").write_text(str(pid))
        except OSError:
            self.close()
            raise

    def on(self):
        period_us = int(PERIOD_S / 2 * 1e6)
        self.write(period_us, int(period_us / self.factor))

    def off(self):
        self.write(int(PERIOD_S / 2 * 1e6), None)

    def write(self, period_us, quota_us):
        if self.is_first:
            (self.group / "cpu.cfs_period_us").write_text(str(period_us))
            (self.group / "cpu.cfs_quota_us").write_text(str(-1 if quota_us is None else quota_us))
        else:
            (self.group / "cpu.max").write_text(f"{'max' if quota_us is None else quota_us} {period_us}")

    def close(self):
        with contextlib.suppress(OSError):
            (self.group.parent / "cgroup.procs").write_text(str(self.pid))
        until = time.monotonic() + 5
        while self.group.exists() and time.monotonic() < until:
            with contextlib.suppress(OSError):
                self.group.rmdir()
                return
            time.sleep(0.02)


def why_no_quota():
    """Why a process cannot be held to a part of a processor here; None when it can."""
    try:
        Quota(os.getpid(), 1.0).close()
        return None
    except OSError as error:
        return f"control groups for processors cannot be made: {error}"


class Stops:
    """Stops a process for a part of each 20 ms. A process of its own does it, ahead of all others where that is permitted."""

    def __init__(self, pid, factor):
        self.pid = pid
        words = [sys.executable, __file__, "stops", str(pid), str(PERIOD_S * (1 - 1 / factor))]
        self.stopper = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
        self.stopper.stdout.read(1)  # it is ready

    def on(self):
        self.stopper.stdin.write(b"+")

    def off(self):
        self.stopper.stdin.write(b"-")

    def close(self):
        self.stopper.kill()
        self.stopper.communicate()
        harness.kill(self.pid, signal.SIGCONT)


def stops_main(pid, stopped_s):
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    os.write(1, b".")
    while os.read(0, 1) == b"+":
        turn_s = time.monotonic()
        while not select.select([0], [], [], 0)[0]:
            harness.kill(pid, signal.SIGSTOP)
            time.sleep(max(0.0, turn_s + stopped_s - time.monotonic()))
            harness.kill(pid, signal.SIGCONT)
            turn_s += PERIOD_S
            time.sleep(max(0.0, turn_s - time.monotonic()))
        os.read(0, 1)


class Shaped:
    """Turns what makes a process slow on and off as the case says."""

    def __init__(self, slower, case):
        self.slower, self.case = slower, case
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self.work)
        self.thread.start()

    def work(self):
        chance = random.Random(self.case.seed)
        on = True
        while not self.ended.is_set():
            (self.slower.on if on else self.slower.off)()
            seconds = {"constant": None, "duty": DUTY_S, "bursts": chance.uniform(*BURST_S)}[self.case.shape]
            self.ended.wait(seconds)
            on = not on

    def close(self):
        self.ended.set()
        self.thread.join()


def slow_input(case, step_ms):
    """Fault points. Steps are on and off as for the other means, where a step takes so long when nothing is slow."""
    hits = PLACES[case.place][1]
    chance = random.Random(case.seed)
    sleep_ms = max(1, round((case.factor - 1) * step_ms))
    faults, step, on = [], BEGIN + 1, True
    while step <= BEGIN + case.watched():
        seconds = {"constant": 1e9, "duty": DUTY_S, "bursts": chance.uniform(*BURST_S)}[case.shape]
        count = min(case.watched(), max(1, round(1e3 * seconds / step_ms)))
        if on:
            faults += [f"data.before_batch@{hits * (each - 1) + 1}:{case.rank}=sleep:{sleep_ms}" for each in range(step, step + count)]
        step, on = step + count, not on
    return ",".join(faults)


def wait_for(start, condition):
    """Looks now and then only: the processors are for the ranks."""
    until = time.monotonic() + LIMIT_S
    while not condition():
        if not start.alive() or time.monotonic() > until:
            raise AssertionError(f"the run has ended or takes too long\n{start.tail()}")
        time.sleep(0.05)


def told_straggler(run):
    with open(run.directory / "events.jsonl", "rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 65536))
        return b'"event":"straggler"' in file.read()


def steps_of(run):
    return [(event["time_us"], event["step"]) for event in run.events("step")]


def calibrate(scene, place):
    """How long a step takes where nothing is slow, in milliseconds."""
    run = scene.run(f"calibrated-{place}", [*OPTIONS, *PLACES[place][0]])
    start = run.start(RANKS)
    try:
        wait_for(start, lambda: run.last_step() >= 2 * CALIBRATED)
        steps = dict((step, time_us) for time_us, step in steps_of(run))
        return (steps[2 * CALIBRATED] - steps[CALIBRATED]) / CALIBRATED / 1e3
    finally:
        start.kill_all()
        run.remove()


def factor_of(run, rank, begin):
    """Mean own time of the rank by that of the other one, since the step, by the same before; None where too little is known."""
    sums = {False: [0.0, 0.0], True: [0.0, 0.0]}
    path = run.directory / "rank_times.jsonl"
    for line in path.read_text().splitlines() if path.exists() else []:
        row = json.loads(line) if line.endswith("}") else {}
        if "times" not in row or row["last"] > begin >= row["first"] or row["first"] < 20:
            continue
        for each in range(RANKS):
            sums[row["first"] > begin][each == rank] += sum(row["times"][each][:-1]) * (row["last"] - row["first"] + 1)
    (other_before, before), (other, own) = sums[False], sums[True]
    return own / other / (before / other_before) if other > 0 and before > 0 and other_before > 0 else None


def measure(scene, case, step_ms):
    """Makes the run of a case, until a rank is named or the watched steps have gone by. A line for the record."""
    run = scene.run(case.name(), [*OPTIONS, *PLACES[case.place][0]])
    start = run.start(RANKS, faults=slow_input(case, step_ms) if case.means == "input" else "")
    begin = BEGIN
    with contextlib.ExitStack() as stack:
        stack.callback(start.kill_all)
        wait_for(start, lambda: run.last_step() >= PREPARED)
        # Both ranks alike are in groups of their own from here on.
        groups = [Quota(start.rank_pid(rank), case.factor) for rank in range(RANKS)]
        for group in groups:
            stack.callback(group.close)
        slower = groups[case.rank]
        if case.means == "stops":
            slower = Stops(slower.pid, case.factor)
            stack.callback(slower.close)
        wait_for(start, lambda: told_straggler(run) or run.last_step() >= BEGIN)
        if case.means != "input" and not told_straggler(run):
            begin = run.last_step()
            stack.callback(Shaped(slower, case).close)
        wait_for(start, lambda: told_straggler(run) or run.last_step() >= begin + case.watched())
    steps, found = steps_of(run), run.events("straggler")
    line = {**dataclasses.asdict(case), "rank": case.rank, "step_ms": round(step_ms, 1), "begin": begin,
            "achieved": factor_of(run, case.rank, begin), "named": None, "after": None}
    if found:
        first = found[0]
        told = max((step for time_us, step in steps if time_us <= first["time_us"]), default=0)
        line |= {"named": first["rank"], "after": told - begin, "of": first["of"], "achieved": first["factor"]}
    run.remove()
    return line


def verdict_of(line):
    """right, wrong (another rank), early (a rank that others made slow before this did), late (named, but later than promised), missed (not
    named, but that was promised) or open (not named)."""
    case = Case(*(line[name] for name in ("place", "means", "shape", "factor", "seed")))
    if line["named"] is None:
        return "missed" if case.promise() else "open"
    if line["after"] < 0:
        return "early"
    if line["named"] != line["rank"]:
        return "wrong"
    return "late" if case.promise() and line["after"] > case.promise() else "right"


def table_of(lines):
    """Markdown: after how many steps the rank was named, by case; `-` where it was not."""
    cells = collections.defaultdict(list)
    for line in lines:
        mark = "" if verdict_of(line) in ("right", "open") else f" {verdict_of(line)}"
        after = "-" if line["named"] is None else str(line["after"])
        achieved = "" if line["achieved"] is None else f" ({line['achieved']:.2f})"
        cells[line["place"], line["means"], line["shape"], line["factor"]].append(f"{after}{achieved}{mark}")
    text = ["| place | means | shape | " + " | ".join(f"factor {each:g}" for each in FACTORS) + " |", "|---" * (3 + len(FACTORS)) + "|"]
    for row in itertools.product(PLACES, MEANS, SHAPES):
        text.append(f"| {' | '.join(row)} | " + " | ".join(", ".join(cells[(*row, factor)]) for factor in FACTORS) + " |")
    return "\n".join(text)


def campaign(count, record=None, skipped=0):
    """Makes so many runs, and returns their lines; `record` gets each at once."""
    lines = []
    with harness.Scene(lanes=LANES) as scene:
        step_ms = {place: calibrate(scene, place) for place in PLACES} if count else {}
        for case in cases(skipped + count)[skipped:]:
            lines.append(measure(scene, case, step_ms[case.place]))
            print(f"{case.name()}: {verdict_of(lines[-1])} {json.dumps(lines[-1])}", flush=True)
            if record is not None:
                with open(record, "a") as file:
                    file.write(json.dumps(lines[-1]) + "\n")
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, required=True)
    parser.add_argument("--record", type=Path, required=True, help="continues behind the lines that it has")
    arguments = parser.parse_args()
    if reason := why_no_quota():
        sys.exit(reason)
    known = [json.loads(line) for line in arguments.record.read_text().splitlines()] if arguments.record.exists() else []
    lines = known + campaign(arguments.runs, arguments.record, len(known))
    print(table_of(lines))
    print(dict(collections.Counter(map(verdict_of, lines))))


if __name__ == "__main__":
    if sys.argv[1:2] == ["stops"]:
        stops_main(int(sys.argv[2]), float(sys.argv[3]))
    main()
