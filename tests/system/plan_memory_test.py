"""A run in exactly the memory that `holdfast plan` states: a control group that holds no more than the plan of its ranks and of their
processes. It trains, loses a rank, is started again, and ends with the right bits; nobody is killed for memory. HOLDFAST names the
program.
"""
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
import unittest
from pathlib import Path

import harness

RANKS = 3
STEPS = 9
CONFIG = harness.ROOT / "configs/chaos/llama-15m.toml"


class MemoryGroup:
    """Control group whose processes together have so many bytes, swap included where there is any (version 1 or 2)."""

    def __init__(self, name, limit_bytes):
        first = Path("/sys/fs/cgroup/memory")
        self.first = first.is_dir()
        self.folder = (first if self.first else Path("/sys/fs/cgroup")) / f"holdfast-test-{os.getpid()}-{name}"
        try:
            if not self.first:
                (self.folder.parent / "cgroup.subtree_control").write_text("+memory")
            self.folder.mkdir()
            self.write("memory.limit_in_bytes" if self.first else "memory.max", limit_bytes)
        except OSError as error:
            with contextlib.suppress(OSError):
                self.folder.rmdir()
            raise unittest.SkipTest(f"no control group for memory can be made here: {error}") from None
        for name, value in [("memory.memsw.limit_in_bytes", limit_bytes)] if self.first else [("memory.swap.max", 0)]:
            with contextlib.suppress(OSError):
                self.write(name, value)  # a machine without swap may have no such file

    def write(self, name, value):
        (self.folder / name).write_text(str(value))

    def command(self, words):
        """Returns the command whose process, and all that it starts, are in the group."""
        return ["sh", "-c", f'echo $$ > "{self.folder}/cgroup.procs" && exec "$@"', "sh", *words]

    def kills(self):
        """Returns how many processes were killed because there was no memory left."""
        text = (self.folder / ("memory.oom_control" if self.first else "memory.events")).read_text()
        return int(re.search(r"^oom_kill (\d+)$", text, re.MULTILINE)[1])

    def held_bytes(self):
        """Returns the bytes that cannot be dropped: those of processes, and what lies in /dev/shm."""
        stat = dict(line.split() for line in (self.folder / "memory.stat").read_text().splitlines())
        names = ("total_rss", "total_shmem") if self.first else ("anon", "shmem")
        return sum(int(stat[name]) for name in names)

    def close(self):
        limit = time.monotonic() + 10
        while self.folder.exists() and time.monotonic() < limit:
            with contextlib.suppress(OSError):
                self.folder.rmdir()
            time.sleep(0.05)


class PlanMemoryTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scene = harness.Scene()
        cls.addClassCleanup(cls.scene.close)
        # Short sequences: what a rank holds is what has the size of the model, and that alone is here to be held.
        cls.words = [f"--training.steps={STEPS}", "--training.sequence_length=16", "--threads=1",
                     f'--data.sources=[{{path = "{cls.scene.text}", format = "text"}}]']

    def planned_bytes(self, words, ranks=RANKS):
        command = [str(harness.PROGRAM), "plan", str(CONFIG), "--ranks", str(ranks), "--json", "--peak-tflops", "1", "--memory-gbs", "10"]
        plan = json.loads(subprocess.run([*command, *words], check=True, capture_output=True, text=True).stdout)["layout"]
        return ranks * (plan["memory_bytes"] + plan["process_bytes"]), plan

    def launch_words(self, run, ranks):
        return [str(harness.PROGRAM), "launch", "-np", str(ranks), str(CONFIG), f"--run.directory={run.directory}", *run.overrides]

    def start(self, run, group=None):
        words = self.launch_words(run, RANKS)
        return run.start_command(group.command(words) if group else words)

    def kill_and_sample(self, start, run, group, step):
        """Kills rank 1 behind the step. Returns how much the group held at most until the run ended, and whether there was a kill."""
        most, killed = 0, False
        while start.alive():
            most = max(most, group.held_bytes())
            if not killed and run.last_step() >= step:
                harness.kill(start.rank_pid(1), signal.SIGKILL)
                killed = True
            time.sleep(0.005)
        return most, killed

    def test_a_run_in_exactly_that(self):
        """The run fits with the saves that the config makes by itself."""
        self.train_in_exactly_that("default", self.words)

    @harness.full
    def test_a_run_that_saves_often_in_exactly_that(self):
        """So does one with snapshots and checkpoints beside many steps."""
        self.train_in_exactly_that("often", [*self.words, "--checkpoint.ram_every_steps=1", "--checkpoint.every_steps=4"])

    def train_in_exactly_that(self, name, words):
        limit_bytes, plan = self.planned_bytes(words)
        group = MemoryGroup(name, limit_bytes)
        self.addCleanup(group.close)
        run = self.scene.run(name, words)
        start = self.start(run, group)
        most, killed = self.kill_and_sample(start, run, group, step=5)
        printed = start.expect_exit(0)
        print(f"\n{name}: at most {most / 2**20:.0f} MiB held of {limit_bytes / 2**20:.0f} planned, {RANKS} x "
              f"({plan['memory_bytes'] / 2**20:.0f} + {plan['process_bytes'] / 2**20:.0f})", file=sys.stderr, flush=True)
        self.assertTrue(killed)
        self.assertEqual(group.kills(), 0, printed)
        self.assertNotIn("no RAM snapshots", printed)
        recovery, = [event for event in run.events("recovery") if event.get("reason") != "growth"][:1]
        self.assertEqual(recovery["resumed_from"], "ram", printed)
        self.assertLessEqual(most, limit_bytes)
        self.assertGreater(most, 0.7 * limit_bytes, "the plan says far too much")
        self.assertEqual(run.digest(), self.reference(), printed)
        harness.expect_no_snapshots(run)

    @harness.full
    def test_half_of_the_ranks_are_lost_and_made_up_for(self):
        """The rank that is left takes twice the memory, and gives half of it to the new one; meanwhile there is never more of it."""
        steps = STEPS + 6  # from the first thought of a growth to the growth takes some
        longer = [*self.words, f"--training.steps={steps}"]
        words = [*longer, "--checkpoint.ram_every_steps=1", "--elastic.grow_after=1s"]
        limit_bytes, _ = self.planned_bytes(words, ranks=2)
        group = MemoryGroup("half", limit_bytes)
        self.addCleanup(group.close)
        run = self.scene.run("half", words)
        slow = harness.slow_steps(3, count=steps, milliseconds=1500)  # a growth takes seconds on a busy machine
        start = run.start_command(group.command(self.launch_words(run, 2)), faults=slow)
        most, killed = self.kill_and_sample(start, run, group, step=4)
        self.assertTrue(killed)
        printed = start.expect_exit(0)
        print(f"\nat most {most / 2**20:.0f} MiB held of {limit_bytes / 2**20:.0f} planned", file=sys.stderr, flush=True)
        self.assertEqual(group.kills(), 0, printed)
        self.assertEqual([event.get("reason") for event in run.events("recovery")], ["loss", "growth"], printed)
        self.assertNotIn("RAM snapshots go on with two slots", printed)
        undisturbed = self.scene.run("longer", longer)
        self.start(undisturbed).expect_exit(0)
        self.assertEqual(run.digest(), undisturbed.digest(), printed)

    def test_a_run_in_less(self):
        """Two of the three snapshots have no room: the ranks read the limit of their group, and go without RAM snapshots."""
        planned, plan = self.planned_bytes(self.words)
        group = MemoryGroup("less", planned - 2 * plan["shared_memory_bytes"] // 3)
        self.addCleanup(group.close)
        run = self.scene.run("less", [*self.words, "--elastic.memory_timeout=1s"])
        printed = self.start(run, group).expect_exit(0)
        self.assertIn("no RAM snapshots: host ", printed)
        self.assertEqual(group.kills(), 0, printed)
        self.assertEqual(run.digest(), self.reference(), printed)

    def reference(self):
        """Returns the digest of the same run where nothing is scarce."""
        run = self.scene.run("undisturbed", self.words)
        if not run.finished():
            self.start(run).expect_exit(0)
        return run.digest()


if __name__ == "__main__":
    harness.main(at_once=1)
