"""`holdfast kernel ab`: a run with another kernel beside the same run without it."""
import json
import re
import unittest
from html.parser import HTMLParser

import harness
import kernel_test

STEPS = 12
# RMSNorm of fp32 rows in double, of which a test adds a line behind each row, or puts one in front.
NORM = """BEFORE
  for (int64_t row = 0; row < op->rows; ++row) {
    const float* x = (const float*)op->x + row * op->width;
    const float* weight = (const float*)op->weight;
    float* y = (float*)op->y + row * op->width;
    double squares = 0;
    for (int64_t i = 0; i < op->width; ++i) squares += (double)x[i] * x[i];
    const double rstd = 1 / sqrt(squares / (double)op->width + op->epsilon);
    for (int64_t i = 0; i < op->width; ++i) y[i] = (float)(x[i] * rstd * weight[i]);
    op->rstd[row] = (float)rstd;
    AFTER
  }"""
SOURCE = re.sub(r"  const float\* a = .*?\n  float\* y = [^\n]*\n", "", kernel_test.PLUGIN.replace("hf_add", "hf_rmsnorm_forward"), flags=re.DOTALL)


class AbTest(unittest.TestCase):
    def setUp(self):
        self.scene = harness.Scene(steps=STEPS)
        self.addCleanup(self.scene.close)
        self.file = self.scene.directory / "mine.so"
        self.json = self.scene.directory / "ab.json"

    def build(self, before="", after=""):
        kernel_test.build(self.file, source=SOURCE, link=("-lm",), OP='"rmsnorm_forward"', SCHEMA="HF_SCHEMA_RMSNORM_FORWARD",
                          COMPUTE=NORM.replace("BEFORE", before).replace("AFTER", after))
        return ["--plugin", self.file]

    def compare(self, *words, run=None):
        said = harness.program_output("kernel", "ab", run or self.scene.config, "--json", self.json, *words)
        return said, json.loads(self.json.read_text())

    def test_same_kernels_differ_in_nothing(self):
        said, found = self.compare("--noise", "--from=start")
        self.assertTrue(found["same_bits"])
        self.assertEqual([step["step"] for step in found["steps"]], list(range(1, STEPS + 1)))
        for step in found["steps"]:
            self.assertEqual(*step["loss"])
            self.assertEqual(*step["grad_norm"])
        self.assertEqual((found["loss_difference"], found["kernels"]), ({"largest": 0, "mean": 0, "rms": 0}, []))
        self.assertGreater(found["noise_rms"], 0)
        self.assertRegex(said, r"(?m)^bits +the same in all 12 steps, and in the state after them$")
        self.assertRegex(said, r"(?m)^verdict +B computes the same bits as A, and ")
        self.assertFalse((self.scene.directory / "runs").exists(), "nothing is written but what was asked for")

    def test_another_kernel_is_named_where_it_differs_first(self):
        page = self.scene.directory / "ab.html"
        said, found = self.compare(*self.build(), "--noise", "--page", page)
        self.assertEqual(len(found["kernels"]), 1)
        self.assertRegex(found["kernels"][0], r"^rmsnorm_forward: A \w+, B mine$")
        self.assertFalse(found["same_bits"])
        self.assertEqual((found["origin"]["step"], found["origin"]["op"], found["origin"]["alike"]), (1, "rmsnorm_forward", False))
        self.assertRegex(said, r"first in result 0 of rmsnorm_forward in layers\.0\.attention, in the forward of lane 0, microbatch 0")
        self.assertRegex(found["verdict"], r"its loss differs from A's (as roundings make it|more than by roundings) \(")
        self.assertLess(found["loss_difference"]["largest"], 1e-2)
        HTMLParser().feed(page.read_text())
        for title in ("Difference of the loss", "Time of a step"):
            self.assertIn(title, page.read_text())

    def test_a_difference_that_comes_late_is_found_by_making_the_steps_again(self):
        """By the bits of what the kernel reads, which are others on other processors."""
        for salt in range(8):
            differs = f"if ((*(const unsigned*)op->x >> 4 & 255) == {salt * 31}) *(float*)op->y *= 1.5f;"
            plain = self.scene.directory / "plain.so"
            self.build()
            self.file.rename(plain)
            words = [f"--kernels.plugins=['{plain}', '{self.file}']", "--kernels.rmsnorm_forward=late", "--training.steps=200", "--steps=200"]
            kernel_test.build(self.file, source=SOURCE, link=("-lm",), OP='"rmsnorm_forward"', SCHEMA="HF_SCHEMA_RMSNORM_FORWARD", NAME='"late"',
                              COMPUTE=NORM.replace("BEFORE", "").replace("AFTER", "") + differs)
            config = self.scene.directory / "plain.toml"
            config.write_text(self.scene.config.read_text() + f'\n[kernels]\nplugins = ["{plain}"]\nrmsnorm_forward = "mine"\n')
            _, found = self.compare(*words, run=config)
            if found.get("first_difference", 0) > 2:
                break
        self.assertGreater(found["first_difference"], 2)
        self.assertEqual(found["origin"]["op"], "rmsnorm_forward")
        self.assertEqual(found["origin"]["step"], found["first_difference"])
        self.assertTrue(all(step["same_bits"] for step in found["steps"][:found["first_difference"] - 1]))

    def test_an_optimizer_is_seen_in_the_state_that_it_leaves(self):
        said, found = self.compare("--kernels.adamw=reference", "--steps=1", "--from=start")
        self.assertEqual((found["same_bits"], found["same_state"], found.get("origin")), (False, False, None))
        self.assertIn("others in the state after the last step alone", said)
        said, found = self.compare("--kernels.adamw=reference", "--from=start")
        self.assertFalse(found["same_bits"])
        self.assertTrue(found["origin"]["alike"], found["origin"])
        self.assertRegex(said, r"bits +others before the ops of step \d+, in what an update leaves; first seen in result")

    def test_the_directory_of_a_run_that_trains_with_a_plugin(self):
        words = [f"--kernels.plugins={self.build()[1]}", "--kernels.rmsnorm_forward=mine"]
        run = self.scene.run("run")
        run.start(1, overrides=words).expect_exit(0)
        refused = harness.call_program("kernel", "ab", run.directory, "--from=start")
        self.assertEqual(refused.returncode, 2, refused.stdout)
        self.assertIn("name the plug-in that has it in kernels.plugins", refused.stdout)
        _, found = self.compare(words[0], "--from=start", "--kernels.rmsnorm_forward=auto", run=run.directory)
        self.assertRegex(found["kernels"][0], r"^rmsnorm_forward: A mine, B \w+$")

    def test_from_the_newest_checkpoint_of_a_run(self):
        run = self.scene.run("run")
        start = run.start(1, overrides=["--training.steps=20", "--checkpoint.every_steps=8"], faults="step.begin@13=sleep:600000")
        self.assertTrue(start.wait_for_step(12), start.tail())
        self.assertTrue(start.wait_for_checkpoint(8), start.tail())
        start.kill_all()
        before = sorted(path.name for path in run.directory.iterdir())
        said, found = self.compare(run=run.directory)
        self.assertEqual([step["step"] for step in found["steps"]], list(range(9, 21)))
        self.assertTrue(found["same_bits"])
        self.assertRegex(said, r"from .*/run/checkpoints/\S+ \(step 8\)")
        recorded = {event["step"]: event["loss"] for event in run.events("step")}
        for step in found["steps"][:4]:
            self.assertEqual(step["loss"][0], recorded[step["step"]], "A is the run itself")
        self.assertEqual(sorted(path.name for path in run.directory.iterdir()), before)

    def test_numbers_that_are_not_finite_end_it(self):
        _, found = self.compare(*self.build(after="if (row == 0) y[0] = NAN;"))
        self.assertEqual(len(found["steps"]), 1)
        self.assertEqual(found["verdict"], "B is not finite in step 1")

    def test_a_kernel_that_ends_the_process_is_told_with_its_step(self):
        for before, way in (("raise(SIGSEGV);", "signal 11"), ("_exit(0);", "exit code 0")):
            with self.subTest(way):
                done = harness.call_program("kernel", "ab", self.scene.config, *self.build(before=before), "--json", self.json)
                self.assertEqual(done.returncode, 1, done.stdout)
                self.assertRegex(done.stdout, rf"wrong: B ended the process .*{way}.*; the last thing: step 1 of {STEPS}: B")
                self.assertFalse(self.json.exists())

    def test_bad_words(self):
        run = self.scene.run("run")
        run.start(1).expect_exit(0)
        for words, code, says in (([self.scene.config, "--from=middle"], 2, "from .*newest, start"),
                                  ([self.scene.config, "--kernels.rmsnorm_forward=nobody"], 2, "there is no such implementation"),
                                  ([self.scene.config, "--plugin", self.scene.text], 2, "plug-in"),
                                  ([self.scene.directory / "absent.toml"], 2, "absent.toml"),
                                  ([run.directory], 2, rf"has made all of its {STEPS} steps: give --from=start"),
                                  ([], 2, "RUN")):
            with self.subTest(words):
                done = harness.call_program("kernel", "ab", *words)
                self.assertEqual(done.returncode, code, done.stdout)
                self.assertRegex(done.stdout, says)


if __name__ == "__main__":
    unittest.main()
