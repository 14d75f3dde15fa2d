"""A run that lost ranks gets new ones between two steps: the same mpirun, the survivors' processes go on, nothing is computed
again, and the bits are those of the run that nothing disturbed. Copies of the model on one rank, on two of a pipeline and on
two that share layers; a death right after, of the new rank too; a death while they grow; beside spares. The run stands still only
when the new ranks are ready.
"""
import shutil
import signal
import time
import unittest

import harness

STEPS = 40
SETTLE_S = 50
TENSOR_LANES = ["--parallel.tensor_lanes=2"]  # of every start, and of the reference
RAM = "--checkpoint.ram_every_steps=1"
STOPPED_FOR_LONG = "--watchdog.floor=60s"  # a rank may be, until the test ends it


class GrowTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scene = harness.Scene(steps=STEPS, microbatch_size=4)
        cls.addClassCleanup(cls.scene.close)
        cls.reference = harness.reference_digest(cls.scene, overrides=TENSOR_LANES)

    def start(self, name, ranks, *options, faults="", after="0s", slow=12):
        self.run_ = self.scene.run(name, TENSOR_LANES)
        waits = harness.slow_steps(8, count=slow)  # so that the run is not over before it grows
        start = self.run_.start(ranks, "ft", [f"--elastic.grow_after={after}", *options], ",".join(filter(None, (faults, waits))))
        self.assertTrue(start.wait_for_step(1), start.tail())
        self.launched = {rank: start.rank_pid(rank) for rank in range(ranks)}
        return start

    def growths(self):
        return [event for event in self.run_.events("recovery") if event["reason"] == "growth"]

    def wait_for_growth(self, start, count=1):
        self.assertTrue(harness.wait_until(lambda: len(self.growths()) >= count, SETTLE_S, lambda: not start.alive(),
                                           "the run did not grow", start.tail), start.tail())
        return self.growths()[-1]

    def check_end(self, start, codes=(0,)):
        code = start.wait(SETTLE_S)
        run = self.run_
        self.assertEqual(run.status()["state"], "finished", start.tail())
        self.assertIn(code, (*codes, harness.STAYED_BEHIND), start.tail())
        start.expect_faults()
        self.assertEqual(run.digest(), self.reference, start.tail())
        self.assertEqual(set(run.steps_told()), set(range(1, STEPS + 1)))
        self.assertEqual(len(run.events("start")), 1, "nobody was started again")
        for event in self.growths():
            self.assertLess(event["ranks_before"], event["ranks_after"])
            self.assertEqual(event["lost_steps"], 0, event)
        harness.expect_no_processes(run)
        harness.expect_no_snapshots(run)

    def kill_and_grow(self, start, victims, new):
        """Kills these launched ranks, and checks that the same mpirun and survivors go on beside so many new ranks."""
        for rank in victims:
            harness.kill(self.launched.pop(rank), signal.SIGKILL)
        last = self.wait_for_growth(start)
        pids = set(start.ranks())
        if start.alive() and pids:
            self.assertLessEqual(set(self.launched.values()), pids)
            self.assertEqual(len(pids), len(self.launched) + new)
        return last

    def test_copies_come_back(self):
        self.lose_and_grow({"disk": (3, [1], []), "leader": (3, [0], [RAM]), "pipeline": (4, [3], [RAM, "--parallel.pipeline=2"]),
                            "tensor": (4, [2, 3], [RAM, "--parallel.tensor=2"])})

    @harness.full
    def test_more_copies_come_back(self):
        self.lose_and_grow({"three-of-four": (4, [2], [RAM]), "spare": (3, [1], [RAM, "--elastic.spares=1"])})

    def lose_and_grow(self, cases):
        for name, (ranks, victims, options) in cases.items():
            with self.subTest(name):
                start = self.start(name, ranks, *options)
                mpirun = start.pid
                self.assertTrue(start.wait_for_step(5), start.tail())
                last = self.kill_and_grow(start, victims, len(victims))
                self.assertEqual((last["ranks_before"], last["ranks_after"]), (ranks - len(victims), ranks))
                self.assertTrue(start.pid == mpirun)
                self.check_end(start)

    @harness.full
    def test_a_death_after_growth(self):
        """A rank dies that was there before, then the new one, which is number 3; the run recovers from each, and replaces it."""
        for victim in (1, 3):
            with self.subTest(victim=victim):
                faults = f"step.begin@5:2=kill,step.begin@{18 if victim == 1 else 4}:{victim}=kill"
                start = self.start(f"after-{victim}", 3, RAM, faults=faults)
                self.wait_for_growth(start, 2)
                self.check_end(start)

    @harness.full
    def test_a_new_rank_that_hangs(self):
        """A new rank is watched like those that were launched: it is ended, and replaced again."""
        faults = "step.begin@5:2=kill,step.begin@4:3=stop"
        start = self.start("hang", 3, RAM, "--watchdog.floor=1s", "--watchdog.ceiling=10s", faults=faults)
        self.wait_for_growth(start, 2)
        self.check_end(start)
        reasons = [event["reason"] for event in self.run_.events("fault")]
        self.assertTrue(any("rank 3" in reason and "hangs" in reason for reason in reasons), reasons)

    @harness.full
    def test_a_death_while_they_grow(self):
        """The run recovers in place or, where MPI is at the moment that it cannot leave, ends for the next start; it never hangs."""
        ended = 0
        for point, victim in (("grow.begin", 1), ("grow.begin", 0), ("grow.after_spawn", 0), ("grow.after_spawn", 1),
                              ("grow.before_load", 3)):
            with self.subTest(point=point, victim=victim):
                faults = f"step.begin@5:2=kill,{point}:{victim}=kill"
                start = self.start(f"{point}-{victim}", 3, RAM, "--elastic.recovery_timeout=8s", faults=faults)
                start.wait(SETTLE_S)
                if self.run_.finished():
                    self.check_end(start)
                    continue
                ended += 1
                start.expect_faults()
                self.run_.start(3, "ft", [RAM]).expect_exit(0, SETTLE_S)
                self.assertEqual(self.run_.digest(), self.reference, start.tail())
        self.assertLessEqual(ended, 1, "a moment of some milliseconds is met seldom")

    def test_steps_go_on_while_a_new_rank_prepares(self):
        slow = harness.slow_steps(6, count=6)
        start = self.start("prepares", 3, RAM, faults=f"step.begin@5:2=kill,grow.prepare=sleep:1500,{slow}")
        growth = self.wait_for_growth(start)
        self.check_end(start)
        self.assertLess(growth["duration_ms"], 1200)
        healed_us = self.run_.events("recovery")[0]["time_us"]
        between = [event for event in self.run_.events("step") if healed_us < event["time_us"] < growth["time_us"]]
        self.assertGreater(len(between), 3)

    def test_steps_go_on_while_a_save_is_slow(self):
        """The new rank is ready long before the disk has the save that follows the recovery; after which, in the second case, the next
        would be due at once."""
        slow = harness.slow_steps(6, count=25, milliseconds=200)
        each = ",".join(f"save.before_rename@{save}:0=sleep:4000" for save in (1, 2))
        for name, options, slow_saves in (("one", [], "save.before_rename@2:0=sleep:4000"),
                                          ("each", ["--checkpoint.every_steps=auto", "--checkpoint.every=1s"], each)):
            with self.subTest(saves=name):
                start = self.start(f"saves-{name}", 3, RAM, *options, faults=f"step.begin@8:2=kill,{slow_saves},{slow}")
                growth = self.wait_for_growth(start)
                self.check_end(start)
                healed_us = self.run_.events("recovery")[0]["time_us"]
                slow_save = next(event for event in self.run_.events("checkpoint") if event["duration_ms"] > 3900)
                self.assertLess(slow_save["time_us"], growth["time_us"])
                steps_us = [event["time_us"] for event in self.run_.events("step") if event["time_us"] > healed_us]
                self.assertGreater(sum(time_us < slow_save["time_us"] for time_us in steps_us), 8)
                pauses_us = [later - earlier for earlier, later in zip(steps_us, steps_us[1:])]
                self.assertLess(max(pauses_us), 3_000_000, "all stood still for a save")

    def prepares(self, start):
        """Returns the processes of this start that are new ranks and prepare themselves."""
        return {each["process"] for each in start.passed_points() if each["point"] == "grow.prepare"} & set(start.ranks())

    def test_a_death_while_a_new_rank_prepares(self):
        """A rank dies that goes on, then the one that started the new rank, then the new rank itself."""
        for victim, growths in ((1, 1), (0, 1), ("new", 0)):
            with self.subTest(victim=victim):
                prepare = "kill" if victim == "new" else "sleep:1500"
                start = self.start(f"prepares-{victim}", 3, RAM, faults=f"step.begin@5:2=kill,grow.prepare={prepare}", slow=30)
                if victim != "new":
                    self.assertTrue(harness.wait_until(lambda: self.prepares(start), SETTLE_S, lambda: not start.alive(), "nobody new",
                                                       start.tail), start.tail())
                    harness.kill(self.launched[victim], signal.SIGKILL)
                    self.wait_for_growth(start, growths)
                self.check_end(start)
                self.assertEqual(len(self.growths()) > 0, growths > 0)
                if victim == "new":
                    self.assertIn("new ranks died while they prepared themselves", start.output())

    def start_with_later(self, name, ranks, line, *options, faults=""):
        """The new ranks run `line` of a shell, in which $later is the program: MPI looks for it where it was when the run started."""
        directory = self.scene.directory / f"program-{name}"
        directory.mkdir()
        for library in harness.PROGRAM.parent.glob("lib*.so"):
            (directory / library.name).symlink_to(library)
        program, later, stand_in = (directory / name for name in ("holdfast", "holdfast-later", "holdfast (deleted)"))
        for path in (program, later):
            shutil.copy2(harness.PROGRAM, path)
        self.run_ = self.scene.run(name, TENSOR_LANES)
        words = harness.command("ft", ranks) + [str(program), *self.run_.train_arguments(RAM, *options)[1:]]
        start = self.run_.start_command(words, faults)
        self.assertTrue(start.wait_for_step(1), start.tail())
        self.launched = {rank: start.rank_pid(rank) for rank in range(ranks)}
        program.unlink()
        stand_in.write_text(f"#!/bin/sh\nlater='{later}'\n{line}\n")
        stand_in.chmod(0o755)
        return start

    def kill_stopped(self, pid, start):
        """Kills a rank when a fault has stopped it, for which the others wait: no growth begins before."""
        stopped = harness.wait_until(lambda: harness.state_of(pid) == "T", SETTLE_S, lambda: not start.alive(), "the rank did not stop", start.tail)
        self.assertTrue(stopped, start.tail())
        harness.kill(pid, signal.SIGKILL)

    @harness.full
    def test_a_start_of_new_ranks_that_takes_long(self):
        """The leader waits for them, within the limit of that; the rank that shares its layers waits for the leader for longer than a
        step may take. Nobody hangs, so nobody is ended."""
        line = 'sleep 9\nexec "$later" "$@"'  # longer than twice the four floors of the first step of an epoch
        start = self.start_with_later("long", 4, line, "--parallel.tensor=2", "--watchdog.floor=1s", "--elastic.recovery_timeout=60s",
                                      "--elastic.grow_after=1s", faults=harness.slow_steps(8, count=12))
        self.assertTrue(start.wait_for_step(5), start.tail())
        for rank in (2, 3):
            harness.kill(self.launched.pop(rank), signal.SIGKILL)
        self.wait_for_growth(start)
        self.check_end(start)
        self.assertNotRegex(start.output(), "holdfast guard: .* hangs")

    @harness.full
    def test_mpirun_is_stopped(self):
        """For longer than the limit of a start: the steps go on meanwhile, and the run grows when it can."""
        start = self.start("stopped", 3, RAM, "--elastic.recovery_timeout=5s", after="1s",
                           faults=harness.slow_steps(20, count=18, milliseconds=1000))
        self.assertTrue(start.wait_for_step(5), start.tail())
        harness.kill(self.launched.pop(2), signal.SIGKILL)
        harness.wait_until(lambda: self.run_.events("recovery"), SETTLE_S, lambda: not start.alive(), "nobody recovered", start.tail)
        harness.kill(start.mpirun_pid(), signal.SIGSTOP)
        self.addCleanup(harness.kill, start.mpirun_pid(), signal.SIGCONT)
        before = self.run_.last_step()
        time.sleep(8)
        self.assertFalse(self.growths())
        self.assertGreater(self.run_.last_step(), before + 3, start.tail())
        harness.kill(start.mpirun_pid(), signal.SIGCONT)
        self.wait_for_growth(start)
        self.check_end(start)
        self.assertRegex(start.output(), r"new ranks are not started: process \d+, which would do it for MPI, is stopped; others are started in 1 s")

    def test_a_start_that_never_ends(self):
        """MPI cannot give it up. The rank that waits for it is lost, and nobody else: no other tries it again."""
        start = self.start_with_later("never", 4, "exec sleep 300", STOPPED_FOR_LONG, "--elastic.recovery_timeout=4s", "--elastic.grow_after=100ms",
                                      faults=f"step.begin@3:3=stop,{harness.slow_steps(8, count=20)}")
        self.kill_stopped(self.launched.pop(3), start)  # before that nobody dies, so nobody starts what was there before
        self.assertTrue(harness.wait_until(self.run_.finished, 2 * SETTLE_S, lambda: not start.alive(), "the run did not end", start.tail),
                        start.tail())
        start.kill_all()  # with the new rank, for which mpirun waits
        self.assertIn("rank 0 waited 4000 ms for MPI to start new ranks", start.output())
        self.assertIn("a rank was lost while it started new ones, so no more are started before the next start", start.output())
        self.assertEqual(self.run_.digest(), self.reference, start.tail())
        self.assertEqual(set(self.run_.steps_told()), set(range(1, STEPS + 1)))
        self.assertEqual([(event["ranks_before"], event["ranks_after"]) for event in self.run_.events("recovery")], [(4, 3), (3, 2)])

    def test_the_end_while_a_new_rank_prepares(self):
        start = self.start("ends", 2, RAM, faults=f"step.begin@{STEPS - 4}:1=kill,grow.prepare=sleep:3000")
        self.check_end(start)
        self.assertFalse(self.growths())

    def test_none_can_be_started(self):
        """The program is gone from where it was: the run goes on with the ranks it has."""
        program = self.scene.directory / "holdfast"
        shutil.copy2(harness.PROGRAM, program)
        for library in harness.PROGRAM.parent.glob("lib*.so"):
            (self.scene.directory / library.name).symlink_to(library)
        self.run_ = self.scene.run("gone", TENSOR_LANES)
        arguments = harness.command("ft", 3) + [str(program), *self.run_.train_arguments(RAM, STOPPED_FOR_LONG, "--elastic.grow_after=100ms")[1:]]
        # The program is gone before a rank dies, and the run lasts until it wants to grow.
        faults = f"step.begin@5:2=stop,{harness.slow_steps(6, count=15)}"
        start = self.run_.start_command(arguments, faults)
        self.assertTrue(start.wait_for_step(1), start.tail())
        program.unlink()
        self.kill_stopped(start.rank_pid(2), start)
        start.wait(SETTLE_S)
        self.assertIn("no new ranks", start.output())
        self.assertFalse(self.growths())
        self.check_end(start, codes=(0, 183))  # mpirun counts a start that failed as its own failure


if __name__ == "__main__":
    harness.main()
