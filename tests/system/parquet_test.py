"""tools/parquet_to_jsonl: a run on a column of Parquet files has the bits of one on the same documents as JSONL, and bad input is a sentence."""
import json
import os
import re
import subprocess
import sys
import unittest

import harness
import text_source_test

PYTHON = harness.ROOT / ".deps/parquet/bin/python"
TOOL = harness.ROOT / "tools/parquet_to_jsonl"
WRITE = """
import json, sys, pyarrow, pyarrow.parquet
for path, columns in json.load(sys.stdin).items():
    arrays = {}
    for name, (kind, values) in columns.items():
        if kind == "no UTF-8":
            arrays[name] = pyarrow.array([value.encode("latin-1") for value in values], pyarrow.binary()).view(pyarrow.string())
        elif kind == "dictionary":
            arrays[name] = pyarrow.array(values, pyarrow.string()).dictionary_encode()
        else:
            arrays[name] = pyarrow.array(values, pyarrow.type_for_alias(kind))
    pyarrow.parquet.write_table(pyarrow.table(arrays), path, row_group_size=50, write_page_checksum=True)
"""


class ParquetTest(text_source_test.Folder):
    @classmethod
    def setUpClass(cls):
        if not PYTHON.exists():
            raise unittest.SkipTest(f"{PYTHON} is not there (tools/bootstrap --tests), and reads Parquet")

    def write(self, files):
        """files: columns of each, (kind, values) by name."""
        subprocess.run([PYTHON, "-c", WRITE], input=json.dumps(files), text=True, cwd=self.folder, check=True)

    def convert(self, *words, code=0, python=None, **variables):
        done = subprocess.run([python or PYTHON, TOOL, *words], cwd=self.folder, env={**os.environ, **variables}, text=True, capture_output=True,
                              timeout=text_source_test.PATIENCE_S, check=False)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def refuse(self, sentence, *words, code=4, **more):
        before = sorted(self.folder.iterdir())
        self.assertRegex(self.convert(*words, code=code, **more), f"^parquet_to_jsonl: {sentence}\n$")
        self.assertEqual(sorted(self.folder.iterdir()), before, "something was left behind")

    def test_a_run_has_the_bits_of_the_same_documents(self):
        documents = [re.sub("^", "\u00e4 \u2028\"", text) for text in (self.folder / "corpus.txt").read_text().split("\n") if text]
        self.assertGreater(len(documents), 1000)
        rows = [None, *documents[:700], None]
        self.write({"a.parquet": {"id": ("int64", list(range(len(rows)))), "body": ("string", rows)},
                    "b.parquet": {"body": ("dictionary", documents[700:900])},
                    "c.parquet": {"body": ("large_string", documents[900:])}})
        told = self.convert("--column", "body", "--out", "made.jsonl", "a.parquet", "b.parquet", "c.parquet")
        self.assertEqual(told, f"made.jsonl: {len(documents)} documents of 3 files; 2 rows without text left out\n")
        self.assertEqual([json.loads(line)["text"] for line in (self.folder / "made.jsonl").read_text().split("\n") if line], documents)
        with open(self.folder / "own.jsonl", "w", encoding="ascii") as file:
            for text in documents:
                file.write(json.dumps({"text": text}) + "\n")
        digests = [self.train(name, "--data.document_mask=true",
                              sources=f'[{{ path = "{name}.jsonl", format = "jsonl", tokenizer = "tokenizer.json", append_eos = true }}]')[1]
                   for name in ("made", "own")]
        self.assertEqual(*digests)

    def test_bad_input_is_a_sentence(self):
        self.write({"good.parquet": {"id": ("int64", [1, 2]), "body": ("string", ["a", "b"])},
                    "spoilt.parquet": {"body": ("no UTF-8", ["fine", "\u00ff"])},
                    "none.parquet": {"body": ("string", [None, None])}})
        (self.folder / "text.parquet").write_text("no Parquet, but long enough for its footer")
        whole = (self.folder / "good.parquet").read_bytes()
        at = whole.index(b"a\1\0\0\0b")
        (self.folder / "damaged.parquet").write_bytes(whole[:at] + b"x" + whole[at + 1:])
        out = ["--column", "body", "--out", "out.jsonl"]
        self.refuse(r"good.parquet has no column text; its columns are id \(int64\), body \(string\): name one of them with --column",
                    "--column", "text", "--out", "out.jsonl", "good.parquet")
        self.refuse(r"the column id of good.parquet holds int64, expected text \(string\); name another one with --column",
                    "--column", "id", "--out", "out.jsonl", "good.parquet")
        self.refuse("text.parquet cannot be read as Parquet: .*", *out, "good.parquet", "text.parquet")
        self.refuse("missing.parquet cannot be read as Parquet: .*No such file.*", *out, "missing.parquet")
        self.refuse(r"spoilt.parquet: the text in row 1 \(from 0\) of the column body is no UTF-8 \(invalid start byte\); write the file again",
                    *out, "spoilt.parquet")
        self.refuse(r"damaged.parquet is damaged after row 0 \(from 0\): .*; copy it again", *out, "damaged.parquet")
        self.refuse("the column body holds no text in any row", *out, "none.parquet")
        self.refuse("absent/out.jsonl cannot be written: No such file or directory", "--column", "body", "--out", "absent/out.jsonl", "good.parquet")
        (self.folder / "out.jsonl").write_text("mine")
        self.refuse("out.jsonl is there already, and no file is ever replaced; remove it, or name another one with --out", *out, "good.parquet")
        self.assertEqual((self.folder / "out.jsonl").read_text(), "mine")
        (self.folder / "lacking").mkdir()
        (self.folder / "lacking/pyarrow.py").write_text("raise ImportError('it is not there')\n")
        self.refuse(r"this Python \(.*\) has no pyarrow, which reads Parquet \(it is not there\); pip install -r tools/parquet_requirements.txt, or use "
                    ".deps/parquet/bin/python, which tools/bootstrap --tests makes", *out, "good.parquet", code=2, python=sys.executable,
                    PYTHONPATH=str(self.folder / "lacking"), PYTHONDONTWRITEBYTECODE="1")


if __name__ == "__main__":
    harness.main(at_once=1)
