"""tools/bench as a user meets it, behind the set-up and the build: every case runs, and its figures are written. No time is
judged."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import harness

ROOT = pathlib.Path(__file__).resolve().parents[2]
RUN = ROOT / "tools/bench_cases/run.py"


class BenchTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = pathlib.Path(folder.name) / "figures.json"

    def bench(self, *words):
        return subprocess.run([sys.executable, str(RUN), *words, "--json", str(self.path)], capture_output=True, text=True,
                              timeout=200, check=False, env={**os.environ, "TMPDIR": str(self.path.parent)})

    def figures(self, *words):
        outcome = self.bench(*words)
        self.assertEqual(outcome.returncode, 0, outcome.stdout + outcome.stderr)
        document = json.loads(self.path.read_text())
        self.assertEqual(document["command"][0], "tools/bench")
        self.assertRegex(document["date"], r"^20\d\d-\d\d-\d\dT")
        return document["cases"]

    def test_cases_of_the_program_run_one_after_another(self):
        small = ["--shape", "llama-15m 4x64", "--milliseconds", "5"]
        cases = self.figures("op", "add", *small, "op", "rmsnorm_forward", "--dtype", "bf16", *small)
        self.assertEqual([case["case"] for case in cases], ["op", "op"])
        self.assertEqual([list(case["result"]["ops"]) for case in cases], [["add"], ["rmsnorm_forward"]])
        self.assertTrue(cases[0]["machine"]["processor"])
        self.assertGreater(len(cases[0]["result"]["ops"]["add"][0]["implementations"]), 0)

    def test_startup_adds_up(self):
        (case,) = self.figures("startup", "--repeat", "1")
        self.assertAlmostEqual(sum(case["result"]["phases_ms"].values()), case["result"]["total_ms"], delta=1.0)

    @harness.full
    def test_lanes_move_the_bytes_of_the_formula(self):
        (case,) = self.figures("lanes", "--rounds", "1", "--steps", "2", "--sequence-length", "16", "--microbatch-size", "1")
        result = case["result"]
        self.assertAlmostEqual(result["gradient_bytes_per_step"] / result["gradient_bytes_by_formula"], 1.0, delta=0.01)
        self.assertGreater(result["ratio"], 0.0)
        self.assertGreater(result["bytes_hidden_share"], 0.0)
        self.assertLess(result["bytes_hidden_share"], 1.0, "the embedding's gradients are ready last")

    @harness.full
    def test_pipeline_measures_every_schedule(self):
        (case,) = self.figures("pipeline", "--rounds", "1", "--steps", "1", "--sequence-length", "16", "--microbatches-per-lane", "2")
        self.assertEqual(list(case["result"]), ["two replicas", "1f1b", "gpipe", "interleaved, 2 chunks", "zero_bubble"])
        self.assertEqual([round(each["bubble"], 3) for each in case["result"].values()], [0.0, 0.2, 0.2, 0.2, 0.077])

    @harness.full
    def test_dimensions_measures_every_one(self):
        (case,) = self.figures("dimensions", "--rounds", "1", "--steps", "1", "--sequence-length", "16", "--layers", "2",
                               "--heads", "4", "--width", "64", "--microbatches-per-lane", "1")
        self.assertEqual(list(case["result"]), ["1 rank", "data 2", "pipeline 2", "tensor lanes 2", "tensor lanes 4", "tensor 2",
                                                "tensor 2, tensor lanes 4"])
        self.assertTrue(all(layout["step_ms"] > 0 for layout in case["result"].values()))

    def test_bubble_stands_beside_its_formula(self):
        (case,) = self.figures("bubble", "--rounds", "1", "--steps", "1", "--layers", "2", "--width", "32", "--microbatches", "1", "3")
        for microbatches, share in (("1", 50.0), ("3", 25.0)):
            result = case["result"][microbatches]
            self.assertEqual(result["formula"], share)
            self.assertLess(0.0, min(result["measured"] + result["replayed"]))
            self.assertLess(max(result["measured"] + result["replayed"]), 100.0)

    @harness.full
    def test_plan_stands_beside_every_run(self):
        runs = ["one rank, bf16", "two replicas that recompute", "two stages"]  # all six: tools/test --long
        (case,) = self.figures("plan", "--rounds", "1", "--steps", "1", "--sequence-length", "16", "--runs", *runs)
        self.assertEqual(list(case["result"]), runs)
        self.assertTrue(all(run["ratio"] > 0 for run in case["result"].values()))

    def test_disk_measures_both_ways(self):
        (case,) = self.figures("disk", "--rounds", "2", "--mebibytes", "16", "--io", "threads")
        self.assertEqual(case["result"]["backend"], "threads")
        rates = case["result"]["bytes_per_second"]
        ours = [name for name in rates if not name.startswith("fio")]
        self.assertEqual(ours, ["queue, written and durable", "queue, read", "checkpoint, written and durable",
                                "checkpoint, read and verified", "page cache, written and durable"])
        self.assertTrue(all(len(each) == 2 and min(each) > 0 for each in rates.values()))

    def test_checksum_measures_every_way(self):
        (case,) = self.figures("checksum", "--milliseconds", "5")
        self.assertEqual(list(case["result"]), ["crc32c", "crc32c without instructions", "replica, both ends"])

    @harness.full
    def test_recompute_measures_every_mode(self):
        (case,) = self.figures("recompute", "--rounds", "1", "--steps", "1", "--sequence-length", "16", "--microbatch-size", "1")
        self.assertEqual(list(case["result"]), ["none", "selective", "full"])
        self.assertEqual(case["result"]["none"]["ratio"], 1.0)
        self.assertTrue(all(mode["step_ms"] > 0 and mode["peak_memory_mib"] > 0 for mode in case["result"].values()))

    def test_saving_stands_beside_not_saving(self):
        (case,) = self.figures("saving", "--case", "llama-15m-b8-t256", "--rounds", "1", "--every", "2", "--saves", "1",
                               "--override=--training.microbatch_size=1", "--override=--training.sequence_length=32")
        result = case["result"]["holdfast"]
        (plain, saving), = result["rounds"]
        self.assertGreater(plain["step_ms"], 0)
        self.assertEqual(len(saving["stall_ms"]), 1)
        self.assertGreater(saving["durable_ms"][0], 0)
        self.assertGreater(saving["bytes"], 100e6, "weights and two moments")

    @harness.full
    def test_snapshots_and_their_replicas_stand_beside_none(self):
        (case,) = self.figures("snapshots", "--case", "small", "--rounds", "2", "--steps", "80", "--every", "2")
        (result,) = case["result"]
        self.assertEqual([list(sides) for sides in result["rounds"]], [["none", "ram", "replicas"], ["ram", "replicas", "none"]])
        self.assertTrue(all(side["step_ms"] > 0 for sides in result["rounds"] for side in sides.values()))
        self.assertTrue(0 < result["confirmed"] <= result["due"])
        self.assertGreater(result["bytes_sent"], 500e3, "weights and two moments of half of the blocks")
        self.assertGreater(result["duration_ms"], 0)

    @harness.full
    def test_watchdog_stands_beside_none(self):
        (case,) = self.figures("watchdog", "--case", "small", "--rounds", "2", "--steps", "12", "--ranks", "1")
        (figures,) = case["result"]
        self.assertEqual(figures["case"], "small")
        self.assertEqual(len(figures["rounds"]), 2)
        for each in figures["rounds"]:
            for pair in (each["cost"], each["noise"]):
                self.assertTrue(all(step_ms > 0 for turn in pair["step_ms"] for step_ms in turn), pair)

    @harness.full
    def test_all_of_fault_tolerance_stands_beside_none(self):
        (case,) = self.figures("tolerance", "--case", "small", "--rounds", "1", "--steps", "150")
        (figures,) = case["result"]
        (each,) = figures["rounds"]
        self.assertTrue(all(step_ms > 0 for pair in each.values() for turn in pair["step_ms"] for step_ms in turn), each)
        self.assertGreater(min(run["count"] for run in figures["snapshots"]), 0, "what is compared has to be there")

    @harness.full
    def test_losing_half_of_the_ranks(self):
        outcome = self.bench("shrinking", "--case", "small", "--ranks", "4", "--lanes", "12", "--between", "40", "--share", "0.5")
        if "ranks cannot be held" in outcome.stderr:
            harness.skip(outcome.stderr)
        self.assertEqual(outcome.returncode, 0, outcome.stdout + outcome.stderr)
        (case,) = json.loads(self.path.read_text())["cases"]
        undisturbed, in_place, from_disk = case["result"]
        self.assertEqual([each["losses"] for each in case["result"]], [0, 2, 2])
        self.assertEqual(undisturbed["steps_again"], 0)
        self.assertTrue(all(each["tokens_per_rank_hour"] > 0 for each in (undisturbed, in_place, from_disk)))

    def test_what_is_no_case_is_refused(self):
        outcome = self.bench("stpe")
        self.assertEqual(outcome.returncode, 2)
        self.assertIn("there is no case stpe; there are bubble, checksum, dimensions, disk, hosts, lanes, ", outcome.stderr)

    def test_a_case_that_fails_is_named_and_the_others_still_run(self):
        outcome = self.bench("op", "gelu", "op", "add", "--shape", "llama-15m 4x64", "--milliseconds", "5")
        self.assertEqual(outcome.returncode, 1)
        self.assertIn("there is no op gelu", outcome.stderr)
        self.assertIn("the case op failed with exit code 2", outcome.stderr)
        self.assertEqual(len(json.loads(self.path.read_text())["cases"]), 1)


if __name__ == "__main__":
    harness.main()
