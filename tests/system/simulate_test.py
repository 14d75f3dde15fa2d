"""`holdfast simulate` as somebody uses it: a shipped cluster, overrides, files, and what it refuses."""
import json
import tempfile
import unittest
from pathlib import Path

import harness

CLUSTERS = Path(__file__).resolve().parents[2] / "configs/clusters"
LLAMA = str(CLUSTERS / "llama3_16384.toml")


class SimulateTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def simulate(self, *words):
        file = self.folder / "study.json"
        harness.program_output("simulate", *words, "--json", str(file))
        return json.loads(file.read_text())

    def test_a_shipped_cluster(self):
        """Two days of 16,384 ranks: the parts are the whole, and the same seeds give the same bytes."""
        words = [LLAMA, "--days", "2", "--seeds", "1..3"]
        found = self.simulate(*words)
        before = (self.folder / "study.json").read_bytes()
        self.simulate(*words)
        self.assertEqual((self.folder / "study.json").read_bytes(), before)
        self.assertEqual([one["seed"] for one in found["seeds"]], [1, 2, 3])
        for one in found["seeds"]:
            self.assertAlmostEqual(sum(one["seconds"].values()), 2 * 86400, delta=1e-3)
            self.assertAlmostEqual(one["ettr"], one["seconds"]["training"] / (2 * 86400), places=6)
        self.assertAlmostEqual(found["ettr"], sum(one["ettr"] for one in found["seeds"]) / 3, places=9)
        self.assertGreater(found["result"]["counts"]["recoveries in place"], 5)
        self.assertEqual(found["assumed"], [])

    def test_an_override(self):
        """The same faults, and every lost rank costs a restart."""
        words = [LLAMA, "--days", "2", "--seeds", "1..3"]
        in_place, restarted = self.simulate(*words), self.simulate(*words, "--elastic.in_place=false")
        self.assertEqual(restarted["result"]["counts"]["recoveries in place"], 0)
        self.assertGreater(restarted["result"]["counts"]["restarts after a fault"], in_place["result"]["counts"]["restarts after a fault"])
        self.assertGreater(self.simulate(*words, "--fault.gpu.events=0", "--fault.hbm.events=0")["ettr"], in_place["ettr"])

    def test_a_comparison(self):
        """One call: each feature off, curves, each number of the model halved and doubled, and a page."""
        page = self.folder / "study.html"
        found = self.simulate(str(CLUSTERS / "spot_fleet.toml"), "--days", "0.5", "--seeds", "1..2", "--compare", "--sensitivity", "--html", str(page))
        names = [variant["name"] for variant in found["variants"]]
        for name in ["no recovery in place", "no replicas", "no growth", "no drain", "restart everything, from the disk"]:
            self.assertIn(name, names)
        self.assertEqual([sweep["name"] for sweep in found["sweeps"]], ["failures", "size", "interval", "spares"])
        self.assertIn("fault.taken.events", [doubt["key"] for doubt in found["sensitivity"]])
        text = page.read_text()
        self.assertIn("Where the time goes", text)
        self.assertNotIn("<script", text)
        self.assertNotIn("http://", text)

    def test_what_is_refused(self):
        for words, sentence in [
            ([LLAMA, "--seeds", "9..3"], "--seeds must be A..B with A <= B"),
            ([LLAMA, "--parallel.data=1000"], "ranks, and fleet.hosts x ranks_per_host"),
            ([LLAMA, "--times.step_seconds=-1"], "times.step_seconds must be a number"),
            ([LLAMA, "--fleet.host=3"], "did you mean fleet.hosts?"),
            ([LLAMA, *(f"--fault.{name}.events=0" for name in ["gpu", "hbm", "software", "network", "maintenance", "gpu-parts", "host-parts", "hang", "corruption",
                                                                "dependency", "slow"])], "sum to nothing"),
            ([str(self.folder / "none.toml")], "the cluster file cannot be read"),
            ([LLAMA, "--days", "-1"], "--days"),
        ]:
            file = self.folder / "no.json"
            result = harness.call_program("simulate", *words, "--json", str(file))
            self.assertEqual(result.returncode, 2, words)
            self.assertIn(sentence, result.stdout)
            self.assertFalse(file.exists())


if __name__ == "__main__":
    harness.main()
