#!/usr/bin/env python3
"""Every data format as the program reads it, from files that this script writes by the formats' descriptions, so that
reader and writer share nothing. HOLDFAST names the program; tools/mpirun starts the ranks.
"""
import collections
import json
import os
import random
import shutil
import struct
import subprocess
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import harness

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = os.environ.get("HOLDFAST", str(ROOT / "build/release/bin/holdfast"))
PATIENCE_S = 90
LENGTH = 16  # training.sequence_length

CONFIG = f"""[run]
directory = "run"
[model]
layers = 1
heads = 2
width = 16
vocabulary = 256
[data]
sources = []
ledger = true
[training]
steps = 4
sequence_length = {LENGTH}
microbatch_size = 2
[parallel]
lanes = 2
[optimizer]
schedule = "constant"
"""


def text(path, tokens):
    path.write_bytes(bytes(tokens))


def llmc(path, tokens, wide=False):
    header = struct.pack("<3i", *((20240801, 7) if wide else (20240520, 1)), len(tokens)).ljust(1024, b"\0")
    path.write_bytes(header + struct.pack(f"<{len(tokens)}{'I' if wide else 'H'}", *tokens))


def llmq(path, tokens, version=2, mask=None, vocabulary=256):
    fields = [version, 4, len(tokens)] + ([vocabulary, int(mask is not None)] if version == 2 else [])
    header = (b"BIN.TOK\n" + struct.pack(f"<{len(fields)}i", *fields)).ljust(1023, b"*") + b"\n"
    bits = bytearray((len(mask or []) + 7) // 8)
    for i, counts in enumerate(mask or []):
        bits[i // 8] |= int(counts) << (i % 8)
    path.write_bytes(header + struct.pack(f"<{len(tokens)}i", *tokens) + bits)


def megatron(path, tokens, kind="H", lengths=None, documents=None, modes=False):
    """path ends in .bin; lengths of the sequences; documents = the first sequence of each, then their number."""
    code, width = {"B": (1, 1), "b": (2, 1), "h": (3, 2), "i": (4, 4), "q": (5, 8), "H": (8, 2)}[kind]
    lengths = lengths or [len(tokens)]
    offsets = [width * sum(lengths[:i]) for i in range(len(lengths))]
    documents = documents or list(range(len(lengths) + 1))
    index = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, code, len(lengths), len(documents))
    index += struct.pack(f"<{len(lengths)}i", *lengths) + struct.pack(f"<{len(offsets)}q", *offsets)
    index += struct.pack(f"<{len(documents)}q", *documents) + (bytes(len(lengths)) if modes else b"")
    path.write_bytes(struct.pack(f"<{len(tokens)}{kind}", *tokens))
    path.with_suffix(".idx").write_bytes(index)


def tokens_below(limit, count, seed):
    generator = random.Random(seed)
    return [generator.randrange(limit) for _ in range(count)]


def listed(sources):
    """Sources as a config has them."""
    return "[" + ", ".join("{ " + ", ".join(f"{key} = {json.dumps(value)}" for key, value in source.items()) + " }"
                           for source in sources) + "]"


class Data(unittest.TestCase):
    def setUp(self):
        self.folder = Path(tempfile.mkdtemp(prefix="holdfast-data-"))
        self.addCleanup(shutil.rmtree, self.folder)
        (self.folder / "run.toml").write_text(CONFIG)

    def holdfast(self, *words, ranks=1):
        launcher = [] if ranks == 1 else [str(ROOT / "tools/mpirun"), "-np", str(ranks)]
        outcome = subprocess.run([*launcher, PROGRAM, *words], cwd=self.folder, timeout=PATIENCE_S, text=True,
                                 stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.assertEqual(outcome.returncode, 0, outcome.stdout)
        return outcome.stdout

    def train(self, run, sources, *words, ranks=1):
        """The digest lines of the run's end."""
        self.holdfast("train", "run.toml", f"--run.directory={run}", f"--data.sources={listed(sources)}", *words, ranks=ranks)
        return dict(line.split() for line in self.holdfast("digest", run).splitlines())

    def events(self, run, kind):
        lines = map(json.loads, (self.folder / run / "events.jsonl").read_text().splitlines())
        return [line for line in lines if line["event"] == kind]

    def loss_of(self, path):
        return float(self.holdfast("evaluate", "run", "--data", path).split()[1])

    def write_every_format(self, tokens):
        """All the ways to write tokens below 128; name -> format."""
        text(self.folder / "tokens.txt", tokens)
        llmc(self.folder / "narrow.bin", tokens)
        llmc(self.folder / "wide.bin", tokens, wide=True)
        llmq(self.folder / "one.bin", tokens, version=1)
        llmq(self.folder / "two.bin", tokens)
        formats = {"tokens.txt": "text", "narrow.bin": "llmc", "wide.bin": "llmc", "one.bin": "llmq", "two.bin": "llmq"}
        for kind in "BbhiqH":
            name = f"megatron-{ord(kind)}.bin"
            megatron(self.folder / name, tokens, kind, lengths=[5, 0, len(tokens) - 5], modes=kind == "i")
            formats[name] = "megatron"
        return formats

    def test_the_same_tokens_give_the_same_bits_in_every_format(self):
        formats = self.write_every_format(tokens_below(128, 2000, seed=1))
        expected = self.train("run", [{"path": "tokens.txt", "format": "text"}])
        loss = self.loss_of("tokens.txt")
        for name, data_format in formats.items():
            with self.subTest(name):
                self.assertEqual(self.train(f"run-{name}", [{"path": name, "format": data_format}]), expected)
                self.assertEqual(self.loss_of(name), loss)
        name = "megatron-72.bin"
        for other in (name.removesuffix(".bin"), name.replace(".bin", ".idx")):
            self.assertEqual(self.loss_of(other), loss)

    def test_vocabularies_over_65535(self):
        tokens = tokens_below(100_000, 2000, seed=2)
        llmc(self.folder / "wide.bin", tokens, wide=True)
        llmq(self.folder / "two.bin", tokens, vocabulary=100_000)
        megatron(self.folder / "set.bin", tokens, "i")
        expected = self.train("run", [{"path": "wide.bin", "format": "llmc"}], "--model.vocabulary=100000")
        loss = self.loss_of("wide.bin")
        for name, data_format in {"two.bin": "llmq", "set": "megatron"}.items():
            self.assertEqual(self.train(f"run-{name}", [{"path": name, "format": data_format}], "--model.vocabulary=100000"),
                             expected)
            self.assertEqual(self.loss_of(name), loss)

    def test_a_mix_of_all_formats_is_the_same_on_any_ranks_and_through_a_resume(self):
        text(self.folder / "a.txt", tokens_below(256, 900, seed=3))
        llmc(self.folder / "b.bin", tokens_below(256, 1100, seed=4))
        llmc(self.folder / "c.bin", tokens_below(256, 1000, seed=5), wide=True)
        megatron(self.folder / "d.bin", tokens_below(256, 1200, seed=6), "q", lengths=[7] * 100 + [500])
        tokens = tokens_below(256, 1300, seed=7)
        llmq(self.folder / "e.bin", tokens, mask=[token % 3 > 0 for token in tokens])
        sources = [{"path": path, "format": data_format, "weight": weight} for path, data_format, weight in (
            ("a.txt", "text", 0.1), ("b.bin", "llmc", 0.2), ("c.bin", "llmc", 0.2), ("d", "megatron", 0.3),
            ("e.bin", "llmq", 0.2))]
        words = ["--data.document_mask=true", "--data.document_end=10", "--data.validation_fraction=0.1",
                 "--evaluation.every_steps=4", "--training.microbatch_size=8"]
        straight = self.train("straight", sources, "--training.steps=8", *words)
        self.train("resumed", sources, "--training.steps=3", *words, ranks=2)
        self.assertEqual(self.train("resumed", sources, "--training.steps=8", *words), straight)
        losses = [[event["loss"] for event in self.events(run, "evaluation")][-1] for run in ("straight", "resumed")]
        self.assertEqual(losses[0], losses[1])
        used = {sample["source"] for sample in self.samples("straight")}
        self.assertEqual(used, {0, 1, 2, 3, 4})

    def samples(self, run):
        for path in sorted((self.folder / run).glob("ledger-*.jsonl")):
            for line in path.read_text().splitlines():
                yield from ({"epoch": epoch, "source": source, "sample": sample}
                            for source, sample, epoch in json.loads(line)["samples"])

    def interrupted(self, sources, *words):
        """A run that dies in its seventh step and goes on with twice as many ranks; its directory."""
        with mock.patch.dict(os.environ, HOLDFAST_FAULTS="step.begin@7=kill"), self.assertRaises(AssertionError):
            self.train("interrupted", sources, "--checkpoint.every_steps=3", *words)
        self.train("interrupted", sources, "--checkpoint.every_steps=3", *words, ranks=2)
        return "interrupted"

    def test_what_was_used_of_each_source(self):
        text(self.folder / "a.txt", tokens_below(256, 900, seed=11))
        llmc(self.folder / "b.bin", tokens_below(256, 300, seed=12))
        steps, words = 12, ["--training.steps=12", "--training.microbatch_size=8", "--data.validation_fraction=0.125"]
        for weights in ([3, 1], [None, None]):
            with self.subTest(weights=weights):
                sources = [{"path": path, "format": data_format, **({"weight": weight} if weight else {})}
                           for path, data_format, weight in zip(("a.txt", "b.bin"), ("text", "llmc"), weights, strict=True)]
                straight = self.train("straight", sources, *words)
                counted = collections.Counter(sample["source"] for sample in self.samples("straight"))
                used = [counted[0], counted[1]]
                self.assertEqual(sum(used), steps * 16)
                checked = self.holdfast("check", "run.toml", *words, f"--data.sources={listed(sources)}")
                for source, samples in zip(sources, used, strict=True):
                    self.assertIn(f"{source['path']}: ", checked)
                    self.assertIn(f" samples, of which step {steps} will have used {samples}: ", checked)
                for run in ("straight", self.interrupted(sources, *words)):
                    told = json.loads(self.holdfast("status", run, "--json"))
                    self.assertEqual([source["samples"] for source in told["sources"]], used)
                    self.assertEqual([source["tokens"] for source in told["sources"]], [LENGTH * samples for samples in used])
                    self.assertEqual(told["tokens"], steps * 16 * LENGTH)
                    of_epoch = [source["samples"] for source in self.events(run, "start")[-1]["sources"]]
                    self.assertEqual(of_epoch, [49, 16])  # without an eighth of 56 and 18
                    self.assertEqual([source["epochs"] for source in told["sources"]],
                                     [samples / every for samples, every in zip(used, of_epoch, strict=True)])
                    self.assertEqual(self.events(run, "finish")[-1]["sources"], told["sources"])
                    for step in self.events(run, "step"):
                        self.assertEqual(sum(step["source_samples"]), 16 * step["step"])
                    self.assertIn(f"source    a.txt: {used[0]} samples, ", self.holdfast("status", run))
                    self.assertIn(f'source="1",path="b.bin"}} {used[1]}\n', (self.folder / run / "metrics.prom").read_text())
                    self.assertIn("<td>b.bin</td>", (self.folder / run / "report.html").read_text())
                self.assertEqual(dict(line.split() for line in self.holdfast("digest", "interrupted").splitlines()), straight)
                shutil.rmtree(self.folder / "straight")
                shutil.rmtree(self.folder / "interrupted")

    def test_an_epoch_without_the_validation_part(self):
        count = 128  # samples
        text(self.folder / "a.txt", tokens_below(256, count * LENGTH + 1, seed=8))
        self.train("run", [{"path": "a.txt"}], "--training.steps=28", "--data.validation_fraction=0.125",
                   "--evaluation.every_steps=28")
        used = [sample["sample"] for sample in self.samples("run") if sample["epoch"] == 0]
        self.assertEqual(len(used), 112)
        self.assertEqual(len(set(used)), 112)
        held_back = set(range(count)) - set(used)
        for first in range(0, count, 8):  # one of each 8 in a row
            self.assertEqual(len(held_back & set(range(first, first + 8))), 1)
        self.assertEqual(len(self.events("run", "evaluation")), 1)

    def test_masked_targets_do_not_count(self):
        tokens = tokens_below(256, 1601, seed=9)
        even = [i % 2 == 0 for i in range(len(tokens))]
        text(self.folder / "all.txt", tokens)
        llmq(self.folder / "every.bin", tokens, mask=[True] * len(tokens))
        llmq(self.folder / "even.bin", tokens, mask=even)
        llmq(self.folder / "odd.bin", tokens, mask=[not counts for counts in even])
        plain = self.train("run", [{"path": "all.txt"}])
        self.assertEqual(self.train("run-every", [{"path": "every.bin", "format": "llmq"}]), plain)
        first = {}
        for name in ("even", "odd"):
            alone = self.train(f"run-{name}", [{"path": f"{name}.bin", "format": "llmq"}])
            self.assertNotEqual(alone["weights"], plain["weights"])
            self.assertEqual(self.train(f"two-{name}", [{"path": f"{name}.bin", "format": "llmq"}], ranks=2), alone)
            first[name] = self.events(f"run-{name}", "step")[0]["loss"]
        # Half of the targets of every window each: the mean of both is the mean of all.
        self.assertAlmostEqual((first["even"] + first["odd"]) / 2, self.events("run", "step")[0]["loss"], places=5)
        losses = {name: self.loss_of(name) for name in ("all.txt", "every.bin", "even.bin", "odd.bin")}
        self.assertEqual(losses["every.bin"], losses["all.txt"])
        self.assertAlmostEqual((losses["even.bin"] + losses["odd.bin"]) / 2, losses["all.txt"], places=5)

    def test_attention_stays_inside_documents(self):
        tokens = tokens_below(250, 100 * LENGTH + 1, seed=10)
        for name, length in (("whole", LENGTH), ("halves", LENGTH // 2)):
            lengths = [length] * (100 * LENGTH // length) + [1]
            megatron(self.folder / f"{name}.bin", tokens, lengths=lengths)
        plain = self.train("run", [{"path": "whole", "format": "megatron"}])
        mask = "--data.document_mask=true"
        # A document for each window: nothing to hide.
        self.assertEqual(self.train("run-whole", [{"path": "whole", "format": "megatron"}], mask), plain)
        halves = self.train("run-halves", [{"path": "halves", "format": "megatron"}], mask)
        self.assertNotEqual(halves["weights"], plain["weights"])
        self.assertEqual(halves["data"], self.train("run-other", [{"path": "halves", "format": "megatron"}])["data"])
        # The same documents, said by tokens that end them, in another format.
        for i in range(LENGTH // 2 - 1, len(tokens), LENGTH // 2):
            tokens[i] = 255
        megatron(self.folder / "halves.bin", tokens, lengths=[LENGTH // 2] * 200 + [1])
        llmq(self.folder / "halves-llmq.bin", tokens)
        self.assertEqual(
            self.train("run-index", [{"path": "halves", "format": "megatron"}], mask),
            self.train("run-token", [{"path": "halves-llmq.bin", "format": "llmq"}], mask, "--data.document_end=255"))


if __name__ == "__main__":
    harness.main(at_once=1)
