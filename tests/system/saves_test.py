"""What a run saves without being told to, by the clock, and on request. A config that names no checkpoint key loses a few steps to a
killed rank or job, never all of them.
"""
import re
import signal
import unittest

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
        self.assertEqual({event["step"] for event in run.events("step")}, set(range(1, STEPS + 1)))
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
        self.assertEqual(run.start(1, faults="step.begin@9=kill").wait(), -signal.SIGKILL)
        run.start(1).expect_exit(0)
        self.assertGreaterEqual(run.events("start")[-1]["resumed_from_step"], 5, "the snapshot that measures")
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
    unittest.main()
