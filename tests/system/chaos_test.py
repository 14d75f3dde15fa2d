"""holdfast chaos: a small campaign ends with the bits of the undisturbed run, a wrong result is found, a seed repeats its plan,
and words that it does not understand get a sentence. And a campaign of kills alone, which takes too long for every time.

HOLDFAST_CHAOS_KILLS: how many kills (tools/test --long sets it); without it there is no such campaign.
"""
import json
import os
import re
import subprocess
import time
import unittest

import harness

KILLS = int(os.environ.get("HOLDFAST_CHAOS_KILLS") or 0)
RANKS = 8
# Every death needs a few steps for itself, and a start heals up to seven of them in place. The steps are as small as they get:
# what counts is where a run dies, and how often.
KILLS_OPTIONS = ["--training.sequence_length=16", "--training.microbatch_size=1", "--training.microbatches_per_lane=1",
                 "--parallel.tensor_lanes=2", "--checkpoint.ram_every_steps=1", "--checkpoint.every_steps=20",
                 "--evaluation.every_steps=0", "--model.width=32"]


class ChaosTest(unittest.TestCase):
    def setUp(self):
        self.scene = harness.Scene(steps=40)
        self.addCleanup(self.scene.close)
        self.directory = self.scene.directory / "campaign"

    def chaos(self, *words, code=0, config=None, timeout_s=850):
        arguments = [str(harness.PROGRAM), "chaos", str(config or self.scene.config), f"--directory={self.directory}", *words]
        done = subprocess.run(arguments, env=self.scene.environment, capture_output=True, text=True, timeout=timeout_s, check=False)
        self.scene.keep = self.scene.keep or done.returncode != code  # a run that went wrong is there to look at
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def result(self):
        return json.loads((self.directory / "chaos.json").read_text())

    def test_a_small_campaign_and_a_planted_difference(self):
        words = ["--seeds=1..4", "--parallel.tensor_lanes=2", "--checkpoint.ram_every_steps=2",
                 "--faults=kill,two_kills,kill_at_point,crash,mpirun_killed,damaged_checkpoint"]
        output = self.chaos(*words)
        self.assertIn("4 of 4 runs ended with the right bits", output)
        result = self.result()
        self.assertEqual((result["runs"], result["right"]), (4, 4))
        self.assertGreater(result["injected"], 2, output)
        self.assertEqual(sum(fault["wrong"] for fault in result["faults"].values()), 0)
        self.assertEqual([run["seed"] for run in result["each"]], [1, 2, 3, 4])
        page = (self.directory / "chaos.html").read_text()
        self.assertIn("4 with the right bits", page)
        left = {path.name for path in self.directory.iterdir()}
        self.assertEqual(left, {"undisturbed", "undisturbed.log", "undisturbed.digest", "chaos.json", "chaos.html"})

        # As if the disturbed run had other losses: the campaign uses the undisturbed run again, and says what differs.
        digest = self.directory / "undisturbed.digest"
        digest.write_text(re.sub(r"(?m)^(loss \w*)(\w)$", lambda match: match[1] + ("0" if match[2] != "0" else "1"), digest.read_text()))
        output = self.chaos(*words[1:], "--seeds=2..2", code=1)
        self.assertIn("as it was there", output)
        self.assertIn("WRONG", output)
        self.assertIn("other bits than the undisturbed run", output)
        self.assertIn("--seeds 2..2", output, "how to repeat it")
        self.assertTrue((self.directory / "seed-2/events.jsonl").exists(), "the run is kept")
        self.assertEqual(self.result()["each"][0]["right"], False)

    def test_a_hang_of_the_run_is_found(self):
        """A run that takes longer than its limit is wrong, and nothing of it is left."""
        output = self.chaos("--seeds=1..1", "--faults=kill", "--limit=1", code=1)
        self.assertIn("no end within 1 s: a hang", output)
        run = harness.Run(self.scene, "campaign/seed-1", [])
        harness.expect_no_processes(run)

    def test_a_seed_repeats_its_plan(self):
        plans = self.chaos("--plan", "--seeds=1..30")
        self.assertEqual(plans, self.chaos("--plan", "--seeds=1..30"))
        one = self.chaos("--plan", "--seeds=17..17")
        self.assertIn(one, plans)
        self.assertFalse(self.directory.exists(), "a plan makes nothing")

    def test_words_that_it_does_not_understand(self):
        for words, sentence in [
                (["--faults=kil"], "chaos: there is no fault kil, did you mean kill?"),
                (["--seeds=5..3"], "chaos: --seeds must be A..B with A <= B"),
                (["--seeds=1..2", "--runs=2"], "chaos: --seeds must be A..B"),
                (["--ranks=1"], "--ranks must be a whole number of at least 2"),
                (["--faults=lost_host"], "none of the faults that --faults names can be made here"),
                (["--parallel.lanes=1", "--model.layers=1", "--elastic.min_data_parallel=1", "--run=1"], "chaos has no option --run")]:
            with self.subTest(words=words):
                self.assertIn(sentence, self.chaos(*words, code=2))
                self.assertFalse(self.directory.exists())

    def test_an_undisturbed_run_that_fails(self):
        output = self.chaos("--data.sources=[{path = \"missing.txt\", format = \"text\"}]", "--model.vocabulary=256", code=2)
        self.assertIn("the undisturbed run ended with exit code 4", output)
        self.assertIn("missing.txt does not exist", output)

    @unittest.skipUnless(KILLS, "HOLDFAST_CHAOS_KILLS is not set")
    def test_many_kills(self):
        begun = time.monotonic()
        output = self.chaos(f"--kills={KILLS}", "--kills-only", f"--ranks={RANKS}", "--seed=1", "--training.steps=200",
                            *KILLS_OPTIONS, timeout_s=max(850, 3 * KILLS))
        result = self.result()
        print(f"\n{result['kills']} kills, {result['in_recovery']} of them during a recovery, in {result['runs']} runs and "
              f"{time.monotonic() - begun:.0f} s", flush=True)
        print(output)
        self.assertEqual(result["right"], result["runs"], output)
        self.assertGreaterEqual(result["kills"], KILLS)
        self.assertGreaterEqual(result["in_recovery"], 0.3 * KILLS, output)
        layouts = {(run["pipeline"], run["tensor"]) for run in result["each"]}
        self.assertGreater(len(layouts), 1, layouts)


if __name__ == "__main__":
    unittest.main(verbosity=2)
