"""kill -9 at random moments and at every named fault point: nothing saved is lost, nothing is left behind, and the run
that is started again ends with the bits of the run that was never disturbed.

Here the whole run ends (mpirun without fault tolerance, or all ranks die) and another start goes on. recovery_test.py has
the deaths of some ranks, which the others survive."""
import concurrent.futures
import shutil
import unittest

import harness
import kills

SEEDS = range(1, 21)
QUICK_SEEDS = 2 if harness.SANITIZED else 3  # of them, in the default tier
RESUME_STEP = 35  # of the runs that are killed at fault points: two saves and an evaluation are still to come
PUBLISHER_ONLY = {"save.before_manifest", "save.before_rename", "save.after_rename", "retain.before_rename",
                  "retain.after_rename", "log.before_line"}  # rank 0 passes them alone
ONCE = ("start.", "load.", "evaluation.", "retain.")  # points that such a run passes once


class KillTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scene = harness.Scene()
        cls.addClassCleanup(cls.scene.close)
        cls.reference = harness.reference_digest(cls.scene, overrides=["--checkpoint.keep=100", *kills.RUN_OPTIONS])
        cls.points = kills.fault_points(cls.scene)

    def test_random_kills_and_every_fault_point(self):
        """Kills the rank that publishes, and some runs at random."""
        self.kill(SEEDS[:QUICK_SEEDS], [(point, 0) for point in self.points])

    @harness.full
    def test_more_random_kills_and_every_fault_point_of_the_other_rank(self):
        self.kill(SEEDS[QUICK_SEEDS:], [(point, 1) for point in self.points if point not in PUBLISHER_ONLY])

    def test_a_slot_that_is_made_while_the_run_ends(self):
        run = self.scene.run("late_slot", kills.RUN_OPTIONS)
        start = run.start(2, "plain", faults=f"step.begin@{harness.STEPS - 8}:0=kill")
        start.expect_failure(kills.SETTLE_S)
        # The fourth slot that a rank takes over is its last one, in the background, while it makes the last steps.
        run.start(2, "plain", faults="slot.before_rename@4:1=sleep:2000").expect_exit(0)
        self.assertEqual(run.digest(), self.reference)
        harness.expect_no_snapshots(run)

    def kill(self, seeds, places):
        """Side by side: a start under mpirun waits more than it computes."""
        self.assertGreater(len(self.points), 10, self.points)
        self.killed_of = []  # of the seeds that were right
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            found = [pool.submit(harness.complaints, self.torment, [(seed,) for seed in seeds]),
                     pool.submit(harness.complaints, self.kill_at, places, at_once=2)]
        for case, complaint in zip([*seeds, *places], [*found[0].result(), *found[1].result()]):
            with self.subTest(case=case):
                self.assertIsNone(complaint)
        self.assertGreaterEqual(sum(self.killed_of), len(self.killed_of), "too few starts were killed for this to say anything")

    def torment(self, seed):
        story = []
        try:
            digest, killed = kills.torment(self.scene, seed, self.points, story)
            self.assertEqual(digest, self.reference)
        except AssertionError as error:
            raise AssertionError("\n".join([f"seed {seed}:", *story, str(error)])) from None
        self.killed_of.append(killed)

    def kill_at(self, point, rank):
        hit = 1 if point.startswith(ONCE) else 2
        run = self.scene.run(f"{point}-{rank}", kills.RUN_OPTIONS)
        source = self.scene.directory / f"reference/checkpoints/step-{RESUME_STEP:08d}"
        shutil.copytree(source, run.directory / "checkpoints" / source.name)
        if point == "load.before_snapshot":  # there must be one that is newer than the checkpoint
            start = run.start(2, "plain", faults="step.begin@4:0=kill")
            start.expect_failure(kills.SETTLE_S)
            start.expect_faults()
        layouts = (kills.Layout(2), kills.Layout(2, stages=2), kills.Layout(2, tensor=2))  # in turn
        layout = layouts[self.points.index(point) % len(layouts)]
        faults = f"{point}@{hit}:{rank}=kill"
        if point.startswith(("replica.", "reduce.")):  # between ranks with the same part of the model
            layout = layouts[0]
        if point.startswith("replica."):  # which they keep for each other, if there is time
            faults += "," + harness.slow_steps(4, milliseconds=80)
        keeps = ["--checkpoint.keep=1"] if point.startswith("retain.") else []  # else nothing old enough to go
        start = run.start(2, "plain", [*layout.options(), *keeps], faults)
        start.expect_failure(kills.SETTLE_S)
        start.expect_faults()
        kills.check_after_kill(run, RESUME_STEP)
        run.start(1 + rank).expect_exit(0)
        self.assertEqual(run.digest(), self.reference)
        harness.expect_no_snapshots(run)


if __name__ == "__main__":
    harness.main(at_once=1)
