"""holdfast timeline --operations: the labelled traces of ByteDance's straggler analysis (Apache-2.0), operations of real jobs with
the answers that were published for them. They lie beside the repository in shared/data/straggler_traces, or in the folder that
HOLDFAST_TEST_TRACES names: meta-X.yaml, trace-X.parquet, mw-X.json, ms-X.json. Every one that is there is compared."""
import collections
import csv
import json
import os
import subprocess
import tempfile
import unittest
from pathlib import Path

import harness

FOLDER = Path(os.environ.get("HOLDFAST_TEST_TRACES", harness.ROOT.parent / "shared/data/straggler_traces"))
PYTHON = harness.ROOT / ".deps/parquet/bin/python"
CONVERTER = Path(__file__).with_name("parquet_operations.py")
TOLERANCE = 0.02
ORDINARY = 0.5  # a smaller share blames nobody


def names():
    return sorted(path.stem.removeprefix("meta-") for path in FOLDER.glob("meta-*.yaml"))


def published(name, what):
    return json.loads((FOLDER / f"{what}-{name}.json").read_text())


def shape_of(name):
    lines = (FOLDER / f"meta-{name}.yaml").read_text().splitlines()
    return {key: int(value) for key, value in (line.split(": ") for line in lines if line) if key.endswith("_size")}


class ForeignTracesTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if not names():
            raise unittest.SkipTest(f"{FOLDER} holds no labelled traces")
        if not PYTHON.exists():
            raise unittest.SkipTest(f"{PYTHON} is not there (tools/bootstrap --tests), and reads Parquet")
        directory = tempfile.TemporaryDirectory()
        cls.addClassCleanup(directory.cleanup)
        cls.tables, cls.answers = {}, {}
        for name in names():
            table = cls.tables[name] = Path(directory.name) / f"{name}.tsv"
            subprocess.run([PYTHON, CONVERTER, FOLDER / f"trace-{name}.parquet", table], check=True)
            cls.answers[name] = json.loads(harness.program_output("timeline", f"--operations={table}", "--json"))

    def test_the_numbers_are_those_that_were_published(self):
        for name, answer in self.answers.items():
            with self.subTest(name):
                workers, stages = published(name, "mw"), published(name, "ms")
                slowdown = workers["tori"] / workers["tideal"]
                self.assertAlmostEqual(answer["slowdown"], slowdown, delta=TOLERANCE * slowdown)
                for share, expected in (("worker_share", workers["Mw"]), ("last_stage_share", stages["Ms"])):
                    self.assertAlmostEqual(answer[share], expected, delta=TOLERANCE * max(0.01, abs(expected)))
                for ours, theirs in (("original_s", "tori"), ("ideal_s", "tideal")):
                    self.assertAlmostEqual(answer[ours] / answer["steps"], workers[theirs], delta=TOLERANCE * workers[theirs])
                shape = shape_of(name)
                self.assertEqual(len({(rank["stage"], rank["copy"]) for rank in answer["ranks"]}),
                                 min(64, shape["dp_size"] * shape["pp_size"]))

    def test_who_is_to_blame(self):
        """A worker where the published share says so: then the one that computed longest."""
        for name, answer in self.answers.items():
            with self.subTest(name):
                if published(name, "mw")["Mw"] < ORDINARY:
                    self.assertEqual(answer["blamed"], [])
                    continue
                seconds = collections.Counter()
                with self.tables[name].open(encoding="utf-8", newline="") as file:
                    for row in csv.DictReader(file, delimiter="\t"):
                        if row["kind"].endswith("-compute"):
                            seconds[int(row["rank"])] += float(row["duration_s"])
                slowest, = (rank for rank, _ in seconds.most_common(1))
                self.assertIn(slowest, answer["blamed"])
                self.assertLessEqual(len(answer["blamed"]), (3 * len(seconds) + 99) // 100)
                most = max(answer["ranks"], key=lambda rank: rank["lost_s"])
                self.assertEqual(most["rank"], slowest)

    def test_the_two_that_are_known(self):
        if not {"AR", "SE"} <= set(self.answers):
            self.skipTest(f"{FOLDER} does not hold the traces AR and SE")
        self.assertEqual(len(self.answers["AR"]["blamed"]), 1)
        self.assertEqual(self.answers["SE"]["blamed"], [])
        lost_s = self.answers["AR"]["original_s"] - self.answers["AR"]["ideal_s"]
        self.assertAlmostEqual(max(rank["lost_s"] for rank in self.answers["AR"]["ranks"]), lost_s, delta=TOLERANCE * lost_s)
        text = harness.program_output("timeline", f"--operations={self.tables['AR']}")
        self.assertRegex(text, rf"\d s lost to rank {self.answers['AR']['blamed'][0]}, mostly in backward-compute")
        self.assertIn("no rank is to blame", harness.program_output("timeline", f"--operations={self.tables['SE']}"))


if __name__ == "__main__":
    harness.main()
