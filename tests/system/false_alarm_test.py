"""No false alarm: a long run of tiny steps on twice as many ranks as there are processors, whose disk is slow and whose ranks
are late now and then, ends without a fault.

HOLDFAST_FALSE_ALARM_STEPS: so many steps in all (10,000 when left out), in runs of at most 10,000; HOLDFAST_FALSE_ALARM_FROM:
from this one on (0 when left out), which goes on with an earlier time: every run has other ranks late at other places.
"""
import os
import random
import unittest

import harness

STEPS = int(os.environ.get("HOLDFAST_FALSE_ALARM_STEPS", "10000"))
FROM = int(os.environ.get("HOLDFAST_FALSE_ALARM_FROM", "0"))
RUN_STEPS = 10_000
RUN_LIMIT_S = 900
MOST_RANKS = 8
RANKS = max(2, min(MOST_RANKS, 2 * os.cpu_count()))
FLOOR_MS = 2000
SAVE_EVERY = 500
# A step takes some milliseconds, so after five of them the floor is the deadline of every later one.
OPTIONS = ["--model.layers=1", "--model.heads=1", "--model.kv_heads=1", "--model.width=16", "--training.sequence_length=8",
           "--training.microbatch_size=1", "--training.microbatches_per_lane=1", f"--parallel.lanes={RANKS}", "--threads=1",
           f"--checkpoint.every_steps={SAVE_EVERY}", "--checkpoint.ram_every_steps=10", "--checkpoint.keep=1",
           "--evaluation.every_steps=1000", f"--watchdog.floor={FLOOR_MS}ms"]


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
    unittest.main(verbosity=2)
