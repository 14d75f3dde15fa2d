"""What a run saves without being told to, by the clock, and on request. A config that names no checkpoint key loses a few steps to a
killed rank or job, never all of them.
"""
import re
import signal
import unittest
from pathlib import Path

import harness

STEPS = 30


class SavesTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scene = harness.Scene(steps=STEPS)
        cls.addClassCleanup(cls.scene.close)
        without_keys = re.sub(r"\[checkpoint\]\n(\w+ = .*\n)+", "", cls.scene.config.read_text())
        assert "checkpoint" not in without_keys
        cls.scene.config.write_text(without_keys)
        cls.reference = harness.reference_digest(cls.scene)

    def check_end(self, run):
        self.assertEqual(run.digest(), self.reference)
        self.assertEqual(set(run.steps_told()), set(range(1, STEPS + 1)))
        harness.expect_no_snapshots(run)

    def test_a_killed_rank_costs_few_steps(self):
        """Before an interval is chosen, too: what the first step has made is saved at once."""
        for step in (4, 20):
            with self.subTest(step=step):
                run = self.scene.run(f"killed-{step}", ["--elastic.grow=off"])
                start = run.start(2, faults=f"step.begin@{step}:1=kill")
                start.expect_exit(0)
                recovery, = run.events("recovery")
                self.assertEqual(recovery["resumed_from"], "ram")
                self.assertLess(recovery["lost_steps"], 3 if step == 4 else step - 5)
                self.check_end(run)

    def test_a_killed_job_goes_on(self):
        run = self.scene.run("job")
        self.assertEqual(run.start(1, faults="step.before_vote@9=kill").wait(), -signal.SIGKILL)
        run.start(1).expect_exit(0)
        self.assertGreaterEqual(run.events("start")[-1]["resumed_from_step"], 5, "the snapshot that measures")
        self.check_end(run)

    def test_says_what_is_promised_and_cannot_be_kept(self):
        run = self.scene.run("promise", ["--checkpoint.lose_at_most=1ms", "--training.steps=200"])
        said = run.start(1).expect_exit(0)
        self.assertRegex(said, r"a lost process costs up to \S+ s of work, .*; checkpoint.lose_at_most = 1ms cannot be kept for all of them")
        for cost in run.events("failure_cost"):
            self.assertEqual(cost["lose_at_most_ms"], 1.0)
            self.assertGreater(max(cost["process_ms"], cost["job_ms"]), 1.0)

    def test_says_what_a_failure_costs(self):
        """Once intervals are known: of one host all but the process is what the disk has."""
        run = self.scene.run("cost", ["--checkpoint.every_steps=10", "--checkpoint.ram_every_steps=2"])
        printed = run.start(2).expect_exit(0)
        self.assertRegex(printed, r"a lost process costs up to \S+ s of work, a lost host up to \S+ s of work, a lost job up to \S+ s of work")
        costs = run.events("failure_cost")
        self.assertLess(costs[0]["process_ms"], costs[0]["host_ms"])
        self.assertEqual(costs[0]["host_ms"], costs[0]["job_ms"])
        run = self.scene.run("no-disk", ["--checkpoint.every_steps=0"])
        self.assertIn("a lost job all of its work", run.start(1).expect_exit(0))

    def save(self, run, *words, code=0):
        done = harness.call_program("save", run.directory, *words)
        self.assertEqual(done.returncode, code, done.stdout)
        return done.stdout

    def saved_step(self, printed):
        step, directory = re.search(r"step (\d+) is saved in (\S+)", printed).groups()
        harness.program_output("verify", directory)
        return int(step)

    def test_on_request(self):
        """With saves before the end and without: then there is no memory for a copy, and training waits."""
        options = {"with": ["--checkpoint.every_steps=1000"],
                   "without": ["--checkpoint.every_steps=0", "--checkpoint.ram_every_steps=0"]}
        for name, words in options.items():
            with self.subTest(name):
                run = self.scene.run(f"asked-{name}", words)
                start = run.start(2, faults=harness.slow_steps(5, count=20))
                self.assertTrue(start.wait_for_step(3))
                before = run.last_step()
                saved = self.saved_step(self.save(run))
                self.assertGreater(saved, before)
                self.assertLess(saved, STEPS)
                self.assertIn(f"saved on request: step {saved} in ", start.expect_exit(0))
                self.assertEqual([event["step"] for event in run.events("checkpoint")], [saved, STEPS])
                self.assertEqual(list((run.directory / "requests").iterdir()), [])
                self.check_end(run)
                self.assertEqual(self.saved_step(self.save(run)), STEPS, "a finished run has nothing to save")

    @harness.full
    def test_a_request_survives_a_death(self):
        """Asked before the first step, with a rank that dies in it: the run that goes on saves."""
        run = self.scene.run("dying", ["--checkpoint.every_steps=1000", "--elastic.grow=off"])
        (run.directory / "requests").mkdir(parents=True)
        request = run.directory / "requests/save-0123456789abcdef"
        request.write_text("asked\n")
        run.start(2, faults="step.before_vote@1:1=kill").expect_exit(0)
        self.assertEqual(request.read_text(), "saved 1\n")
        self.assertEqual([event["step"] for event in run.events("checkpoint")], [1, STEPS])
        self.check_end(run)

    @harness.full
    def test_signal_to_a_rank(self):
        """Not rank 0, which decides about the other saves. Two signals at once are one wish."""
        run = self.scene.run("signal", ["--checkpoint.every_steps=1000"])
        start = run.start(2, faults=harness.slow_steps(5, count=12))
        self.assertTrue(start.wait_for_step(4))
        pid = start.rank_pid(1)
        harness.kill(pid, signal.SIGUSR1)
        harness.kill(pid, signal.SIGUSR1)
        start.expect_exit(0)
        saved = [event["step"] for event in run.events("checkpoint")]
        self.assertEqual(len(saved), 2)
        self.assertIn(saved[0], range(4, 20))
        self.check_end(run)

    def test_signal_from_the_first_moment(self):
        """Before a rank has read its config it is not ended by the signal, and the save comes with the first step."""
        run = self.scene.run("early", ["--checkpoint.every_steps=1000"])
        start = run.start(1)

        def blocked():
            mask = re.search(r"SigBlk:\s*(\w+)", Path(f"/proc/{start.pid}/status").read_text()).group(1)
            # Who starts a thread blocks all signals for a moment, which says nothing.
            return int(mask, 16) >> (signal.SIGUSR1 - 1) & 1 and not int(mask, 16) >> (signal.SIGALRM - 1) & 1

        self.assertTrue(harness.wait_until(blocked, 20, lambda: not start.alive(), "no mask", start.tail))
        harness.kill(start.pid, signal.SIGUSR1)
        start.expect_exit(0)
        self.assertEqual([event["step"] for event in run.events("checkpoint")][0], 1)
        self.check_end(run)

    def test_signal_to_the_launcher(self):
        run = self.scene.run("launched", ["--checkpoint.every_steps=1000"])
        words = [str(harness.PROGRAM), "launch", "-np", "2", str(self.scene.config), f"--run.directory={run.directory}", *run.overrides]
        start = run.start_command(words, faults=harness.slow_steps(5, count=16))
        self.assertTrue(start.wait_for_step(4))
        start.signal(signal.SIGUSR1)
        self.assertIn("SIGUSR1: the run saves", start.expect_exit(0))
        saved = [event["step"] for event in run.events("checkpoint")]
        self.assertEqual(len(saved), 2)
        self.assertEqual(list((run.directory / "requests").iterdir()), [])
        self.check_end(run)

    def test_by_the_clock(self):
        """The first save of a run with checkpoint.every_steps = 0 is that of the clock. Bits do not follow it."""
        run = self.scene.run("clock", ["--checkpoint.every_steps=0", "--checkpoint.every=1s", "--checkpoint.ram_every_steps=0"])
        run.start(2, faults=harness.slow_steps(10)).expect_exit(0)
        saved = [event["step"] for event in run.events("checkpoint")]
        self.assertEqual(saved[-1], STEPS)
        self.assertGreaterEqual(len(saved), 2)
        self.assertLess(len(saved), 10)
        self.check_end(run)


if __name__ == "__main__":
    harness.main(at_once=1)
