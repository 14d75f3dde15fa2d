"""What `holdfast sample` prints: prompts of a file, texts that end, and text while it is made."""
import subprocess
import unittest

import harness

SHORT = ["--threads=1", "--training.sequence_length=32", "--training.microbatch_size=1", "--model.width=32", "--evaluation.every_steps=0"]


class SampleTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scene = harness.Scene(40, 2)
        cls.addClassCleanup(cls.scene.close)
        cls.run_of_bytes = cls.scene.run("bytes", SHORT)
        cls.run_of_bytes.start(1).expect_exit(0)

    def command(self, *words):
        return [str(harness.PROGRAM), "sample", str(self.run_of_bytes.directory), "--device=cpu", *map(str, words)]

    def sampled(self, *words):
        """The text, and what is said of its making."""
        done = subprocess.run(self.command(*words), capture_output=True, timeout=120, check=False, env=harness.environment())
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout.decode(errors="surrogateescape"), done.stderr.decode()

    def test_prompts_of_a_file(self):
        prompts = ["The run", "A checkpoint", "Z", "a", "b", "c", "d", "e", "f", "g"]
        file = self.scene.directory / "prompts.txt"
        file.write_text("\n\n".join(prompts) + "\r\n")
        text, said = self.sampled("--prompts", file, "--tokens=50", "--temperature=0")
        expected = [f"==> {i + 1} <==\n" + self.sampled("--prompt", prompt, "--tokens=50", "--temperature=0")[0] for i, prompt in enumerate(prompts)]
        self.assertEqual(text, "".join(expected))
        self.assertRegex(said, r"^holdfast: 500 tokens in [\d.]+ s, [\d.]+ tokens/s\n$")

    def test_same_seed_same_text(self):
        texts = [self.sampled("--prompt=The ", "--tokens=60", f"--seed={seed}")[0] for seed in (5, 5, 6)]
        self.assertEqual(texts[0], texts[1])
        self.assertNotEqual(texts[0], texts[2])

    def test_a_text_ends_before_a_stop(self):
        words = ("--prompt=The ", "--tokens=60", "--temperature=0")
        text, _ = self.sampled(*words)
        made = text[len("The "):-1]
        stop = made[20:23]
        ended, said = self.sampled(*words, "--stop", "no such text", "--stop", stop)
        self.assertEqual(ended, "The " + made[:made.index(stop)] + "\n")
        self.assertIn(f"holdfast: {made.index(stop) + 3} tokens in ", said)

    def test_the_likeliest_tokens_alone(self):
        words = ("--prompt=The ", "--tokens=40")
        self.assertEqual(self.sampled(*words, "--top-p=1e-9")[0], self.sampled(*words, "--temperature=0")[0])

    def test_text_is_there_while_it_is_made(self):
        with subprocess.Popen(self.command("--prompt=The ", "--tokens=1000000000", "--temperature=0"), stdout=subprocess.PIPE,
                              env=harness.environment()) as job:
            begin = job.stdout.read(100)  # the rest would take days
            job.kill()
        self.assertTrue(begin.startswith(b"The "), begin)


if __name__ == "__main__":
    harness.main()
