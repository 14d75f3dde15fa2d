"""What `holdfast plan` says of failures and money: of a cluster from what is stated, and of a run from what it has measured."""
import json
import math
import re
import unittest

import harness

STEPS = 300
NAMES = ["failures_per_day", "p_no_failure", "ettr", "spares_95", "spares_99", "cost_total"]


class PlanTest(unittest.TestCase):
    def setUp(self):
        self.scene = harness.Scene(STEPS)
        self.addCleanup(self.scene.close)
        self.run_of_all = self.scene.run("planned", ["--checkpoint.every_steps=auto", "--checkpoint.ram_every_steps=auto"])

    def plan(self, ranks, *words):
        return harness.program_output("plan", *self.run_of_all.train_arguments(f"--training.steps={STEPS}")[2:], "--ranks", str(ranks), *words)

    def reliability(self, ranks, *words):
        return json.loads(self.plan(ranks, "--json", *words))["reliability"]

    def test_a_cluster(self):
        """1,000 GPUs with 50,000 hours each fail every two days; money only where there is a price."""
        words = ["--gpu=h100", "--parallel.lanes=1000", "--hazard.mtbf_hours=50000", "--training.steps=1000000000"]
        found = self.reliability(1000, *words, "--cost.per_rank_hour=3")
        for name in NAMES:
            self.assertIsInstance(found[name], (int, float), name)
        self.assertAlmostEqual(found["failures_per_day"], 0.48, places=6)
        self.assertAlmostEqual(found["p_no_failure"], math.exp(-found["training_seconds"] / (50 * 3600)), places=9)
        self.assertAlmostEqual(found["cost_total"], found["elapsed_seconds"] / 3600 * 1000 * 3, delta=1e-6 * found["cost_total"])
        self.assertAlmostEqual(sum(found["parts"].values()), 1, places=9)
        self.assertLessEqual(found["spares_95"], found["spares_99"])
        self.assertIsNone(self.reliability(1000, *words)["cost_total"])
        self.assertNotIn("$", self.plan(1000, *words))
        self.assertIn("hazard.mtbf_hours, 1000 ranks", self.plan(1000, *words))

    def test_a_run(self):
        """Before it begins all is estimated or assumed; then its own steps and saves count."""
        self.assertEqual(self.reliability(2)["step_from"], "estimated above")
        self.run_of_all.start(2).expect_exit(0)
        found = self.reliability(2)
        self.assertEqual(found["step_from"], f"measured in {self.run_of_all.directory}")
        self.assertEqual(found["snapshots"]["cost_from"], f"measured in {self.run_of_all.directory}")
        self.assertIn("0 failures in", self.plan(2))
        self.assertIn("are not counted", self.plan(1), "of a run with two ranks")

    def test_a_run_that_lost_a_rank(self):
        """Its failure counts, and its steps are those of the rank that is left."""
        self.run_of_all.start(2, faults="step.before_reduce@100:1=kill").expect_exit(0)
        found = self.reliability(1)
        self.assertEqual(found["step_from"], f"measured in {self.run_of_all.directory}")
        self.assertEqual(found["failures_so_far"], 1)
        self.assertIn("1 failure in", self.plan(1))
        self.assertIn("were those of 1 rank, and are not counted", self.plan(2))

    def test_checkpoints_that_are_there(self):
        """No more than the plan says are there at any time, though two are kept to go back to."""
        most = json.loads(self.plan(2, "--json"))["checkpoints_at_once"]
        start = self.run_of_all.start(2, overrides=["--checkpoint.every_steps=2"])
        seen = 0
        while start.alive():
            seen = max(seen, len(list((self.run_of_all.directory / "checkpoints").glob("step-*"))))
        start.expect_exit(0)
        self.assertLessEqual(seen, most)
        self.assertGreater(most, 4)
        self.assertRegex(self.plan(2), rf"up to {most} are there at once")

    def test_what_is_given_beside_a_gpu(self):
        """It wins over what the GPU stands for, each word alone."""
        words = ["--gpu=h100", "--parallel.lanes=16"]
        self.assertIn("600 TFLOP/s of large products and 3350 GB/s", self.plan(16, *words, "--peak-tflops=600"))
        inside = [self.reliability(16, *words, *given)["step_seconds"] for given in ([], ["--host-link-gbs=0.001"])]
        self.assertGreater(inside[1], 2 * inside[0])
        self.assertIn("kernels ", self.plan(16, *words, "--device=cpu"))

    def test_a_replacement_that_never_comes(self):
        refused = harness.call_program("plan", *self.run_of_all.train_arguments()[2:], "--ranks", "2", "--replacement-hours=1e300")
        self.assertEqual(refused.returncode, 2)
        self.assertIn("--replacement-hours is 1e+300, expected at most 1000000", refused.stdout)

    def test_what_is_not_searched(self):
        told = self.plan(4, "--suggest", "--gpu=a100", "--parallel.lanes=2")
        self.assertIn("not searched: tensor parallelism, because parallel.tensor_lanes is 1", told)
        self.assertIn("not searched: more than 2 data-parallel ranks", told)
        self.assertTrue(re.search("from --gpu a100: 14.6 TFLOP/s", told), told)


if __name__ == "__main__":
    harness.main()
