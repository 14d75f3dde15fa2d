"""A rank that dies is healed in place: the same mpirun, the survivors' processes go on, and the run ends with the bits of the
run that nothing disturbed. In layouts with copies, pipelines and tensor groups, with snapshots in RAM and without, one
death, two at once, one after another, one during recovery, rank 0 too, at random times and at every fault point of a step.

HOLDFAST_TEST_RECOVERY_SEEDS: how many random kills (tools/test --long sets more).
"""
import dataclasses
import json
import os
import random
import re
import signal
import statistics
import time
import unittest

import harness

SEEDS = int(os.environ.get("HOLDFAST_TEST_RECOVERY_SEEDS") or 6)
STEPS = 30
SETTLE_S = 160 if harness.SANITIZED else 40
RAM = {"every step": ["--checkpoint.ram_every_steps=1"], "every 3": ["--checkpoint.ram_every_steps=3"], "disk": []}
TENSOR_LANES = ["--parallel.tensor_lanes=2"]  # of every start, and of the reference
STEP_POINTS = ["step.begin", "step.before_backward", "step.before_reduce", "step.before_vote", "step.after_vote",
               "step.before_update", "step.before_gather", "step.end"]
SLOT_POINTS = ["slot.before_unseal", "slot.before_rename", "slot.before_resize", "slot.after_resize"]
RECOVERY_POINTS = ["recover.begin", "recover.after_shrink", "recover.before_load", "recover.before_resume"]


@dataclasses.dataclass
class Layout:
    ranks: int
    pipeline: int = 1
    tensor: int = 1
    spares: int = 0

    def options(self):
        return [f"--parallel.pipeline={self.pipeline}", f"--parallel.tensor={self.tensor}", f"--elastic.spares={self.spares}",
                "--elastic.grow=off"]

    def deaths_max(self):
        return self.ranks - self.pipeline * self.tensor


LAYOUTS = [Layout(2), Layout(3), Layout(4), Layout(4, pipeline=2), Layout(4, tensor=2), Layout(3, spares=1),
           Layout(5, pipeline=2, spares=1)]


class RecoveryTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scene = harness.Scene(steps=STEPS)
        cls.addClassCleanup(cls.scene.close)
        cls.reference = harness.reference_digest(cls.scene, overrides=TENSOR_LANES)
        cls.times_ms = []  # from the kill to the next step that is made
        cls.addClassCleanup(cls.tell_times)

    @classmethod
    def tell_times(cls):
        if cls.times_ms:
            print(f"\nfrom a kill to the next step: median {statistics.median(cls.times_ms):.0f} ms, "
                  f"longest {max(cls.times_ms):.0f} ms, of {len(cls.times_ms)}")

    def start(self, name, layout, ram, faults=""):
        self.run_ = self.scene.run(name, TENSOR_LANES)
        start = self.run_.start(layout.ranks, "ft", [*layout.options(), *RAM[ram]], faults)
        self.assertTrue(start.wait_for_step(1), start.tail())
        pids = set(start.ranks())
        self.assertLessEqual(len(pids), layout.ranks)
        return start, pids

    def check_end(self, start, deaths, resumed=True):
        """The run that goes on has all its steps, the right bits, and nothing left behind."""
        start.expect_exit(0, SETTLE_S)
        run = self.run_
        self.assertEqual(run.digest(), self.reference, start.tail())
        self.assertEqual(set(run.steps_told()), set(range(1, STEPS + 1)))
        self.assertEqual(len(run.events("start")), 1, "nobody was started again")
        self.assertEqual(run.status()["state"], "finished")
        if deaths:
            recoveries = run.events("recovery")
            self.assertGreaterEqual(len(recoveries), 1, start.tail())
            self.assertLessEqual(len(recoveries), deaths)
            self.assertTrue(all(event["level"] == 1 for event in recoveries))
            first, last = recoveries[0], recoveries[-1]
            self.assertEqual(first["ranks_before"] - last["ranks_after"], deaths)
            self.assertTrue(run.events("fault"))
            self.assertLessEqual({event["cause"] for event in run.events("fault")}, {"rank-died", "host-lost", "spare-died"})
        harness.expect_no_processes(run)
        harness.expect_no_snapshots(run)

    def kill(self, start, victims):
        """By rank. The others are the same processes some steps later."""
        pids = {rank: start.rank_pid(rank) for rank in victims}
        before = set(start.ranks())
        killed_us = time.time() * 1e6
        for pid in pids.values():
            harness.kill(pid, signal.SIGKILL)
        recovered = harness.wait_until(lambda: self.run_.events("recovery"), SETTLE_S, lambda: not start.alive(),
                                       "nobody recovered", start.tail)
        self.assertTrue(recovered, start.tail())
        if start.alive() and len(start.ranks()) > 0:
            self.assertLessEqual(set(start.ranks()), before - set(pids.values()))
        last = self.run_.events("recovery")[-1]
        self.times_ms.append((last["time_us"] - killed_us) / 1e3)
        return last

    def test_random_kills(self):
        for seed in range(1, SEEDS + 1):
            generator = random.Random(seed)
            layout = LAYOUTS[(seed - 1) % len(LAYOUTS)]
            ram = list(RAM)[(seed - 1) % len(RAM)]
            with self.subTest(seed=seed, layout=layout, ram=ram):
                step = generator.randint(2, STEPS - 10)
                # Some steps behind the kill, which is to come in the middle of whatever a step does.
                start, _ = self.start(f"seed-{seed}", layout, ram, harness.slow_steps(step + 6, count=4))
                self.assertTrue(start.wait_for_step(step), start.tail())
                time.sleep(generator.uniform(0, 0.03))
                deaths = generator.randint(1, min(2, layout.deaths_max()))
                victims = generator.sample(range(layout.ranks), deaths)
                self.kill(start, victims)
                self.check_end(start, deaths)

    def test_rank_0(self):
        """Who holds the run directory and writes the log: another rank takes over."""
        start, _ = self.start("rank-0", Layout(3), "every step", harness.slow_steps(11, count=4))
        self.assertTrue(start.wait_for_step(8), start.tail())
        last = self.kill(start, [0])
        self.assertEqual((last["ranks_before"], last["ranks_after"], last["seats_after"]), (3, 2, 2))
        self.assertLessEqual(last["lost_steps"], 1, last)
        self.assertEqual(last["resumed_from"], "ram")
        self.check_end(start, 1)

    def test_rank_0_with_lines_of_the_log(self):
        """It dies while they wait for a disk that does not respond, and of their steps some are not computed again."""
        stalled = "log.before_line@8"
        with self.subTest("in place"):
            start, _ = self.start("lines", Layout(3), "every step", f"{stalled}:0=sleep:60000,step.begin@14:0=kill")
            self.check_end(start, 1)
            self.check_lines(start, self.run_.events("recovery")[-1]["resumed_from_step"], 14)
        with self.subTest("another start"):
            run = self.run_ = self.scene.run("lines-job", [*TENSOR_LANES, *RAM["every step"]])
            start = run.start(1, faults=f"{stalled}=sleep:60000,step.begin@14=kill")
            self.assertEqual(start.wait(), -signal.SIGKILL)
            run.start(1).expect_exit(0)
            self.assertEqual(run.digest(), self.reference)
            self.check_lines(start, run.events("start")[-1]["resumed_from_step"], 14)
            self.assertIn("1 recovered by another launch", harness.program_output("report", run.directory) + run.directory.joinpath("report.html").read_text())

    def check_lines(self, start, resumed, died):
        """Each step is told of once, and those that were lost with the rank, and are not computed again, by one event."""
        start.expect_passed("log.before_line", 8, "sleep")
        gap, = self.run_.events("gap")
        self.assertGreaterEqual(resumed, died - 4)
        self.assertEqual(gap["last_step"], resumed)
        self.assertGreater(gap["last_step"], gap["first_step"])
        self.assertEqual(sorted(self.run_.steps_told()), list(range(1, STEPS + 1)))

    @harness.full
    def test_every_fault_point_of_a_step(self):
        """One after another dies in one run, until one is left."""
        points = [(point, rank) for rank in (0, 1) for point in STEP_POINTS]
        ram = list(RAM)
        for index in range(0, len(points), 3):
            deaths = points[index:index + 3]
            # A rank dies at most once: the launched ranks 3, 2, 1, 0 in turn, of which 0 comes first every other time.
            order = [0, 3, 2] if index % 2 else [3, 2, 1]
            faults = [f"{point}@{6 + 7 * i}:{order[i]}=kill" for i, (point, _) in enumerate(deaths)]
            with self.subTest(faults=faults):
                start, pids = self.start(f"points-{index}", Layout(4), ram[index % len(ram)], ",".join(faults))
                self.check_end(start, len(deaths))
                self.assertTrue(pids)

    def test_the_console_says_how_a_rank_died(self):
        """By the guard of its host, and the command that shows more."""
        ways = {3: ("segv", "signal 11 (SIGSEGV)"), 2: ("abort", "signal 6 (SIGABRT)"), 1: ("kill", "signal 9 (SIGKILL)")}
        faults = ",".join(f"step.begin@{20 - 4 * rank}:{rank}={action}" for rank, (action, _) in ways.items())
        start, _ = self.start("ways", Layout(4), "every step", faults)
        self.check_end(start, len(ways))
        output = start.output()
        said = re.findall(r"^holdfast guard: rank (\d) \(host \S+\) died: (.*)$", output, re.MULTILINE)
        expected = [(str(rank), cause) for rank, (_, cause) in ways.items()]
        self.assertLessEqual(set(said), set(expected), output)
        if harness.TELLS_CAUSES:
            self.assertEqual(said, expected, output)
        self.assertIn(f"holdfast flight {self.run_.directory}", output)

    def test_a_death_during_recovery(self):
        for index, point in enumerate(RECOVERY_POINTS):
            layout = [Layout(4), Layout(4, spares=1), Layout(3), Layout(4, spares=2)][index]
            victim = [2, 0, 1, 1][index]
            with self.subTest(point=point, layout=layout):
                dead = layout.ranks - 1 - layout.spares
                faults = f"step.before_vote@7:{dead}=kill,{point}:{victim if victim != dead else 0}=kill"
                start, _ = self.start(point, layout, "every step", faults)
                self.check_end(start, 2)

    def test_a_death_while_old_slots_are_taken_over(self):
        """The first two become those of the next epoch before its first step, the third when that has confirmed a snapshot."""
        self.die_while_slots_are_taken_over([(0, 1), (1, 3), (2, 2), (3, 3)])

    @harness.full
    def test_a_death_while_any_old_slot_is_taken_over(self):
        self.die_while_slots_are_taken_over([(0, 2), (0, 3), (1, 1), (1, 2), (2, 1), (2, 3), (3, 1), (3, 2)])

    def die_while_slots_are_taken_over(self, cases):
        for index, slot in cases:
            point, victim = SLOT_POINTS[index], (index + slot) % 3
            with self.subTest(point=point, slot=slot, victim=victim):
                faults = f"step.before_vote@7:3=kill,{point}@{slot}:{victim}=kill," + harness.slow_steps(9, count=4)
                start, _ = self.start(f"{point}-{slot}", Layout(4), "every step", faults)
                # The third is taken over by a thread that gives way to the steps, so on a busy machine its rank may die last.
                self.check_end(start, 2 if slot < 3 else 0)
                recoveries = self.run_.events("recovery")
                self.assertTrue(recoveries, start.tail())
                self.assertEqual({event["resumed_from"] for event in recoveries}, {"ram"})

    def test_a_spare_takes_the_seat(self):
        start, pids = self.start("spare", Layout(3, spares=1), "every step", harness.slow_steps(8, count=4))
        self.assertTrue(start.wait_for_step(5), start.tail())
        self.assertEqual(len(pids), 3)
        last = self.kill(start, [1])
        self.assertEqual((last["seats_before"], last["seats_after"], last["spares"]), (2, 2, 0))
        self.check_end(start, 1)
        gone = "none is left of elastic.spares = 1"
        self.assertIn(f"no longer armed: spares ({gone})", start.output())
        self.assertEqual(last["unarmed"]["spares"], gone)
        self.assertIn("shrink", last["armed"])
        status = json.loads(harness.program_output("status", self.run_.directory, "--json"))
        self.assertEqual((status["armed"], status["unarmed"]), (last["armed"], last["unarmed"]))
        metrics = (self.run_.directory / "metrics.prom").read_text()
        self.assertRegex(metrics, r'(?m)^holdfast_armed\{.*protection="spares"\} 0$')

    def test_a_spare_that_leads_tells_what_is_armed(self):
        start, _ = self.start("leads", Layout(2, spares=1), "every step", harness.slow_steps(8, count=4))
        self.assertTrue(start.wait_for_step(5), start.tail())
        self.kill(start, [0])
        self.check_end(start, 1)
        lines = [line for line in start.output().splitlines() if line.startswith("not armed: ")]
        self.assertEqual(len(lines), 2, start.output())
        self.assertNotIn("spares (none is left", lines[0])
        self.assertIn("spares (none is left of elastic.spares = 1)", lines[1])

    def test_a_spare_that_dies_costs_nothing(self):
        """Nobody misses it before the end."""
        start, _ = self.start("dead-spare", Layout(3, spares=1), "every step", harness.slow_steps(8, count=4))
        self.assertTrue(start.wait_for_step(5), start.tail())
        harness.kill(start.rank_pid(2), signal.SIGKILL)
        self.check_end(start, 0)

    @harness.full
    def test_a_spare_that_died_takes_no_seat(self):
        start, _ = self.start("no-spare", Layout(4, spares=1), "every step", harness.slow_steps(6, count=4))
        self.assertTrue(start.wait_for_step(3), start.tail())
        harness.kill(start.rank_pid(3), signal.SIGKILL)
        last = self.kill(start, [1])
        self.assertEqual((last["ranks_before"], last["ranks_after"], last["seats_after"]), (4, 2, 2))
        self.check_end(start, 2)

    def test_nobody_is_lost(self):
        """A rank is late for longer than the others wait. It is not dead, and nothing is lost: the step is redone, by the same
        processes, however old the newest snapshot is, and also where all slots but that one wait for the disk."""
        disk_waits = "save.before_shard@1:0=sleep:1500"  # the saves of steps 5 and 10, while 15 is the newest snapshot
        for layout, late, resumed, more in ((Layout(3), "step.before_vote@14:1", 13, ""),
                                            (Layout(4, tensor=2), "step.after_vote@14:2", 14, ""),
                                            (Layout(3), "step.before_vote@18:1", 17, disk_waits)):
            with self.subTest(layout=layout, late=late):
                options = ["--parallel.timeout=1500ms", "--checkpoint.ram_every_steps=10"]
                self.run_ = self.scene.run(late.partition(":")[0], TENSOR_LANES)
                start = self.run_.start(layout.ranks, "ft", [*layout.options(), *options], f"{late}=sleep:3000{',' * bool(more)}{more}")
                self.assertTrue(start.wait_for_step(1), start.tail())
                pids = set(start.ranks())
                harness.wait_until(lambda: self.run_.events("recovery"), SETTLE_S, lambda: not start.alive(), "nobody recovered",
                                   start.tail)
                self.assertLessEqual(set(start.ranks()), pids)
                self.check_end(start, 0)
                recoveries = self.run_.events("recovery")
                for event in recoveries:
                    self.assertEqual((event["level"], event["lost_steps"], event["resumed_from"], event["ranks_after"]),
                                     (1, 0, "ram", layout.ranks), event)
                self.assertIn(resumed, [event["resumed_from_step"] for event in recoveries])
                self.assertLessEqual(len(recoveries), 2, "on a busy machine another rank may be late, too; that costs as little")
                for fault in self.run_.events("fault"):
                    # Of the one that gave up, and not of one that heard of it.
                    self.assertIn("waited 1500 ms", fault["reason"])

    def test_a_save_that_the_disk_holds(self):
        """A rank whose thread stands in a write or a rename of a save goes on when that is over. Nobody takes it for hung, nor those
        that wait for it, though that takes longer than coming together may."""
        for point in ("save.before_shard@2:1", "save.before_rename@1:0"):
            with self.subTest(point=point):
                self.run_ = self.scene.run(point.partition("@")[0], TENSOR_LANES)
                options = [*Layout(3).options(), *RAM["every step"], "--elastic.recovery_timeout=3s"]
                start = self.run_.start(3, "ft", options, f"{point}=sleep:7000,{harness.slow_steps(11, count=10)}")
                name = f'"{point.partition("@")[0]}"'
                harness.wait_until(lambda: start.points.exists() and name in start.points.read_text(), SETTLE_S, lambda: not start.alive(),
                                   "no save", start.tail)
                harness.kill(start.rank_pid(2), signal.SIGKILL)
                self.check_end(start, 1)
                self.assertNotRegex(start.output(), "holdfast guard: .* hangs")
                self.assertGreater(self.run_.events("recovery")[0]["duration_ms"], 4000, "the save was over before the death")

    def test_a_read_of_data_that_the_disk_holds(self):
        """Nor is a rank taken for hung that drops a loader whose thread stands in a read."""
        self.run_ = self.scene.run("read", TENSOR_LANES)
        options = [*Layout(3).options(), *RAM["every step"], "--elastic.recovery_timeout=3s"]
        read = 30 * harness.MICROBATCH_SIZE + 1  # the loader is four microbatches ahead: in step 14 it reads the 31st
        start = self.run_.start(3, "ft", options, f"data.read@{read}:1=sleep:7000,step.begin@14:2=kill")
        self.check_end(start, 1)
        self.assertNotRegex(start.output(), "holdfast guard: .* hangs")
        self.assertGreater(self.run_.events("recovery")[0]["duration_ms"], 4000, "the read was over before the death")

    def test_one_gives_up_while_the_others_come_together(self):
        """A rank that ends by itself while the others wait for it in MPI, which tells nobody of an exit code: they go on at once.
        Rank 0 first looks whether it is the last one."""
        for rank in (2, 0):
            with self.subTest(rank=rank):
                self.run_ = self.scene.run(f"gives-up-{rank}", TENSOR_LANES)
                options = [*Layout(4).options(), *RAM["every step"], "--elastic.recovery_timeout=20s"]
                start = self.run_.start(4, "ft", options, f"step.begin@14:1=kill,recover.begin:{rank}=error")
                self.check_end(start, 2)
                self.assertRegex(start.output(), rf"holdfast: rank {rank} leaves the run, which may go on without it: rank {rank} ")
                self.assertLess(self.run_.events("recovery")[0]["duration_ms"], 5000, "much less than they may take")

    def test_too_few_left(self):
        """Half a copy of the model cannot go on: the run says so, ends as one, and the next start goes on."""
        start, _ = self.start("half", Layout(2, pipeline=2), "every step", harness.slow_steps(8, count=4))
        self.assertTrue(start.wait_for_step(5), start.tail())
        harness.kill(start.rank_pid(0), signal.SIGKILL)
        output = start.expect_exit(76, SETTLE_S)
        self.assertIn("1 rank is left, which is not enough for 1 copy of the model", output)
        self.assertEqual((self.run_.status()["state"], self.run_.status()["exit_code"]), ("failed", 76))
        harness.expect_no_processes(self.run_)
        self.run_.start(2).expect_exit(0)
        self.assertEqual(self.run_.digest(), self.reference)
        harness.expect_no_snapshots(self.run_)


if __name__ == "__main__":
    harness.main(at_once=1)
