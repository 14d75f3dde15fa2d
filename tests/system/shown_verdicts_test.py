"""What people see of verdicts on numbers: the report, `holdfast status` and the console of a run that skips a step and loses a rank
whose memory changed."""
import json
import re
import unittest

import harness

STEPS = 16
SKIPPED, DAMAGED = 5, 9
SHORT = ["--checkpoint.every_steps=4", "--evaluation.every_steps=0", "--training.microbatch_size=1", "--training.microbatches_per_lane=1",
         "--log.every_steps=1"]
SAMPLE = 4 * SKIPPED  # the last of that step, counted from 1: four lanes of one sample each
RANK = r"memory of rank 1 \(host [^)]+\) changed by itself at step 9, evicted at step 9"


class ShownVerdictsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scene = harness.Scene(steps=STEPS)
        cls.addClassCleanup(cls.scene.close)

    def test_a_skipped_step_and_a_rank_that_is_left_out(self):
        run = self.scene.run("wrong", SHORT)
        start = run.start(2, faults=f"data.sample@{SAMPLE}=nan,step.begin@{DAMAGED}:1=flip:moment2:25")
        start.wait()
        self.assertTrue(run.finished(), start.tail())
        verdicts = {(event["step"], event["kind"], event["action"]) for event in run.events("verdict")}
        self.assertEqual(verdicts, {(SKIPPED, "nonfinite", "skip"), (DAMAGED, "corruption", "evict")}, start.tail())
        self.assertEqual({event["step"] for event in run.events("step") if event["loss"] is None}, {SKIPPED})

        self.assertRegex(start.output(), rf"(?m)^step {SKIPPED}/{STEPS} .* loss - \(skipped\)  gn -  lr ")
        self.assertNotRegex(start.output(), r"(?m)^step .*\bnan\b")
        summary = rf"1 step skipped \({SKIPPED}\), {RANK}"
        self.assertRegex(start.output(), rf"(?m)^numbers: {summary}$")
        self.assertRegex(harness.program_output("status", run.directory), rf"(?m)^numbers   {summary}$")
        numbers = json.loads(harness.program_output("status", run.directory, "--json"))["numbers"]
        self.assertEqual(numbers["skipped_steps"], [SKIPPED])
        self.assertEqual([(each["rank"], each["memory_steps"]) for each in numbers["hardware"]], [(1, [DAMAGED])])

        page = (run.directory / "report.html").read_text()
        self.assertRegex(page, rf"<h2>Numbers <small>{summary}; 1 step computed again to compare the bits")
        for action in ("skip", "evict"):
            self.assertEqual(page.count(f'"marker verdict-{action}"'), 2, "on the loss and on the gradient norm")
        for curve in ("raw", "train", "other"):
            path = re.search(rf'<path class="line {curve}" d="([^"]*)"', page)[1]
            self.assertEqual(path.count("M"), 2, "the curve is interrupted at the step that was skipped")
            self.assertNotIn("nan", path)

    def test_a_run_without_verdicts_says_nothing_of_them(self):
        run = self.scene.run("right", SHORT)
        start = run.start()
        start.expect_exit(0)
        self.assertNotIn("numbers", start.output())
        self.assertNotIn("numbers", harness.program_output("status", run.directory))
        self.assertNotIn("Numbers", (run.directory / "report.html").read_text())


if __name__ == "__main__":
    harness.main()
