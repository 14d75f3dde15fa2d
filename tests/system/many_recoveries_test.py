"""One process goes through many deaths and growths: its memory, descriptors, threads and shared memory stay what they were.

A rank of a small model is killed again and again, and the run grows back each time; looked at is the leader, which is never killed.
Memory counts from WARM_UP recoveries on, because the first ones meet the sizes that stay. Open MPI keeps what it has for every
process that it has ever met, frees no communicator while the run goes on (parallel/mpi/mpi_world.h), and loses the buffer in which
it was about to receive when the TCP connection of a dead process ended: as many bytes of it are in use as the longest message had
that came without a rendezvous. So the same calls and messages are made without Holdfast (tests/parallel/mpi/growth_memory.h), and
what that costs for each growth and death is allowed.

HOLDFAST_TEST_MANY_RECOVERIES: how many deaths, each with its growth (tools/test --long sets more).
"""
import os
import re
import signal
import subprocess
import time
import unittest
from pathlib import Path

import harness

DEATHS = int(os.environ.get("HOLDFAST_TEST_MANY_RECOVERIES") or 20)
WARM_UP = max(3, DEATHS // 10)
OWN_BYTES = 20_000         # of a recovery, over what Open MPI keeps
LATE_BYTES = 5e6           # what a short run meets for the first time after WARM_UP: a pool of TCP buffers has 4.2 MB
MESSAGE_BYTES = [1280, 16640, 32768, 49152, 65792, 81920]  # the long ones of two ranks of this model
MPI_GROWTHS = min(200, max(30, DEATHS // 5))
SETTLE_S = 30


def facts(pid):
    """What a process holds now."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return {"anonymous": int(status["RssAnon"].split()[0]) * 1024, "descriptors": len(os.listdir(f"/proc/{pid}/fd")),
            "threads": int(status["Threads"])}


def mpi_bytes(scene):
    """What Open MPI keeps of each death and growth."""
    told = subprocess.run([*harness.command("ft", 1), str(harness.PROGRAM.parent / "test_parallel_mpi"), "memory",
                           str(MPI_GROWTHS), *map(str, MESSAGE_BYTES)], env=scene.environment, capture_output=True, text=True)
    found = re.search(r"(-?\d+) bytes each", told.stdout)
    assert found, told.stdout + told.stderr
    return int(found[1])


class Growths:
    """Counts the growths in a log that has many more steps; every line is read once."""

    def __init__(self, run):
        self.path, self.read, self.rest, self.count = run.directory / "events.jsonl", 0, b"", 0

    def look(self):
        with open(self.path, "rb") as log:
            log.seek(self.read)
            text = log.read()
        self.read += len(text)
        *lines, self.rest = (self.rest + text).split(b"\n")
        self.count += sum(b'"reason":"growth"' in line for line in lines)
        return self.count


class ManyRecoveriesTest(unittest.TestCase):
    def test_nothing_grows(self):
        with harness.Scene(steps=1_000_000) as scene:
            run = scene.run("many")
            start = run.start(2, "ft", ["--checkpoint.ram_every_steps=1", "--checkpoint.every_steps=0", "--elastic.grow_after=500ms", "--elastic.settle_after=0s",
                                        "--training.microbatch_size=1", "--training.sequence_length=16", "--evaluation.every_steps=0",
                                        "--log.every_steps=1000000", "--watchdog.floor=30s"])
            self.assertTrue(start.wait_for_step(3), start.tail())
            leader = start.rank_pid(0)
            looks, growths = [], Growths(run)
            for death in range(DEATHS):
                others = [pid for pid in start.ranks() if pid != leader]
                self.assertEqual(len(others), 1, start.tail())
                harness.kill(others[0], signal.SIGKILL)
                grown = harness.wait_until(lambda: growths.look() > death, SETTLE_S, lambda: not start.alive(), "nobody came back",
                                           start.tail)
                self.assertTrue(grown, start.tail())
                time.sleep(0.1)  # what ends in the background
                looks.append(facts(leader))
            first, last = looks[WARM_UP], looks[-1]
            grown_bytes = last["anonymous"] - first["anonymous"]
            recoveries = DEATHS - 1 - WARM_UP
            start.kill_all()
            of_mpi = mpi_bytes(scene)
            print(f"\n{DEATHS} deaths and growths: {first} -> {last}, {grown_bytes / recoveries / 1e3:.0f} kB each; "
                  f"{of_mpi / 1e3:.0f} kB with Open MPI alone")
            self.assertLessEqual(grown_bytes, max(LATE_BYTES, recoveries * OWN_BYTES) + recoveries * of_mpi)
            for what in ("descriptors", "threads"):
                # The least of some looks: a save may be under way in one of them.
                self.assertLessEqual(*(min(look[what] for look in some) for some in (looks[-5:], looks[WARM_UP:WARM_UP + 5])), what)


if __name__ == "__main__":
    harness.main()
