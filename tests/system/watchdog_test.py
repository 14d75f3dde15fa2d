"""The watchdog: a rank that hangs is noticed, named and ended, wherever it hangs and however, and the run goes on with the
bits of the run that nothing disturbed; one that is only slow is left alone; and nothing of it stays behind.
"""
import json
import os
import re
import signal
import subprocess
import time
import unittest
from pathlib import Path

import harness
from launch_test import launch_words

STEPS = 30
SETTLE_S = 60
FLOOR_S = 2
CEILING_S = 12
GUARD_LATE_S = 1.2  # it looks every 25 ms, and whatever comes later than by a second makes it begin anew


def latest_s(limit_s):
    """Until then whoever hangs is noticed, though the guard began anew once because the machine was busy."""
    return 2 * limit_s + GUARD_LATE_S


# Who was ended stays away: who is back at the end would be a matter of how fast the machine is.
NO_GROWTH = "--elastic.grow=off"
LIMITS = [f"--watchdog.floor={FLOOR_S}s", f"--watchdog.ceiling={CEILING_S}s", "--elastic.recovery_timeout=16s", NO_GROWTH]
RAM = ["--checkpoint.ram_every_steps=1"]


def boards_of(pids):
    """Names of the boards that these processes have in their memory."""
    found = set()
    for pid in pids:
        try:
            text = Path(f"/proc/{pid}/maps").read_text()
        except OSError:
            continue
        found |= {os.path.basename(path) for path in re.findall(r"/dev/shm/\S*/(\S*board\S*)", text)}
    return found


def guards_of(boards):
    found = []
    for entry in os.listdir("/proc"):
        try:
            words = Path(f"/proc/{entry}/cmdline").read_bytes().decode(errors="replace").split("\0") if entry.isdigit() else []
        except OSError:
            continue
        if len(words) > 2 and words[1] == "guard" and any(words[2].lstrip("/") in board for board in boards):
            found.append(int(entry))
    return found


class WatchdogTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scene = harness.Scene(steps=STEPS, microbatch_size=4)
        cls.addClassCleanup(cls.scene.close)
        cls.reference = harness.reference_digest(cls.scene)

    def start(self, ranks=3, faults="", overrides=(), first_step=1):
        run = self.scene.run(self.id().rsplit(".", 1)[1], LIMITS + RAM)
        start = run.start(ranks, "ft", overrides, faults)
        return self.watched(start, first_step)

    def watched(self, start, first_step=1):
        """Knows its boards."""
        start.boards = set()

        def has_board():
            start.boards |= boards_of(start.ranks())
            return start.boards

        harness.wait_until(has_board, SETTLE_S, lambda: not start.alive(), "no rank has a board", start.tail)
        if first_step:
            self.assertTrue(start.wait_for_step(first_step, SETTLE_S), start.tail())
        return start

    def expect_nothing_left(self, start):
        harness.expect_no_processes(start.run)
        limit = time.monotonic() + 10
        while True:
            guards = guards_of(start.boards)
            left = [board for board in start.boards if (harness.shared_memory() / board).exists()]
            if not guards and not left:
                return
            self.assertLess(time.monotonic(), limit, f"left behind: guards {guards}, boards {left}")
            time.sleep(0.05)

    def expect_right_end(self, start):
        output = start.expect_exit(0, SETTLE_S)
        self.assertEqual(start.run.digest(), self.reference, output)
        self.assertEqual(start.run.status()["state"], "finished")
        self.expect_nothing_left(start)
        harness.expect_no_snapshots(start.run)
        return output

    def expect_healed(self, start, culprits, ranks_after=2):
        """In place, with the culprit named on the console, in the log and in the flight records."""
        run = start.run
        output = self.expect_right_end(start)
        self.assertEqual(len(run.events("start")), 1, "nobody was started again")
        recoveries = run.events("recovery")
        self.assertEqual(recoveries[-1]["ranks_after"], ranks_after, output)
        reasons = " ".join(event["reason"] for event in run.events("fault"))
        for rank in culprits:
            self.assertRegex(output, rf"rank {rank} \(host \S+\) hangs: ")
            self.assertRegex(reasons, rf"rank {rank} \(host \S+\) hangs: ")
        innocent = set(range(ranks_after + len(culprits))) - set(culprits)
        for rank in innocent:
            self.assertNotRegex(output, rf"rank {rank} \(host \S+\) hangs")
        files = sorted(path.name for path in (run.directory / "flight").glob("*.json"))
        self.assertTrue(files, output)
        for path in (run.directory / "flight").glob("*.json"):
            json.loads(path.read_text())
        return output

    def expect_named_by_flight(self, start, rank):
        printed = harness.program_output("flight", start.run.directory)
        culprit = [line for line in printed.splitlines() if line.startswith("likely culprit")]
        self.assertEqual(len(culprit), 1, printed)
        self.assertIn(f"rank {rank}", culprit[0], printed)

    # Where it hangs

    def test_stopped_in_a_step(self):
        start = self.start(faults="step.before_backward@9:2=stop")
        output = self.expect_healed(start, [2])
        self.assertIn("it is stopped", output)
        self.expect_named_by_flight(start, 2)
        (recovery,) = start.run.events("recovery")
        self.assertLess(recovery["lost_steps"], 2, recovery)

    def test_livelock_in_a_step(self):
        start = self.start(faults="step.before_backward@9:1=spin")
        self.expect_healed(start, [1])
        self.expect_named_by_flight(start, 1)

    def test_rank_0_before_the_vote(self):
        """Who writes the log."""
        self.expect_healed(self.start(faults="step.before_vote@9:0=stop"), [0])

    def test_reading_data(self):
        self.expect_healed(self.start(faults=f"data.before_batch@20:1=sleep:{1000 * SETTLE_S}"), [1])

    def test_in_a_pipeline_and_a_tensor_group(self):
        lanes = ["--parallel.tensor_lanes=2"]
        reference = harness.reference_digest(self.scene, lanes, name="reference-tensor")
        for name, option in {"pipeline": "--parallel.pipeline=2", "tensor": "--parallel.tensor=2"}.items():
            with self.subTest(name):
                run = self.scene.run(f"layout-{name}", LIMITS + RAM + lanes)
                start = self.watched(run.start(4, "ft", [option], "step.before_backward@13:1=stop"))
                output = start.expect_exit(0, SETTLE_S)
                self.assertRegex(output, r"rank 1 \(host \S+\) hangs: step \d+ for")
                self.assertNotRegex(output, r"rank [023] \(host \S+\) hangs")
                self.assertEqual(run.digest(), reference, output)
                self.expect_nothing_left(start)

    @harness.full
    def test_evaluation(self):
        self.expect_healed(self.start(faults="evaluation.begin:1=stop"), [1])

    def test_save_behind_a_step(self):
        self.expect_healed(self.start(faults="save.before_shard@2:2=stop"), [2])

    @harness.full
    def test_last_save(self):
        """Every fifth step is saved: of 30 the last by the loop itself."""
        self.expect_healed(self.start(faults="save.before_shard@6:1=stop"), [1])

    def test_start_up(self):
        for point in ("start.before_join", "start.after_join"):
            with self.subTest(point):
                run = self.scene.run(point, LIMITS)
                start = self.watched(run.start(3, "ft", (), f"{point}:1=stop"), first_step=0)
                output = self.expect_right_end(start)
                self.assertRegex(output, r"rank 1 \(host \S+\) hangs: start-up")

    def test_recovery(self):
        self.expect_end_in_recovery("recover.after_shrink", 1)

    @harness.full
    def test_more_of_a_recovery(self):
        for index, point in ((0, "recover.begin"), (2, "recover.before_load")):
            with self.subTest(point):
                self.expect_end_in_recovery(point, index)

    def expect_end_in_recovery(self, point, index):
        """Rank 3 dies, and that one stops while the others recover."""
        run = self.scene.run(point, LIMITS + RAM)
        start = self.watched(run.start(4, "ft", (), f"step.before_vote@7:3=kill,{point}:{index}=stop"))
        self.expect_healed(start, [index], ranks_after=2)

    def test_a_spare(self):
        lasts = harness.slow_steps(2, count=99, milliseconds=80)  # for longer than a spare may be silent
        start = self.start(3, lasts, ["--elastic.spares=1", "--training.steps=100"])
        harness.kill(start.rank_pid(2), signal.SIGSTOP)
        output = start.expect_exit(0, SETTLE_S)
        self.assertRegex(output, r"rank 2 \(host \S+\) hangs: spare")
        self.expect_nothing_left(start)

    def test_a_spare_that_dies(self):
        """Nobody who trains misses it, and no other spare: that is told at once, and nothing else happens."""
        for spares in (1, 2):
            with self.subTest(spares=spares):
                run = self.scene.run(f"a-spare-of-{spares}-dies", LIMITS + RAM)
                options = [f"--elastic.spares={spares}", "--training.steps=2000"]
                start = self.watched(run.start(2 + spares, "ft", options))
                harness.kill(start.rank_pid(2), signal.SIGKILL)
                told = harness.wait_until(lambda: run.events("fault"), SETTLE_S, lambda: not start.alive(), "no fault is told", start.tail)
                self.assertTrue(told and start.alive(), start.tail())
                self.assertTrue(start.wait_for_step(run.last_step() + 20, SETTLE_S), start.tail())
                start.signal(signal.SIGUSR2)
                output = start.expect_exit(75, SETTLE_S)
                (fault,) = run.events("fault")
                self.assertEqual((fault["what"], fault["cause"]), ("spare", "spare-died"))
                self.assertIn(": spare-died", harness.program_output("report", run.directory, "--incident=1"))
                self.assertRegex(fault["lost"], r"^rank 2 \(host \S+\)$")
                self.assertRegex(output, r"lost rank 2 \(host \S+\), which was not active, at step \d+: training goes on")
                self.assertEqual(run.events("recovery"), [])
                self.expect_nothing_left(start)

    # Who hangs

    def test_another_guard_when_the_first_dies(self):
        start = self.start(faults="step.begin@25:2=stop", overrides=["--training.steps=30"])
        (guard,) = guards_of(start.boards)
        harness.kill(guard, signal.SIGKILL)
        self.expect_healed(start, [2])

    @harness.full
    @harness.needs(harness.can_unshare_pids(), "the system gives no process namespace")
    def test_a_container_with_the_same_shared_memory(self):
        """In there the run's processes cannot be seen, and their board is in use all the same."""
        other = self.scene.run("in-a-container")
        other.start(1, overrides=["--threads=1"]).expect_exit(0)
        start = self.start(faults=",".join(f"step.begin@{step}=sleep:150" for step in range(2, STEPS)))  # it lasts
        words = ["unshare", "--pid", "--fork", "--mount-proc", str(harness.PROGRAM), "clean", str(other.directory)]
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
        self.assertEqual([name for name in start.boards if not (harness.shared_memory() / name).exists()], [])
        start.expect_exit(0, SETTLE_S)
        self.expect_nothing_left(start)

    @harness.full
    def test_all_ranks_of_the_host(self):
        """Nobody is left to go on: the launcher starts the run again."""
        run = self.scene.run("all-ranks", LIMITS + RAM)
        words = launch_words(run, "--training.steps=300", ranks=3)
        start = self.watched(run.start_command(words), 5)
        for pid in [start.rank_pid(rank) for rank in range(3)]:  # and not the launcher
            harness.kill(pid, signal.SIGSTOP)
        output = start.expect_exit(0, SETTLE_S)
        self.assertIn("hangs", output)
        self.assertGreaterEqual(len(run.events("start")), 2, output)
        self.assertEqual(run.status()["state"], "finished")
        self.expect_nothing_left(start)

    def test_the_first_of_a_kind(self):
        """No time is learned yet: who shows no sign of life for twelve floors hangs, and not who is only much slower than the
        others."""
        self.hang_first("evaluation", 2, "step.begin@1=sleep:1000,step.begin@1:1=sleep:7000,evaluation.begin:2=spin")

    @harness.full
    def test_the_first_step(self):
        self.hang_first("step", 1, "step.begin@2:1=spin")

    def hang_first(self, name, culprit, faults):
        run = self.scene.run(f"first-{name}", [*RAM, NO_GROWTH, "--watchdog.floor=1s"])
        start = self.watched(run.start(3, "ft", (), faults))
        self.expect_first_times(self.expect_healed(start, [culprit]), [culprit])

    @harness.full
    def test_several_hang_in_the_first_steps(self):
        """Fewer than those that wait for them: named and ended together."""
        run = self.scene.run("first-several", [*RAM, NO_GROWTH, "--watchdog.floor=1s", "--parallel.pipeline=2"])
        start = self.watched(run.start(6, "ft", (), f"step.begin@2:1=sleep:{1000 * SETTLE_S},step.begin@2:4=sleep:{1000 * SETTLE_S}"))
        output = self.expect_healed(start, [1, 4], ranks_after=4)
        self.expect_first_times(output, [1, 4], almost_s=1.2)
        self.assertEqual(len(run.events("fault")), 1, "both by one recovery")

    @harness.full
    def test_one_hangs_on_while_the_others_recover(self):
        """The others have messages to it that MPI cannot take back: they are under way until its guard has ended it, later
        than ranks wait for such messages before they come together."""
        self.assertNotIn("in a recovery for", self.hanging_on("30s"))

    @harness.full
    def test_one_hangs_on_for_longer_than_the_others_wait(self):
        """In a first step, which may take longer than they may take to come together."""
        self.assertRegex(self.hanging_on("8s"), r"rank 1 .* 12\.0 s are the limit; .*; others wait for it in a recovery for 4\.")

    def hanging_on(self, recovery_timeout):
        """Of two that hang one is ended at once, because it is stopped."""
        run = self.scene.run(f"hangs-on-{recovery_timeout}", [*RAM, NO_GROWTH, "--watchdog.floor=1s", "--parallel.pipeline=2",
                                                              f"--elastic.recovery_timeout={recovery_timeout}"])
        start = self.watched(run.start(6, "ft", (), f"step.begin@2:1=sleep:{1000 * SETTLE_S},step.begin@2:4=stop"))
        return self.expect_healed(start, [1, 4], ranks_after=4)

    def expect_first_times(self, output, culprits, almost_s=0.1, limit_s=12):
        """With a floor of a second, and nothing learned. A rank that is stopped is ended after the floor."""
        found = re.findall(r"guard: rank (\d) .* hangs: .*step \d+ for (\S+) s, 12\.0 s are the limit; ", output)
        self.assertEqual(sorted(int(rank) for rank, _ in found), culprits, output)
        for _, noticed_s in found:
            self.assertGreaterEqual(float(noticed_s), limit_s - almost_s, output)
            self.assertLess(float(noticed_s), latest_s(limit_s), output)

    @harness.full
    def test_the_only_one_of_a_stage_in_the_first_steps(self):
        """Nobody does the same work: it is named and ended before the others give up, and a spare takes its coordinate."""
        for name, fault in (("spin", "step.begin@3:1=spin"), ("stopped", "step.begin@1:1=stop"), ("vote", "step.after_vote@1:1=spin")):
            with self.subTest(name):
                run = self.scene.run(f"stage-{name}", [*RAM, NO_GROWTH, "--watchdog.floor=1s", "--parallel.pipeline=2", "--elastic.spares=1",
                                                       "--parallel.timeout=20s"])
                start = self.watched(run.start(3, "ft", (), fault), first_step=0)
                self.expect_first_times(self.expect_healed(start, [1]), [1], limit_s=1 if name == "stopped" else 12)
                self.assertRegex(run.events("fault")[0]["reason"], r"rank 1 \(host \S+\) hangs: .*12\.0 s are the limit")

    # After a recovery, where all pages of a process may be new

    def after_a_recovery(self, fault, ceiling="60s"):
        """Rank 2 dies in step 7; the other fault is rank 1's, in the step that comes then."""
        run = self.scene.run(self.id().rsplit(".", 1)[1] + fault.split(":")[0],
                             [*RAM, NO_GROWTH, "--watchdog.floor=1s", f"--watchdog.ceiling={ceiling}"])
        return self.watched(run.start(3, "ft", (), f"step.before_vote@7:2=kill,step.begin@8:1={fault}"))

    @harness.full
    def test_faulting_pages_after_a_recovery(self):
        """For longer than such a step may show no sign of life."""
        start = self.after_a_recovery("touch:9000")
        output = self.expect_right_end(start)
        self.assertNotIn("hangs", output)
        self.assertEqual(len(start.run.events("fault")), 1, output)
        self.assertGreater(max(event["step_duration_ms"] for event in start.run.events("step")), 9000)

    @harness.full
    def test_hanging_after_a_recovery(self):
        """At the same place, without a sign of life: found within the deadline of a first step, four times the usual one where the
        floor is that; it is more on a machine that is slow, and never more than twelve floors."""
        for fault in ("spin", "stop", f"sleep:{1000 * SETTLE_S}"):
            with self.subTest(fault):
                output = self.expect_healed(self.after_a_recovery(fault), [1], ranks_after=1)
                found = re.search(r"rank 1 \(host \S+\) hangs: step \d+ for (\S+) s, (\S+) s are the limit", output)
                self.assertTrue(found, output)
                noticed_s, limit_s = float(found[1]), float(found[2])
                self.assertTrue(4 <= limit_s <= 12, output)
                if fault == "stop":  # which a rank may be for the floor
                    self.assertIn("it is stopped, which it may be for 1.0 s", output)
                    limit_s = 1
                self.assertGreaterEqual(noticed_s, limit_s - 0.1, output)
                self.assertLess(noticed_s, latest_s(limit_s), output)

    def test_a_livelock_that_faults_pages(self):
        """It shows signs of life for ever: found at the ceiling."""
        ceiling_s = 9
        output = self.expect_healed(self.after_a_recovery(f"touch:{1000 * SETTLE_S}", f"{ceiling_s}s"), [1], ranks_after=1)
        found = re.search(r"rank 1 \(host \S+\) hangs: step \d+ for (\S+) s, .*; there are signs of life, but 9\.0 s are the most", output)
        self.assertTrue(found, output)
        self.assertGreaterEqual(float(found[1]), ceiling_s - 0.1)
        self.assertLess(float(found[1]), latest_s(ceiling_s))

    @harness.full
    def test_runs_ten_times_apart_in_speed(self):
        """The same settings: a hang is noticed after three times what the steps of the run take, and not before; in the fast
        one after the floor. A step of the slow run takes longer than the floor."""
        hung, floor_s, factor = 10, 1.0, 3.0
        for step_ms in (120, 1200):
            with self.subTest(step_ms=step_ms):
                run = self.scene.run(f"a-step-in-{step_ms}", [*RAM, NO_GROWTH, f"--watchdog.floor={floor_s:.0f}s", f"--watchdog.factor={factor}",
                                                              "--training.steps=13", "--evaluation.every_steps=0"])
                slow = [f"step.begin@{step}=sleep:{step_ms}" for step in range(1, hung)]
                start = self.watched(run.start(3, "ft", (), ",".join([*slow, f"step.begin@{hung}:1=spin"])))
                output = start.expect_exit(0, SETTLE_S)
                reasons = [event["reason"] for event in run.events("fault")]
                self.assertEqual(len(reasons), 1, output)
                found = re.search(rf"rank 1 \(host \S+\) hangs: step {hung} for (\S+) (ms|s), ", reasons[0])
                self.assertTrue(found, reasons)
                noticed_s = float(found[1]) / (1000 if found[2] == "ms" else 1)
                times = [event["time_us"] for event in run.events("step") if event["step"] < hung]
                took_s = [(after - before) / 1e6 for before, after in zip(times, times[1:])]
                self.assertGreaterEqual(noticed_s, max(factor * min(took_s), floor_s) - 0.1, took_s)
                self.assertLess(noticed_s, latest_s(max(factor * max(took_s), floor_s)), took_s)
                self.expect_nothing_left(start)

    # Who does not

    @harness.full
    def test_the_only_one_of_a_stage_may_be_slow(self):
        """For longer than six floors: in the first step while the others have patience, then for less than ten times that."""
        run = self.scene.run("slow-stage", [*RAM, NO_GROWTH, "--watchdog.floor=1s", "--parallel.pipeline=2", "--parallel.timeout=12s"])
        start = self.watched(run.start(2, "ft", (), "step.begin@1:1=sleep:7500,step.begin@2:1=sleep:9000"), first_step=0)
        output = self.expect_right_end(start)
        self.assertFalse(run.events("fault"), output)
        self.assertNotIn("hangs", output)

    def test_a_suspended_machine(self):
        start = self.start(faults=harness.slow_steps(20, count=4), overrides=["--training.steps=60"], first_step=20)
        (guard,) = guards_of(start.boards)
        ranks = start.ranks()
        self.assertEqual(len(ranks), 3)
        for pid in [*ranks, guard]:
            harness.kill(pid, signal.SIGSTOP)
        time.sleep(3 * FLOOR_S)
        self.assertEqual({harness.state_of(pid) for pid in [*ranks, guard]}, {"T"})
        for pid in [*ranks, guard]:
            harness.kill(pid, signal.SIGCONT)
        output = start.expect_exit(0, SETTLE_S)
        self.assertFalse(start.run.events("fault"), output)
        self.assertNotIn("hangs", output)
        self.expect_nothing_left(start)

    def test_slow_is_not_stuck(self):
        """Twice as many ranks as processors, one of them slow now and then, and so is the disk."""
        slow = [f"step.before_backward@{hit}:{hit % 4}=sleep:{1000 * FLOOR_S // 3}" for hit in range(20, 110, 30)]
        slow += [f"save.mid_shard@{hit}=sleep:{1500 * FLOOR_S}" for hit in (1, 4, 9)]
        start = self.start(4, ",".join(slow), ["--training.steps=110", "--threads=2"])
        output = start.expect_exit(0, 2 * SETTLE_S)
        self.assertFalse(start.run.events("fault"), output)
        self.assertNotIn("hangs", output)
        self.assertEqual(len(start.run.events("checkpoint")), 22, output)
        self.expect_nothing_left(start)

    def test_without(self):
        run = self.scene.run("without", ["--watchdog.guard=false"])
        start = run.start(2, "ft", ["--training.steps=60"])
        self.assertTrue(start.wait_for_step(5), start.tail())
        self.assertEqual(boards_of(start.ranks()), set())
        start.expect_exit(0)
        harness.expect_no_processes(run)

    def test_alone(self):
        """A run of one rank that hangs ends; the next start goes on."""
        run = self.scene.run("alone", LIMITS)
        start = self.watched(run.start(1, overrides=["--threads=1"], faults="step.begin@12=stop"))
        self.assertEqual(start.wait(SETTLE_S), -signal.SIGKILL)
        self.expect_nothing_left(start)
        again = run.start(1, overrides=["--threads=1"])
        again.expect_exit(0)
        self.assertEqual(run.digest(), self.reference)


if __name__ == "__main__":
    harness.main(at_once=3)
