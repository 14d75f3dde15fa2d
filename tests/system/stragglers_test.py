"""Slow ranks: one that sleeps or waits for its data is named, and nobody is where all are alike."""
import json
import re
import subprocess
import unittest

import harness

# A step of some 10 ms on a machine of two processors.
OPTIONS = ["--threads=1", "--model.layers=2", "--model.width=64", "--training.sequence_length=64", "--checkpoint.every_steps=0",
           "--checkpoint.ram_every_steps=0"]
LANES = 2


def stragglers(run):
    return [event for event in run.events("straggler")]


class StragglersTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scene = harness.Scene(400, LANES)
        cls.addClassCleanup(cls.scene.close)

    def run_with(self, name, *options, faults="", ranks=2):
        run = self.scene.run(name, [*OPTIONS, *options])
        return run, run.start(ranks, faults=faults)

    def expect_named(self, run, rank, of="rank"):
        found = stragglers(run)
        self.assertTrue(found, "nobody was named")
        self.assertEqual({event["rank"] for event in found}, {rank}, found)
        self.assertEqual(found[0]["of"], of)
        shown = json.loads(harness.program_output("stragglers", run.directory, "--json"))
        self.assertEqual(shown["stragglers"][-1]["rank"], rank)
        self.assertGreater(shown["stragglers"][-1]["lost_seconds"], 0)
        self.assertEqual([each["rank"] for each in shown["ranks"]], list(range(len(shown["ranks"]))))
        self.assertGreater(shown["ranks"][rank]["factor"], 1.1)
        self.assertIn(found[-1]["reason"], harness.program_output("stragglers", run.directory))
        report = (run.directory / "report.html").read_text()
        self.assertIn(f'<p class="fault">{found[-1]["reason"]}</p>', report)
        heat = {name: re.findall(rf'heat-(\d)"[^>]*><title>rank {name} ', report) for name in range(2)}
        self.assertIn(max(heat[rank]), "234", "the slow rank is shown as hot")
        self.assertEqual(set(heat[1 - rank]), {"0"}, "and the other one is not")
        return found

    def test_rank_that_sleeps(self):
        """A fault point that sleeps in each step, from step 40 on."""
        faults = ",".join(f"step.begin@{step}:1=sleep:40" for step in range(40, 121))
        run, start = self.run_with("sleeps", "--training.steps=120", faults=faults)
        start.expect_exit(0)
        found = self.expect_named(run, 1)
        self.assertEqual(found[0]["phase"], "host")
        self.assertLess(abs(found[0]["since_step"] - 40), 12)
        self.assertIn(found[0]["reason"], start.output())

    def test_slow_input(self):
        faults = ",".join(f"data.before_batch@{hit}:0=sleep:40" for hit in range(40, 161))
        run, start = self.run_with("input", "--training.steps=120", faults=faults)
        start.expect_exit(0)
        self.expect_named(run, 0, of="input")

    def test_nobody_where_all_are_alike(self):
        """Beside a busy loop, which takes a processor from one rank or the other."""
        busy = subprocess.Popen(["python3", "-c", "while True: pass"])
        try:
            run, start = self.run_with("healthy", "--training.steps=400")
            start.expect_exit(0)
        finally:
            busy.kill()
            busy.wait()
        self.assertEqual(stragglers(run), [])
        shown = json.loads(harness.program_output("stragglers", run.directory, "--json"))
        self.assertEqual(shown["stragglers"], [])
        self.assertEqual(len(shown["ranks"]), 2)

    def test_off_and_alone(self):
        for name, ranks, options in (("off", 2, ["--health.preset=off"]), ("alone", 1, [])):
            run, start = self.run_with(name, "--training.steps=5", *options, ranks=ranks)
            start.expect_exit(0)
            self.assertFalse((run.directory / "rank_times.jsonl").exists())
            self.assertEqual(harness.call_program("stragglers", run.directory).returncode, 2)


if __name__ == "__main__":
    harness.main()
