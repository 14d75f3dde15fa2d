"""Recorded steps of runs, computed again by `holdfast replay`: in other layouts, across restarts and generations, with changed data,
and where the run ended by its numbers. It changes nothing in the run directory.
"""
import json
import re
import shutil
import signal
import struct
import subprocess
import unittest

import harness

STEPS = 12
CHECKS = r"^rank (\d) checks (\d+) ops, (\d+) results, digest (\w{32}): (.*?)(?:; largest growth .*)?$"
SHORT = ["--threads=1", "--checkpoint.every_steps=5", "--evaluation.every_steps=0", "--training.microbatch_size=1"]


def replay(run, step, *overrides, ranks=1):
    """(exit code, what it printed as the result, its messages)."""
    words = [*harness.command("ft" if ranks > 1 else "alone", ranks), str(harness.PROGRAM), "replay", str(run.directory),
             f"--step={step}", *overrides]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False, env=run.scene.environment)
    return done.returncode, done.stdout, done.stderr


def files_of(directory):
    return {path: (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else None) for path in directory.rglob("*")}


class ReplayTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scene = harness.Scene(steps=STEPS)
        cls.addClassCleanup(cls.scene.close)
        cls.run_of_two = cls.scene.run("two", SHORT)
        cls.run_of_two.start(2).expect_exit(0)

    def expect_same(self, run, step, *overrides, ranks=1):
        code, result, messages = replay(run, step, *overrides, ranks=ranks)
        self.assertEqual(code, 0, result + messages)
        self.assertTrue(result.endswith("\ncomparison same bits\n"), result)
        return result, messages

    def expect_refused(self, code, sentence, run, step, *overrides):
        found, result, messages = replay(run, step, *overrides)
        self.assertEqual((found, result), (code, ""), messages)
        self.assertRegex(messages, sentence)

    def test_every_layout_gives_the_bits_of_the_run(self):
        run, before = self.run_of_two, files_of(self.run_of_two.directory)
        layouts = [(1, []), (2, []), (2, ["--parallel.pipeline=2"])]
        for step, source in ((STEPS, "step-00000010: 2 steps"), (6, "step-00000005: 1 step"), (3, "the initial weights: 3 steps")):
            results = set()
            for ranks, overrides in layouts:
                with self.subTest(step=step, ranks=ranks, overrides=overrides):
                    result, messages = self.expect_same(run, step, "--threads=1", *overrides, ranks=ranks)
                    self.assertIn(f"{source} to compute", messages)
                    results.add(result)
            self.assertEqual(len(results), 1, results)
        self.assertEqual(files_of(run.directory), before)
        self.assertEqual(run.guards(), [])
        harness.expect_no_snapshots(run)

    def test_the_layout_of_the_run_where_it_fits(self):
        run = self.scene.run("tensor", [*SHORT, "--parallel.tensor=2"])
        run.start(2).expect_exit(0)
        alone, _ = self.expect_same(run, 7)
        together, _ = self.expect_same(run, 7, "--checks", ranks=2)
        self.assertEqual(re.sub(r"^rank .*\n", "", together, flags=re.M), alone)
        first, second = (int(ops) for _, ops, *_ in re.findall(CHECKS, together, re.M))
        self.assertLess(abs(first - second), first // 10, "two halves of every layer")

    def test_beside_the_run(self):
        run = self.scene.run("beside", SHORT)
        start = run.start(1, faults=harness.slow_steps(9, count=4, milliseconds=500))
        self.assertTrue(start.wait_for_step(8))
        self.expect_same(run, 8)
        start.expect_exit(0)
        self.assertEqual(run.digest(), self.run_of_two.digest())

    def test_prints_the_step(self):
        result, _ = self.expect_same(self.run_of_two, 7)
        recorded = next(event for event in self.run_of_two.events("step") if event["step"] == 7)
        lines = dict(line.split(" ", 1) for line in result.splitlines() if not line.startswith("lane"))
        self.assertEqual(lines["step"], "7")
        self.assertEqual(lines["data"], recorded["data_digest"])
        for name in ("loss", "grad_norm", "learning_rate"):
            number, bits = lines[name].split()
            self.assertEqual(recorded[name].hex(), double_of(bits).hex())
            self.assertAlmostEqual(float(number), recorded[name], delta=1e-8 * recorded[name])
        losses = re.findall(r"^lane (\d) loss (\S+) \w{16} digest \w{32}$", result, re.M)
        self.assertEqual([lane for lane, _ in losses], ["0", "1", "2", "3"])
        self.assertAlmostEqual(sum(float(loss) for _, loss in losses) / 4, recorded["loss"], places=6)
        text = self.scene.text.read_text()
        samples = re.findall(r'^lane \d first sample (\d+) of (\S+), epoch 0: "(.*)"$', result, re.M)
        self.assertEqual(len(samples), 4, result)
        for sample, path, shown in samples:
            begin = int(sample) * harness.SEQUENCE_LENGTH
            self.assertEqual((path, shown), (str(self.scene.text), text[begin:begin + 32].replace("\n", "\\n")))

    def test_checks_of_every_op(self):
        plain, _ = self.expect_same(self.run_of_two, 7)
        for ranks, overrides in ((1, []), (2, ["--parallel.pipeline=2"])):
            with self.subTest(ranks=ranks):
                result, _ = self.expect_same(self.run_of_two, 7, "--checks", *overrides, ranks=ranks)
                found = re.findall(CHECKS, result, re.M)
                self.assertEqual([(rank, said) for rank, *_, said in found], [(str(rank), "all finite") for rank in range(ranks)], result)
                self.assertTrue(all(int(ops) > 100 and int(results) > 100 for _, ops, results, *_ in found), found)
                self.assertEqual(re.sub(r"^rank .*\n", "", result, flags=re.M), plain)
                again, _ = self.expect_same(self.run_of_two, 7, "--checks", *overrides, ranks=ranks)
                self.assertEqual(again, result)

    def test_a_step_around_which_the_run_was_killed(self):
        run = self.scene.run("killed", SHORT)
        start = run.start(1, faults="step.before_vote@9=spin")
        start.wait_for_step(8)  # the log is written beside the steps
        start.kill_all()
        self.assertEqual(start.wait(), -signal.SIGKILL)
        run.start(1).expect_exit(0)
        self.assertGreater(len([event for event in run.events("step") if event["step"] == 8]), 1)
        for step in (8, 9):
            self.expect_same(run, step)

    def test_each_generation_has_its_own_settings(self):
        """The first one has a schedule of fewer steps, and a larger rate."""
        run = self.scene.run("generations", [*SHORT, "--checkpoint.every_steps=3", "--checkpoint.keep=9"])
        run.start(1, overrides=["--training.steps=6", "--optimizer.learning_rate=4e-3"]).expect_exit(0)
        run.start(1).expect_exit(0)
        self.assertEqual(run.events("start")[-1]["generation"], 1)
        for step, source in ((2, "the initial weights"), (5, "step-00000003"), (8, "step-00000006"), (11, "step-00000009")):
            with self.subTest(step=step):
                _, messages = self.expect_same(run, step)
                self.assertIn(source, messages)
        shutil.rmtree(run.directory / "checkpoints/step-00000006")
        self.expect_refused(5, r"has no whole checkpoint from before step 8 .* began at step 6", run, 8)

    def test_a_damaged_checkpoint_is_skipped(self):
        run = self.copy("damaged")
        shard = next((run.directory / "checkpoints/step-00000010").glob("*.hfs"))
        content = bytearray(shard.read_bytes())
        content[len(content) // 2] ^= 1
        shard.write_bytes(content)
        _, messages = self.expect_same(run, 11)
        self.assertRegex(messages, r"checkpoint skipped: \S*step-00000010\S* is damaged")
        self.assertIn("step-00000005: 6 steps", messages)

    def copy(self, name):
        run = self.scene.run(name)
        shutil.copytree(self.run_of_two.directory, run.directory)
        return run

    def test_other_numbers_are_told(self):
        run = self.copy("other")
        log = run.directory / "events.jsonl"
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        for event in lines:
            if event["event"] == "step" and event["step"] in (7, 8):
                event["loss"] += 2.0 ** -40
        log.write_text("".join(json.dumps(event, separators=(",", ":")) + "\n" for event in lines))
        code, result, _ = replay(run, 8)
        self.assertEqual(code, 1, result)
        self.assertIn("\nfirst_difference step 7\n", result)
        self.assertRegex(result, r"\ncomparison differs in loss; recorded: loss \S+ \w{16}, grad_norm")

    def test_changed_data(self):
        run = self.scene.run("data", SHORT)
        text = self.scene.directory / "own.txt"
        content = self.scene.text.read_bytes()
        text.write_bytes(content)
        run.start(1, overrides=[f'--data.sources=[{{ path = "{text}" }}]']).expect_exit(0)
        moved = text.rename(self.scene.directory / "moved.txt")
        for step in (3, 7):
            self.expect_refused(4, "own.txt", run, step)
            self.expect_same(run, step, f'--data.sources=[{{ path = "{moved}" }}]')
        text.write_bytes(content[:1000] + b"#" + content[1001:])
        for step in (3, 7):
            self.expect_refused(4, "the data files have changed since the run used them", run, step)

    def test_words_that_it_refuses(self):
        run = self.run_of_two
        self.expect_refused(2, "--step must be a whole number of at least 1", run, 0)
        self.expect_refused(2, f"has no step {STEPS + 1} yet: give a step from 1 to {STEPS}, its newest", run, STEPS + 1)
        self.expect_refused(2, r"these keys cannot change:\n  optimizer.learning_rate: ", run, 3, "--optimizer.learning_rate=1")
        self.expect_refused(2, r"these keys cannot change:\n  parallel.lanes: 4 -> 2", run, 3, "--parallel.lanes=2")

    def test_the_step_in_which_a_run_ended_by_its_numbers(self):
        run = self.scene.run("ended", [*SHORT, "--optimizer.learning_rate=100", "--optimizer.gradient_clip=0", "--training.steps=50",
                                       "--verdict.explosion_factor=0", "--verdict.on_nonfinite=stop"])
        run.start(1).expect_exit(20)
        step = run.last_step() + 1
        code, result, messages = replay(run, step)
        self.assertEqual(code, 0, result + messages)
        self.assertRegex(result, r"\nfailed step \d+: the loss is .*\nlane 0 loss ")
        self.assertTrue(result.endswith("\ncomparison not finite, as in the run\n"), result)
        code, checked, messages = replay(run, step, "--checks")
        self.assertEqual(code, 0, checked + messages)
        (*_, said), = re.findall(CHECKS, checked, re.M)
        self.assertRegex(said, r"^not finite first op \d+ \(\w+ in (layers\.\d\.\w+|head|embedding), in the (for|back)ward of lane \d, microbatch \d\), result \d, "
                               r"\d+ elements$")
        self.expect_same(run, step - 1)


def double_of(bits):
    """The number of the 16 hex digits that replay prints."""
    return struct.unpack(">d", bytes.fromhex(bits))[0]


if __name__ == "__main__":
    harness.main()
