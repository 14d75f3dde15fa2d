"""No false alarm: a long run of tiny steps on twice as many ranks as there are processors, whose disk is slow and whose ranks
are late now and then, ends without a fault; and where ranks are killed, held to a part of a processor and of a disk, nobody is
ended but those.

HOLDFAST_TEST_FALSE_ALARM_STEPS: so many steps in all (10,000 when left out), in runs of at most 10,000; HOLDFAST_TEST_FALSE_ALARM_FROM:
from this one on (0 when left out), which goes on with an earlier time: every run has other ranks late at other places.

HOLDFAST_TEST_FALSE_ALARM_PRESET, _PRESET_RANKS, _PRESET_STEPS, _PRESET_KILLS: runs of that preset in the default config, with so many
steps and kills in all, instead of one run of a tiny model; _PRESET_RUN_STEPS (100 when left out) in each run, _PRESET_SEQUENCE (64)
tokens in a sequence. HOLDFAST_TEST_FALSE_ALARM_DISK_MIBS: what the disk of those may write in a second (8 when left out); a rank that was
killed is made up for when a save has got there.
"""
import contextlib
import os
import random
import re
import signal
import time
import unittest
from pathlib import Path

import harness

STEPS = int(os.environ.get("HOLDFAST_TEST_FALSE_ALARM_STEPS", "10000"))
FROM = int(os.environ.get("HOLDFAST_TEST_FALSE_ALARM_FROM", "0"))
RUN_STEPS = 10_000
RUN_LIMIT_S = 900
MOST_RANKS = 8
RANKS = max(2, min(MOST_RANKS, 2 * os.cpu_count()))
FLOOR_MS = 2000
DEFAULT_FLOOR_S = 5  # watchdog.floor where no config gives it
SAVE_EVERY = 500
# A step takes some milliseconds, so after five of them the floor is the deadline of every later one.
OPTIONS = ["--model.layers=1", "--model.heads=1", "--model.kv_heads=1", "--model.width=16", "--training.sequence_length=8",
           "--training.microbatch_size=1", "--training.microbatches_per_lane=1", f"--parallel.lanes={RANKS}", "--threads=1",
           f"--checkpoint.every_steps={SAVE_EVERY}", "--checkpoint.ram_every_steps=10", "--checkpoint.keep=1",
           "--evaluation.every_steps=1000", f"--watchdog.floor={FLOOR_MS}ms"]


PRESET = os.environ.get("HOLDFAST_TEST_FALSE_ALARM_PRESET", "")
PRESET_RANKS = int(os.environ.get("HOLDFAST_TEST_FALSE_ALARM_PRESET_RANKS", "3"))
PRESET_STEPS = int(os.environ.get("HOLDFAST_TEST_FALSE_ALARM_PRESET_STEPS", "100"))
PRESET_KILLS = int(os.environ.get("HOLDFAST_TEST_FALSE_ALARM_PRESET_KILLS", "4"))
PRESET_RUN_STEPS = int(os.environ.get("HOLDFAST_TEST_FALSE_ALARM_PRESET_RUN_STEPS", "100"))
PRESET_SEQUENCE = int(os.environ.get("HOLDFAST_TEST_FALSE_ALARM_PRESET_SEQUENCE", "64"))
# No key that has to do with safety.
DEFAULT = """\
[run]
directory = "unset"
[model]
{model}
[data]
sources = [{{ path = "{text}", format = "text" }}]
[training]
sequence_length = {sequence}
microbatch_size = 1
microbatches_per_lane = 1
precision = "bf16"
[parallel]
lanes = {lanes}
"""


@contextlib.contextmanager
def limited(directory):
    """Holds processes to half of the machine's processors together, and to so many bytes of the disk a second, where this process
    may make groups (cgroup v1). Gives a function that puts all processes of `directory` there, new ones too, and what is held."""
    disk_mibs = int(os.environ.get("HOLDFAST_TEST_FALSE_ALARM_DISK_MIBS", "8"))
    device = os.stat(directory).st_dev
    disk = f"{os.major(device)}:{os.minor(device) & ~15} {disk_mibs << 20}"  # of the whole disk
    groups, said = [], []
    for controller, values, what in (
            ("cpu", {"cpu.cfs_quota_us": str(50_000 * os.cpu_count())}, f"{os.cpu_count() / 2:g} processors"),
            ("blkio", {"blkio.throttle.write_bps_device": disk, "blkio.throttle.read_bps_device": disk}, f"{disk_mibs} MiB/s of the disk")):
        group = Path(f"/sys/fs/cgroup/{controller}/holdfast-test-{os.getpid()}")
        try:
            group.mkdir()
            groups.append(group)
            for name, value in values.items():
                (group / name).write_text(value)
            said.append(what)
        except OSError as error:
            print(f"\nnot held to {what}: {error}", flush=True)

    def members():
        """A child is where its parent was, so a start from here is put there before; this process goes back at the end."""
        for group in groups:
            for pid in [os.getpid(), *harness.processes_of(directory)]:
                with contextlib.suppress(OSError):
                    (group / "cgroup.procs").write_text(str(pid))

    try:
        yield members, " and ".join(said) or "not limited"
    finally:
        for group in groups:
            for pid in [os.getpid(), *harness.processes_of(directory)]:
                with contextlib.suppress(OSError):
                    (group.parent / "cgroup.procs").write_text(str(pid))
            limit = time.monotonic() + 10
            while group.exists() and time.monotonic() < limit:
                with contextlib.suppress(OSError):
                    group.rmdir()
                time.sleep(0.05)


def slowness(steps, chance):
    """Fault points. A save on a disk that takes longer than a step may take; and ranks that are late by a part of that."""
    faults = []
    saves = steps // SAVE_EVERY
    for save in range(1, saves + 1, 2):
        faults.append(f"save.before_shard@{save}:{chance.randrange(RANKS)}=sleep:{3 * FLOOR_MS // 2}")
    for save in range(2, saves + 1, 4):
        faults.append(f"save.before_rename@{save}:0=sleep:{5 * FLOOR_MS // 4}")
    for step in range(50, steps, 500):
        point = chance.choice(["step.begin", "step.before_vote", "step.after_vote", "step.before_gather"])
        faults.append(f"{point}@{step}:{chance.randrange(RANKS)}=sleep:{FLOOR_MS // 8}")
    return ",".join(faults)


class FalseAlarmTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scene = harness.Scene()
        cls.addClassCleanup(cls.scene.close)

    def test_nobody_but_the_killed(self):
        """Twice as many ranks as the processors that they may use, and a slow disk; what the default config saves, and ranks that
        are killed and made up for."""
        if PRESET:
            for part in range(0, PRESET_STEPS, PRESET_RUN_STEPS):
                steps = min(PRESET_RUN_STEPS, PRESET_STEPS - part)
                self.torment(PRESET_RANKS, steps, PRESET_KILLS * steps // PRESET_STEPS, FROM + part, [f'preset = "{PRESET}"'])
        else:
            self.torment(RANKS, 800, 4, FROM, ["layers = 2", "heads = 4", "width = 64"])

    @harness.full
    def test_nobody_but_the_killed_in_more_steps(self):
        self.torment(RANKS, 2000, 4, FROM + 1, ["layers = 2", "heads = 4", "width = 64"])

    @harness.full
    def test_who_hangs_is_found(self):
        """With the same limits: a rank that is stopped, and one that computes for ever."""
        run = self.scene.run("hangs", ["--threads=1", "--training.steps=200", "--elastic.grow=off"])
        config = self.default_config(RANKS, ["layers = 2", "heads = 4", "width = 64"])
        words = harness.command("ft", RANKS) + run.train_arguments(config=config)
        with limited(self.scene.directory) as (members, said):
            members()
            start = run.start_command(words, faults="step.begin@60:1=stop,step.before_backward@120:2=spin")
            self.assertTrue(start.wait_for_step(1, RUN_LIMIT_S), start.tail())
            members()
            output = start.expect_exit(0, RUN_LIMIT_S)
        faults = run.events("fault")
        self.assertEqual([re.findall(r"^rank (\d) \(host \S+\) hangs: ", fault["reason"]) for fault in faults], [["1"], ["2"]], output)
        ends_us = [0, *(event["time_us"] for event in run.events("step"))]
        late_s = [(fault["time_us"] - max(end for end in ends_us if end < fault["time_us"])) / 1e6 for fault in faults]
        self.assertLess(max(late_s), 2 * DEFAULT_FLOOR_S, output)
        self.assertEqual(run.status()["state"], "finished", output)
        print(f"\n{RANKS} ranks, {said}: noticed {', '.join(f'{late:.1f}' for late in late_s)} s after the step before", flush=True)
        run.remove()

    def default_config(self, ranks, model):
        path = self.scene.config.with_name("default.toml")
        path.write_text(DEFAULT.format(text=self.scene.text, lanes=ranks, sequence=PRESET_SEQUENCE, model="\n".join(model)))
        return path

    def torment(self, ranks, steps, kills, seed, model):
        chance = random.Random(seed)
        run = self.scene.run(f"killed-{seed}", ["--threads=1", f"--training.steps={steps}", "--elastic.grow_after=1s"])
        words = harness.command("ft", ranks) + run.train_arguments(config=self.default_config(ranks, model))
        with limited(self.scene.directory) as (members, said):
            members()
            start = run.start_command(words)
            killed = 0
            for _ in range(kills):
                # MPI cannot leave while it takes up new ranks, so one that is killed there ends the run, which is another matter.
                if not harness.wait_until(lambda: all(event["ranks_after"] == ranks for event in run.events("recovery")[-1:]),
                                          RUN_LIMIT_S, lambda: not start.alive(), "it does not grow back", start.tail):
                    break
                after = chance.randint(1, max(1, steps // (2 * kills)))
                if not start.wait_for_step(run.last_step() + after, RUN_LIMIT_S) or run.last_step() >= steps - 1:
                    break
                time.sleep(chance.uniform(0, 0.1))
                members()
                before = len(run.events("recovery"))
                harness.kill(chance.choice(start.ranks()), signal.SIGKILL)
                killed += 1
                harness.wait_until(lambda: len(run.events("recovery")) > before, RUN_LIMIT_S, lambda: not start.alive(), "no recovery",
                                   start.tail)
            output = start.expect_exit(0, max(RUN_LIMIT_S, 10 * steps))
        self.assertGreaterEqual(killed, 1 if kills else 0)
        self.assertNotRegex(output, "holdfast guard: .* hangs")
        self.assertNotIn("hangs", " ".join(event.get("reason", "") for event in run.events("fault")), output)
        self.assertLessEqual(len(run.events("fault")), killed, output)
        self.assertEqual(run.status()["state"], "finished", output)
        harness.expect_no_processes(run)
        harness.expect_no_snapshots(run)
        longest_ms = max(event["step_duration_ms"] for event in run.events("step"))
        print(f"\n{steps} steps on {ranks} ranks, {said}: {killed} killed, the longest step took {longest_ms:.0f} ms", flush=True)
        run.remove()

    @harness.full
    def test_none(self):
        longest_ms, begun = 0.0, 0
        for begun in range(0, STEPS, RUN_STEPS):
            longest_ms = max(longest_ms, self.train(min(RUN_STEPS, STEPS - begun), seed=FROM + begun))
        print(f"\n{STEPS} steps on {RANKS} ranks: the longest took {longest_ms:.0f} ms, {FLOOR_MS} may it take", flush=True)

    def train(self, steps, seed):
        """The longest of the steps, in milliseconds."""
        run = self.scene.run(f"from-{seed}", [*OPTIONS, f"--training.steps={steps}"])
        start = run.start(RANKS, "ft", faults=slowness(steps, random.Random(seed)))
        output = start.expect_exit(0, RUN_LIMIT_S)
        self.assertEqual(run.events("fault") + run.events("recovery"), [], output)
        self.assertNotIn("holdfast guard", output)
        self.assertEqual(run.status()["state"], "finished", output)
        done = run.events("step")
        self.assertEqual([event["step"] for event in done], list(range(1, steps + 1)))
        self.assertEqual(len(run.events("checkpoint")), steps // SAVE_EVERY + (steps % SAVE_EVERY > 0), output)
        harness.expect_no_processes(run)
        harness.expect_no_snapshots(run)
        run.remove()
        return max(event["step_duration_ms"] for event in done)


if __name__ == "__main__":
    harness.main(at_once=1)
