"""Sources of text with a tokenizer: the bits of a run on them are those of a run on the files of `holdfast tokenize encode`, their
tokens are made once whoever starts and however often, a kill leaves nothing that is used, and bad input is a sentence."""
import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import unittest
from pathlib import Path

import errors_test
import harness

ROWS = errors_test.read_table(lambda heading: heading == errors_test.TEXT_SOURCES)
PATIENCE_S = 120
CONFIG = """[run]
directory = "runs/a"
[model]
layers = 1
heads = 2
width = 16
[data]
sources = [{ path = "corpus.txt", format = "text", tokenizer = "tokenizer.json" }]
[training]
steps = 6
sequence_length = 32
microbatch_size = 2
[parallel]
lanes = 2
"""


class Folder(unittest.TestCase):
    def setUp(self):
        self.folder = Path(tempfile.mkdtemp(prefix="holdfast-text-source-"))
        self.addCleanup(shutil.rmtree, self.folder)
        (self.folder / "corpus.txt").write_text(harness.text_of(60000, 1))
        (self.folder / "run.toml").write_text(CONFIG)
        self.holdfast("tokenize", "train", "corpus.txt", "--vocabulary", 300, "--out", "tokenizer.json")

    def start(self, *words, ranks=1):
        launcher = [] if ranks == 1 else [str(harness.ROOT / "tools/mpirun"), "-np", str(ranks)]
        return subprocess.Popen([*launcher, harness.PROGRAM, *map(str, words)], cwd=self.folder, text=True, errors="replace", stdin=subprocess.DEVNULL,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=harness.environment())

    def holdfast(self, *words, ranks=1, code=0):
        job = self.start(*words, ranks=ranks)
        output, _ = job.communicate(timeout=PATIENCE_S)
        self.assertEqual(job.returncode, code, output)
        return output

    def train(self, run, *words, ranks=1, sources=None):
        """The output and the digest of a run."""
        listed = [] if sources is None else [f"--data.sources={sources}"]
        output = self.holdfast("train", "run.toml", f"--run.directory=runs/{run}", *listed, *words, ranks=ranks)
        return output, self.holdfast("digest", f"runs/{run}")

    def sampled(self, *words):
        return harness.without_rate(self.holdfast("sample", *words))

    def cached(self, cache="runs/token-cache"):
        return sorted(path.name for path in (self.folder / cache).iterdir())


class SameBits(Folder):
    def test_text_has_the_bits_of_its_tokens_in_every_layout_and_is_tokenized_once(self):
        self.holdfast("tokenize", "encode", "tokenizer.json", "corpus.txt", "--out", "encoded")
        _, expected = self.train("encoded", "--model.vocabulary=300", sources='[{ path = "encoded.bin", format = "megatron" }]')
        told, digest = self.train("a", ranks=2)
        self.assertEqual(digest, expected)
        self.assertRegex(told, r"tokenized corpus.txt: 1 document, \d+ tokens, the largest \d+ of 0 to 299; in runs/token-cache/[0-9a-f]{32}\n")
        made = self.cached()
        self.assertRegex(" ".join(made), "^[0-9a-f]{32}$")
        for ranks in (1, 2):
            told, digest = self.train(f"again-{ranks}", ranks=ranks)
            self.assertEqual(digest, expected)
            self.assertNotIn("tokenize", told)
        self.assertEqual(self.cached(), made)

    def test_jsonl_has_the_bits_of_its_tokens(self):
        lines = [json.dumps({"id": i, "body": harness.text_of(300, i)}) for i in range(100)]
        (self.folder / "corpus.jsonl").write_text("\n".join(lines))
        self.holdfast("tokenize", "encode", "tokenizer.json", "corpus.jsonl", "--out", "encoded", "--format", "jsonl", "--field", "body", "--append-eos")
        _, expected = self.train("encoded", "--model.vocabulary=300", "--data.document_mask=true",
                                 sources='[{ path = "encoded.bin", format = "megatron" }]')
        source = '{ path = "corpus.jsonl", format = "jsonl", column = "body", tokenizer = "tokenizer.json", append_eos = true }'
        told, digest = self.train("a", "--data.document_mask=true", "--data.cache=kept", sources=f"[{source}]", ranks=2)
        self.assertEqual(digest, expected)
        self.assertIn("100 documents", told)
        self.assertEqual(len(self.cached("kept")), 1)

    def test_held_out_text_is_tokenized_too(self):
        (self.folder / "held.txt").write_text(harness.text_of(20000, 2))
        told, _ = self.train("a", "--evaluation.every_steps=3", "--evaluation.batches=2",
                             '--evaluation.sources=[{ path = "held.txt", tokenizer = "tokenizer.json" }]', ranks=2)
        self.assertEqual(len(self.cached()), 2, told)


class Afterwards(Folder):
    def test_sample_and_export_have_the_tokenizer_of_the_run(self):
        self.train("a")
        words = ("--prompt", "The run", "--tokens", "12", "--device", "cpu")
        told = self.sampled("runs/a", *words)
        self.assertTrue(told.startswith("The run"), told)
        self.assertEqual(told, self.sampled("runs/a", "--tokenizer", "tokenizer.json", *words))
        newest = sorted((self.folder / "runs/a/checkpoints").iterdir())[-1]
        self.assertEqual(told, self.sampled(newest, *words))
        (self.folder / "other.txt").write_bytes("Déjà vu 😀. ".encode() * 3 + harness.text_of(9000, 2).encode() + b"\xff<|endoftext|>\n")
        self.holdfast("tokenize", "encode", "tokenizer.json", "other.txt", "--out", "other-tokens")
        loss = self.holdfast("evaluate", "runs/a", "--data", "other-tokens.bin")
        self.assertRegex(loss, r"^loss \d\.\d{9}\n$")
        for more in ([], ["--tokenizer", "tokenizer.json"]):
            self.assertEqual(self.holdfast("evaluate", "runs/a", "--data", "other.txt", *more), loss)
        self.holdfast("export", "runs/a", "exported")
        self.assertEqual((self.folder / "exported/tokenizer.json").read_text(), (self.folder / "tokenizer.json").read_text())
        about = json.loads((self.folder / "exported/tokenizer_config.json").read_text())
        self.assertEqual((about["tokenizer_class"], about["eos_token"]), ("PreTrainedTokenizerFast", "<|endoftext|>"))

    def test_a_checkpoint_has_no_tokenizer_that_is_not_of_its_run(self):
        (self.folder / "away").mkdir()
        self.train("bytes", sources='[{ path = "corpus.txt" }]')
        self.train("a")
        words = ("--prompt", "The", "--tokens", "4", "--device", "cpu")
        for run, target in (("bytes", "away/of-bytes"), ("a", "away/of-tokens")):
            newest = sorted((self.folder / f"runs/{run}/checkpoints").iterdir())[-1]
            shutil.copytree(newest, self.folder / target)
        # ./tokenizer.json is no file of the run of bytes.
        self.assertTrue(self.holdfast("sample", "away/of-bytes", *words).startswith("The"))
        self.holdfast("export", "away/of-bytes", "exported")
        self.assertFalse((self.folder / "exported/tokenizer.json").exists())
        name = sorted((self.folder / "runs/a/checkpoints").iterdir())[-1].name
        for path in (name, f"{name}/", f"../checkpoints/{name}"):
            done = subprocess.run([harness.PROGRAM, "sample", path, *words], cwd=self.folder / "runs/a/checkpoints", capture_output=True, text=True,
                                  errors="replace", timeout=PATIENCE_S, env=harness.environment())
            self.assertEqual(done.stdout[:3], "The", (path, done.stderr))

    def test_a_run_on_tokens_has_none_until_it_is_named(self):
        self.holdfast("tokenize", "encode", "tokenizer.json", "corpus.txt", "--out", "encoded")
        self.train("a", "--model.vocabulary=300", sources='[{ path = "encoded.bin", format = "megatron" }]')
        self.assertIn("a prompt is a list of numbers", self.holdfast("sample", "runs/a", "--prompt", "The", code=2))
        self.holdfast("export", "runs/a", "exported")
        self.assertFalse((self.folder / "exported/tokenizer.json").exists())
        self.holdfast("export", "runs/a", "named", "--tokenizer", "tokenizer.json")
        self.assertTrue((self.folder / "named/tokenizer.json").exists())
        told = self.holdfast("export", "runs/a", "file", "--format", "llmc", "--tokenizer", "tokenizer.json", code=2)
        self.assertIn("a model file of llm.c holds no tokenizer", told)


class Interrupted(Folder):
    def setUp(self):
        super().setUp()
        # Many documents, so that the work has many moments; some seconds of it.
        with (self.folder / "large.jsonl").open("w") as file:
            text = harness.text_of(20000, 3)
            for i in range(3000):
                file.write(json.dumps({"text": f"{i} {text[i:]}"}) + "\n")
        self.source = '[{ path = "large.jsonl", format = "jsonl", tokenizer = "tokenizer.json" }]'
        self.words = ("train", "run.toml", f"--data.sources={self.source}")

    def partial(self):
        return list((self.folder / "runs/token-cache").glob("*.partial/tokens.bin.partial"))

    def begin(self, *words, ranks=1):
        job = self.start(*self.words, *words, ranks=ranks)
        harness.wait_until(lambda: any(path.stat().st_size > 0 for path in self.partial()), 60, lambda: job.poll() is not None,
                           "nothing was tokenized", lambda: "")
        return job

    def test_a_kill_leaves_nothing_that_is_used(self):
        killed = self.begin()
        killed.send_signal(signal.SIGKILL)
        killed.communicate(timeout=PATIENCE_S)
        self.assertTrue(self.partial(), "it was whole before the kill")
        told, digest = self.train("a", sources=self.source, ranks=2)
        self.assertIn("tokenized large.jsonl: 3000 documents", told)
        self.assertRegex(" ".join(self.cached()), "^[0-9a-f]{32}$")
        told, other = self.train("b", "--data.cache=other", sources=self.source)
        self.assertIn("tokenized large.jsonl: 3000 documents", told)
        self.assertEqual(digest, other)

    def test_two_runs_at_once_tokenize_once(self):
        first = self.begin(ranks=2)
        second = self.start(*self.words, "--run.directory=runs/b")
        outputs = [job.communicate(timeout=PATIENCE_S)[0] for job in (first, second)]
        self.assertEqual([job.returncode for job in (first, second)], [0, 0], outputs)
        self.assertIn("tokenizes large.jsonl", outputs[0])
        self.assertIn("1 rank waits for it", outputs[0])
        self.assertIn("waiting for another process that tokenizes large.jsonl", outputs[1])
        self.assertNotIn("% ", outputs[1].partition("step")[0])
        self.assertEqual(self.holdfast("digest", "runs/a"), self.holdfast("digest", "runs/b"))
        self.assertEqual(len(self.cached()), 1)

    def test_another_process_may_take_longer_than_a_rank_that_hangs(self):
        directory = self.folder / re.search("the start makes (.*)", self.holdfast("check", "run.toml")).group(1)
        directory.parent.mkdir(parents=True)
        with open(f"{directory}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            job = self.start("train", "run.toml", "--watchdog.ceiling=1s", ranks=2)
            self.addCleanup(job.kill)
            with self.assertRaises(subprocess.TimeoutExpired, msg=f"{job.returncode}"):
                job.wait(timeout=9)
        output, _ = job.communicate(timeout=PATIENCE_S)
        self.assertEqual(job.returncode, 0, output)
        self.assertIn("waiting for another process that tokenizes corpus.txt", output)

    def test_a_request_to_stop_is_answered(self):
        job = self.begin()
        job.send_signal(signal.SIGTERM)
        output, _ = job.communicate(timeout=PATIENCE_S)
        self.assertEqual(job.returncode, 75, output)
        self.assertIn("asked to stop while text was tokenized", output)
        self.assertEqual(self.cached(), [])


class Told(Folder):
    def test_check_says_what_a_start_will_do_and_changes_nothing(self):
        told = self.holdfast("check", "run.toml")
        self.assertRegex(told, r"to tokenize  corpus.txt \([\d.]+ KiB\) with tokenizer.json of 300 tokens: the start makes runs/token-cache/[0-9a-f]{32}\n")
        self.assertIn("vocabulary 300:", told)
        self.assertFalse((self.folder / "runs").exists())
        self.train("a")
        told = self.holdfast("check", "run.toml")
        self.assertRegex(told, r"tokenized    corpus.txt: 1 document, \d+ tokens, the largest \d+ of 0 to 299; in runs/token-cache/")
        self.assertRegex(told, r"training     \d+ tokens")
        self.holdfast("plan", "run.toml", "--ranks", "2")

    def test_a_text_that_changed_is_another_run(self):
        self.train("a")
        text = (self.folder / "corpus.txt").read_text()
        (self.folder / "corpus.txt").write_text(text[:-2] + "x\n")
        told = self.holdfast("train", "run.toml", "--training.steps=9", code=4)
        self.assertRegex(told, "the data files have changed since")
        (self.folder / "corpus.txt").write_text(text)
        (self.folder / "tokenizer.json").rename(self.folder / "moved.json")
        self.train("a", "--training.steps=9", sources='[{ path = "corpus.txt", tokenizer = "moved.json" }]')

    def test_bad_input_is_a_sentence(self):
        (self.folder / "broken.jsonl").write_text('{"text": "a"}\n{"text": \n')
        (self.folder / "latin.txt").write_bytes(b"caf\xe9 " * 100)
        (self.folder / "empty.txt").write_text("")
        (self.folder / "word.json").write_text((self.folder / "tokenizer.json").read_text().replace('"BPE"', '"WordPiece"'))
        self.holdfast("tokenize", "train", "corpus.txt", "--vocabulary", 280, "--out", "other.json")
        text, jsonl = ('{{ path = "{}", tokenizer = "{}" }}'.format, '{{ path = "{}", format = "jsonl", tokenizer = "tokenizer.json" }}'.format)
        corpus = text("corpus.txt", "tokenizer.json")
        (self.folder / "words.jsonl").write_text('{"body": "a"}\n')
        (self.folder / "without.json").write_text((self.folder / "tokenizer.json").read_text().replace("<|endoftext|>", "<|other|>"))
        cases = {
            "source-tokenizer-too-large": (corpus, "--model.vocabulary=290"),
            "source-tokenizers-differ": (corpus + ", " + text("corpus.txt", "other.json"),),
            "source-tokenizer-missing": (text("corpus.txt", "absent.json"),),
            "source-tokenizer-by-name": (text("corpus.txt", "gpt2"),),
            "source-tokenizer-other-model": (text("corpus.txt", "word.json"),),
            "source-text-missing": (text("absent.txt", "tokenizer.json"),),
            "source-text-empty": (text("empty.txt", "tokenizer.json"),),
            "source-line-not-json": (jsonl("broken.jsonl"),),
            "source-line-without-column": (jsonl("words.jsonl"),),
            "source-ranks-without-pattern": (text("corpus.txt", "corpus.txt"),),
            "source-pattern-of-json": ('{ path = "corpus.txt", tokenizer = "tokenizer.json", pattern = "gpt2" }',),
            "source-without-eos": ('{ path = "corpus.txt", tokenizer = "without.json", append_eos = true }',),
            "source-jsonl-without-tokenizer": ('{ path = "corpus.txt", format = "jsonl" }',),
            "source-text-too-short": (corpus, "--training.sequence_length=99999"),
        }
        self.assertEqual(set(cases), set(ROWS))
        for name, (source, *words) in cases.items():
            for ranks in (1, 2):
                with self.subTest(name, ranks=ranks):
                    told = self.holdfast("train", "run.toml", f"--data.sources=[{source}]", *words, ranks=ranks, code=ROWS[name].code)
                    self.assertRegex(told, ROWS[name].pattern)
        self.assertFalse((self.folder / "runs/a").exists())
        told, _ = self.train("latin", sources=f'[{text("latin.txt", "tokenizer.json")}]')
        self.assertIn("100 bytes are not UTF-8", told)

    @harness.needs(os.geteuid() == 0, "a small disk wants root")
    def test_a_full_disk_is_a_sentence(self):
        (self.folder / "small").mkdir()
        (self.folder / "corpus.txt").write_text(harness.text_of(3_000_000, 5))
        script = "mount -t tmpfs -o size=100k none small && " \
                 f"{harness.PROGRAM} train run.toml --data.cache=small; code=$?; ls small; exit $code"
        done = subprocess.run(["unshare", "-m", "bash", "-c", script], cwd=self.folder, capture_output=True, text=True, timeout=60)
        self.assertEqual((done.returncode, done.stdout), (4, ""), done.stderr)
        self.assertIn("No space left on device", done.stderr)


if __name__ == "__main__":
    harness.main()
