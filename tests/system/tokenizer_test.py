"""holdfast tokenize: its tokens are those of Python's tokenizers (where .deps/tokenizer has them), its datasets are whole or not there,
and what docs/data.md says about text of one's own works as it stands."""
import fcntl
import gzip
import json
import os
import random
import re
import shutil
import struct
import subprocess
import tempfile
import unittest
from pathlib import Path

import errors_test
import harness

ROWS = errors_test.read_table(lambda heading: heading == errors_test.TOKENIZERS)
PYTHON = harness.ROOT / ".deps/tokenizer/bin/python"
ORACLE = Path(__file__).with_name("hugging_face_tokens.py")
PATTERNS = {
    "gpt2": "",  # ByteLevel's own
    "llama3": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "qwen2": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
}
# Letters, marks, digits and blanks of many scripts, all of them older than Unicode 14.
RANGES = [(0x20, 0x7E), (0x20, 0x7E), (0xA0, 0x24F), (0x300, 0x36F), (0x370, 0x3FF), (0x400, 0x4FF), (0x590, 0x5F4), (0x600, 0x6FF),
          (0x900, 0x97F), (0xE00, 0xE5B), (0x1100, 0x11FF), (0x180E, 0x180E), (0x1E00, 0x1EFF), (0x2000, 0x206F), (0x2150, 0x218B),
          (0x3000, 0x30FF), (0x4E00, 0x4FFF), (0xAC00, 0xAD00), (0x1D400, 0x1D4FF), (0x1F300, 0x1F64F), (0x20000, 0x20100)]
EMOJI = ["\U0001F468\u200D\U0001F469\u200D\U0001F467", "\U0001F3F4\U000E0067\U000E0062", "\u2764\ufe0f", "\U0001F44D\U0001F3FD"]
WORDS = ("the run saves loads don't I'LL we'Ve it\u017fs cafe\u0301 caf\u00e9! Stra\u00dfe \u041f\u0440\u0438\u0432\u0435\u0442 \u4f60\u597d \ud55c\uad6d\uc5b4 \uac00\u11a7 \u0646\u0635 "
         "<|endoftext|> <|im_start|> <|im_start|>> <tool_call> hyper zq 1234567 3.14 x+=1; def f(x): {} // \u00bd \u2460").split()
BREAKS = [" ", "  ", "   ", "\n", "\n\n", "\r\n", "\t", " \n ", "\u00a0", "\u3000", "\u2028", "\x85", "\x0b", "", "", "."]
BROKEN = [b"\xff", b"\xc3", b"\xe2\x82", b"\xed\xa0\x80", b"\xf0\x9f\x98", b"\xc0\xaf", b"\x80\x80", b"\xf4\x90\x80\x80"]


def mixed_document(generator, parts):
    made = b""
    for _ in range(parts):
        kind = generator.random()
        if kind < 0.55:
            made += generator.choice(WORDS).encode()
        elif kind < 0.75:
            first, last = generator.choice(RANGES)
            made += "".join(chr(generator.randint(first, last)) for _ in range(generator.randint(1, 6))).encode()
        elif kind < 0.8:
            made += generator.choice(EMOJI).encode()
        elif kind < 0.85:
            made += (generator.choice(" \n\ta") * generator.randint(2, 150)).encode()
        elif kind < 0.9:
            made += generator.choice(BROKEN)
        else:
            made += str(generator.randrange(10 ** generator.randint(1, 12))).encode()
        made += generator.choice(BREAKS).encode()
    return made


def real_documents():
    """Prose and code that people wrote."""
    paths = sorted((harness.ROOT / "docs").glob("*.md"))[:12] + sorted((harness.ROOT / "runtime/data").glob("*.cc"))
    return [path.read_bytes() for path in paths]


def read_dataset(prefix):
    """The tokens of the documents of a Megatron dataset, by the format's description."""
    index, data = Path(f"{prefix}.idx").read_bytes(), Path(f"{prefix}.bin").read_bytes()
    version, code, sequences, documents = struct.unpack_from("<QBQQ", index, 9)
    assert index[:9] == b"MMIDIDX\0\0" and version == 1 and code in (4, 8), index[:40]
    tokens = struct.unpack(f"<{len(data) // (2 if code == 8 else 4)}{'H' if code == 8 else 'i'}", data)
    lengths = struct.unpack_from(f"<{sequences}i", index, 34)
    firsts = struct.unpack_from(f"<{documents}q", index, 34 + 12 * sequences)
    begins = [0]
    for length in lengths:
        begins.append(begins[-1] + length)
    assert begins[-1] == len(tokens)
    return [list(tokens[begins[a]:begins[b]]) for a, b in zip(firsts, firsts[1:])]


class Folder(unittest.TestCase):
    def setUp(self):
        self.folder = Path(tempfile.mkdtemp(prefix="holdfast-tokenizer-"))
        self.addCleanup(shutil.rmtree, self.folder)

    def tokenize(self, *words, code=0):
        done = subprocess.run([harness.PROGRAM, "tokenize", *map(str, words)], cwd=self.folder, capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stderr if code else done.stdout

    def write_documents(self, documents):
        paths = []
        for number, document in enumerate(documents):
            paths.append(self.folder / f"{number:04}.txt")
            paths[-1].write_bytes(document)
        return paths

    def trained(self, vocabulary=400, name="tokenizer.json"):
        """A tokenizer of our own, of text that is easy to learn."""
        text = self.folder / "learn.txt"
        text.write_text(harness.text_of(50000, 1))
        self.tokenize("train", text, "--vocabulary", vocabulary, "--out", name)
        return self.folder / name


class SameTokens(Folder):
    @classmethod
    def setUpClass(cls):
        if not PYTHON.exists():
            raise unittest.SkipTest(f"{PYTHON} is not there (tools/bootstrap --tests), whose tokens ours are compared with")

    def oracle(self, *words):
        return subprocess.run([PYTHON, ORACLE, *map(str, words)], cwd=self.folder, check=True, capture_output=True, text=True).stdout

    def write_json(self, name, value):
        (self.folder / name).write_text(json.dumps(value))
        return name

    def expect_same(self, ours, theirs, documents):
        self.assertEqual(len(ours), len(theirs))
        for mine, other, document in zip(ours, theirs, documents):
            if mine != other:
                at = next((i for i, (a, b) in enumerate(zip(mine, other)) if a != b), min(len(mine), len(other)))
                self.fail(f"token {at} differs: {mine[at - 3:at + 5]} instead of {other[at - 3:at + 5]} in {document[:300]}")

    def test_every_kind_of_text_has_the_tokens_of_pythons_tokenizers(self):
        generator = random.Random(7)
        documents = [mixed_document(generator, 60) for _ in range(300)] + real_documents() + [b" " * 100000 + b"x", b"a" * 5000]
        listed = self.write_json("documents.json", [document.decode("latin-1") for document in documents])
        learnt = self.write_json("learnt.json", [document.decode("latin-1") for document in documents[:-2]])
        self.oracle("make", self.write_json("patterns.json", PATTERNS), learnt, self.folder)
        paths = self.write_documents(documents)
        lines = self.folder / "lines.jsonl"
        lines.write_text("".join(json.dumps({"id": 1, "body": document.decode("utf-8", errors="replace")}, ensure_ascii=number % 2 == 0) + "\n"
                                 for number, document in enumerate(documents)))
        for name in PATTERNS:
            with self.subTest(name):
                theirs = json.loads(self.oracle("encode", f"{name}.json", listed))
                self.tokenize("encode", f"{name}.json", *paths, "--out", name)
                self.expect_same(read_dataset(self.folder / name), theirs, documents)
                self.tokenize("encode", f"{name}.json", lines, "--format=jsonl", "--field=body", "--out", f"{name}-lines")
                self.expect_same(read_dataset(self.folder / f"{name}-lines"), theirs, documents)

    def test_a_tokenizer_that_is_trained_is_the_file_that_python_writes(self):
        generator = random.Random(8)
        documents = [mixed_document(generator, 60) for _ in range(200)] + real_documents() + [b"ab" * 500, b"a" * 301]
        listed = self.write_json("documents.json", [document.decode("latin-1") for document in documents])
        paths = self.write_documents(documents)
        for name, pattern in PATTERNS.items():
            with self.subTest(name):
                self.oracle("train", pattern, 3000, listed, f"theirs-{name}.json")
                self.tokenize("train", *paths, "--vocabulary=3000", "--pattern", name, "--out", f"{name}.json", "--threads=2")
                self.tokenize("train", *paths, "--vocabulary=3000", "--pattern", name, "--out", f"{name}-1.json", "--threads=1")
                ours, theirs = (json.loads((self.folder / each).read_text()) for each in (f"{name}.json", f"theirs-{name}.json"))
                self.assertEqual(ours["model"]["merges"], theirs["model"]["merges"])
                self.assertEqual(ours, theirs)
                whole = (self.folder / f"{name}.json").read_bytes()
                self.assertEqual(whole, (self.folder / f"theirs-{name}.json").read_bytes())
                self.assertEqual(whole, (self.folder / f"{name}-1.json").read_bytes())


    def test_special_tokens_of_any_text_are_those_of_python(self):
        """Characters that stand for bytes, and ones that do not: the file has bytes as characters."""
        generator = random.Random(9)
        documents = [mixed_document(generator, 60) for _ in range(100)] + real_documents()
        listed = self.write_json("documents.json", [document.decode("latin-1") for document in documents])
        paths = self.write_documents(documents)
        special = ["\u2192", "\u00e9", " ", "\u0120a", "\u00a0", "a", "\u0120", "<e>"]
        self.oracle("train", PATTERNS["llama3"], 1000, listed, "theirs.json", *special)
        self.tokenize("train", *paths, "--vocabulary=1000", "--out=ours.json", f"--special={','.join(special)}")
        self.assertEqual((self.folder / "ours.json").read_text(), (self.folder / "theirs.json").read_text())
        theirs = json.loads(self.oracle("encode", "theirs.json", listed))
        self.tokenize("encode", "ours.json", *paths, "--out=ours")
        self.expect_same(read_dataset(self.folder / "ours"), theirs, documents)


class Datasets(Folder):
    def test_documents_ends_and_the_part_that_is_held_out(self):
        tokenizer = self.trained()
        generator = random.Random(3)
        documents = [harness.text_of(generator.randint(50, 3000), seed) for seed in range(200)]
        lines = self.folder / "lines.jsonl"
        lines.write_text("".join(json.dumps({"text": text}) + "\n\n" for text in [*documents, ""]))
        told = self.tokenize("encode", tokenizer, lines, "--format=jsonl", "--out=whole", "--append-eos", "--threads=2")
        whole = read_dataset(self.folder / "whole")
        self.assertEqual(len(whole), len(documents))
        self.assertTrue(all(document[-1] == 0 and 0 not in document[:-1] for document in whole))
        self.assertIn("documents        200, 1 empty ones left out", told)
        self.assertIn(f"tokens           {sum(map(len, whole))}\n", told)
        self.assertIn(f"largest token    {max(map(max, whole))} of ", told)
        self.tokenize("encode", tokenizer, lines, "--format=jsonl", "--out=part", "--append-eos", "--held-out=0.2", "--threads=1")
        kept, held_out = read_dataset(self.folder / "part"), read_dataset(self.folder / "part-held-out")
        self.assertTrue(10 <= len(held_out) <= 80, len(held_out))
        self.assertEqual([each for each in whole if each in kept], kept)
        self.assertEqual([each for each in whole if each in held_out], held_out)
        self.assertEqual(len(kept) + len(held_out), len(whole))
        # The same documents in another order, in text files: the same ones are held out.
        paths = self.write_documents(text.encode() for text in reversed(documents))
        self.tokenize("encode", tokenizer, *paths, "--out=files", "--append-eos", "--held-out=0.2")
        self.assertEqual(read_dataset(self.folder / "files-held-out"), held_out[::-1])

    def test_bad_input_is_the_sentence_of_the_table_and_leaves_nothing(self):
        tokenizer = self.trained().read_text()
        for name, content in {
                "good.txt": "text", "empty.txt": "", "words.txt": "no ranks\n", "there.bin": "", "busy.partial": "",
                "lines.jsonl": '{"text": "a"}\n\n{"body": "b"}\n', "broken.jsonl": '{"text": "a"}\n{"text": \n', "number.jsonl": '{"text": 7}\n',
                "word.json": tokenizer.replace('"BPE"', '"WordPiece"'), "cut.json": tokenizer[:5000],
                "lower.json": tokenizer.replace('"normalizer": null', '"normalizer": {"type": "Lowercase"}'),
                "digits.json": tokenizer.replace('"Split"', '"Digits"'),
                "other.json": tokenizer.replace("<|endoftext|>", "<|im_end|>")}.items():
            (self.folder / name).write_text(content)
        encode, train = ("encode", "tokenizer.json"), ("train", "good.txt")
        good, jsonl, made = ("good.txt", "--out=x"), ("--format=jsonl", "--out=x"), ("--out=t.json", "--vocabulary=300")
        cases = {
            "tokenize-without-what": ("encoed",),
            "text-missing": (*encode, "absent.txt", "--out=x"),
            "text-is-directory": (*encode, ".", "--out=x"),
            "text-is-pipe": (*encode, "pipe", "--out=x"),
            "text-is-no-text": (*encode, "good.txt.gz", "--out=x"),
            "no-text": (*encode, "empty.txt", "--out=x"),
            "tokenizer-missing": ("encode", "absent.json", *good),
            "tokenizer-by-name": ("encode", "gpt2", *good),
            "tokenizer-not-json": ("encode", "cut.json", *good),
            "tokenizer-other-model": ("encode", "word.json", *good),
            "tokenizer-other-normalizer": ("encode", "lower.json", *good),
            "tokenizer-other-pieces": ("encode", "digits.json", *good),
            "ranks-without-pattern": ("encode", "words.txt", *good),
            "ranks-damaged": ("encode", "words.txt", *good, "--pattern=gpt2"),
            "pattern-of-json": (*encode, *good, "--pattern=gpt2"),
            "pattern-not-supported": (*train, *made, "--pattern=\\w+"),
            "line-without-field": (*encode, "lines.jsonl", *jsonl),
            "line-not-json": (*encode, "broken.jsonl", *jsonl),
            "field-not-text": (*encode, "number.jsonl", *jsonl),
            "field-of-text": (*encode, *good, "--field=body"),
            "encode-without-out": (*encode, "good.txt"),
            "out-is-directory": (*encode, "good.txt", "--out=there/"),
            "tokens-being-written": (*encode, "good.txt", "--out=busy"),
            "tokens-exist": (*encode, "good.txt", "--out=there"),
            "held-out-all": (*encode, *good, "--held-out=1"),
            "held-out-one-side": (*encode, *good, "--held-out=0.5"),
            "no-such-eos": (*encode, *good, "--eos=<s>"),
            "no-known-eos": ("encode", "other.json", *good, "--append-eos"),
            "tokens-nowhere": (*encode, "good.txt", "--out=absent/x"),
            "train-without-vocabulary": (*train, "--out=t.json"),
            "vocabulary-too-small": (*train, "--out=t.json", "--vocabulary=256"),
            "train-without-out": (*train, "--vocabulary=300"),
            "special-twice": (*train, *made, "--special=<a>,<a>"),
            "tokenizer-exists": (*train, "--out=tokenizer.json", "--vocabulary=300"),
        }
        self.assertEqual({*cases, "sample-other-tokenizer", "sample-pattern-alone", "evaluate-text-without-tokenizer", "evaluate-text-too-short",
                          "evaluate-jsonl"}, set(ROWS))
        os.mkfifo(self.folder / "pipe")
        (self.folder / "good.txt.gz").write_bytes(gzip.compress(b"text"))
        busy = (self.folder / "busy.partial").open("a")
        self.addCleanup(busy.close)
        fcntl.flock(busy, fcntl.LOCK_EX)
        before = sorted(self.folder.iterdir())
        for name, words in cases.items():
            with self.subTest(name):
                told = self.tokenize(*words, code=ROWS[name].code)
                self.assertRegex(told, ROWS[name].pattern)
                self.assertNotRegex(told, errors_test.UNFIT)
                self.assertEqual(sorted(self.folder.iterdir()), before)

    @harness.needs(os.geteuid() == 0, "a small disk wants root")
    def test_a_full_disk_is_a_sentence(self):
        tokenizer = self.trained()
        small = self.folder / "small"
        small.mkdir()
        text = self.folder / "large.txt"
        text.write_bytes(random.Random(1).randbytes(3_000_000))
        script = f"mount -t tmpfs -o size=1m none {small} && {harness.PROGRAM} tokenize encode {tokenizer} {text} --out {small}/x; code=$?; " \
                 f"ls {small}; exit $code"
        done = subprocess.run(["unshare", "-m", "bash", "-c", script], capture_output=True, text=True, timeout=60)
        self.assertEqual((done.returncode, done.stdout), (4, ""), done.stderr)
        self.assertIn("No space left on device", done.stderr)

    def test_bytes_that_are_not_utf8_are_told(self):
        tokenizer = self.trained()
        (self.folder / "broken.txt").write_bytes(b"caf\xe9 \xe2\x82 and more")
        self.assertIn("\nnot UTF-8        3 bytes, each broken character replaced by U+FFFD\n", self.tokenize("encode", tokenizer, "broken.txt", "--out=b"))
        (self.folder / "good.txt").write_text("caf\u00e9")
        self.assertNotIn("not UTF-8", self.tokenize("encode", tokenizer, "good.txt", "--out=g"))

    def test_documents_that_come_again_are_left_out(self):
        tokenizer = self.trained()
        lines = [json.dumps({"text": text}) for text in ("one and all", "another", "one and all", "one and all")]
        (self.folder / "a.jsonl").write_text("\n".join(lines))
        told = self.tokenize("encode", tokenizer, "a.jsonl", "--format=jsonl", "--dedupe", "--out=few")
        self.assertIn("documents        2\n", told)
        self.assertIn("\nduplicates       2 documents, 22 bytes, left out\n", told)
        self.assertEqual(len(read_dataset(self.folder / "few")), 2)

    def test_a_text_with_few_pairs_makes_fewer_tokens(self):
        (self.folder / "few.txt").write_text("ab ab")
        told = self.tokenize("train", "few.txt", "--out=t.json", "--vocabulary=300")
        self.assertIn(", not 300: the text has no more pairs", told)


class Documented(unittest.TestCase):
    def test_the_commands_of_the_page_work(self):
        """The block of docs/data.md, as it stands, with text of its own."""
        page = (harness.ROOT / "docs/data.md").read_text()
        section = page.partition("\n## Your own text\n")[2].partition("\n## ")[0]
        commands = "\n".join(re.findall(r"^```sh\n(.*?)^```", section, re.DOTALL | re.MULTILINE))
        with harness.Scene() as scene:
            (scene.directory / "build/release").mkdir(parents=True)
            (scene.directory / "build/release/bin").symlink_to(harness.PROGRAM.parent)
            (scene.directory / "books").mkdir()
            for number in range(40):
                (scene.directory / f"books/{number}.txt").write_text(harness.text_of(4000, number))
            done = subprocess.run(["bash", "-euo", "pipefail", "-c", commands], cwd=scene.directory, env={**os.environ, **scene.environment},
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", timeout=120, check=False)
            self.assertEqual(done.returncode, 0, done.stdout)
            self.assertIn("all steps are done", done.stdout)
            self.assertRegex(done.stdout, r"\nThe run.*\S")
            alone = harness.call_program("sample", scene.directory / "runs/books", "--pattern=gpt2")
            self.assertEqual(alone.returncode, ROWS["sample-pattern-alone"].code)
            self.assertRegex(alone.stdout, ROWS["sample-pattern-alone"].pattern)
            alone = harness.call_program("evaluate", scene.directory / "runs/books", "--data", scene.directory / "books/1.txt")
            self.assertEqual(alone.returncode, ROWS["evaluate-text-without-tokenizer"].code)
            self.assertRegex(alone.stdout, ROWS["evaluate-text-without-tokenizer"].pattern)
            (scene.directory / "word.txt").write_text("x")
            short = harness.call_program("evaluate", scene.directory / "runs/books", "--tokenizer", scene.directory / "books.json", "--data",
                                         scene.directory / "word.txt")
            self.assertEqual(short.returncode, ROWS["evaluate-text-too-short"].code)
            self.assertRegex(short.stdout, ROWS["evaluate-text-too-short"].pattern)
            (scene.directory / "lines.jsonl").write_text('{"text": "The run"}\n' * 40)
            lines = harness.call_program("evaluate", scene.directory / "runs/books", "--tokenizer", scene.directory / "books.json", "--data",
                                         scene.directory / "lines.jsonl")
            self.assertEqual(lines.returncode, ROWS["evaluate-jsonl"].code)
            self.assertRegex(lines.stdout, ROWS["evaluate-jsonl"].pattern)
            small = scene.directory / "small.json"
            other = scene.directory / "books/other.txt"
            other.write_bytes(bytes(range(256)) * 40 + random.Random(1).randbytes(300_000))
            harness.program_output("tokenize", "train", other, "--vocabulary=2100", "--out", small)
            refused = harness.call_program("sample", scene.directory / "runs/books", "--tokenizer", small)
            self.assertEqual(refused.returncode, ROWS["sample-other-tokenizer"].code)
            self.assertRegex(refused.stdout, ROWS["sample-other-tokenizer"].pattern)


if __name__ == "__main__":
    harness.main()
