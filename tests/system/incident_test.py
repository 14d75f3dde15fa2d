"""holdfast report --incident and --bundle, launch --drill: what is said of a rank that died and of one that hung, by a run as
users have it."""
import json
import re
import signal
import subprocess
import unittest
from pathlib import Path

import harness

STEPS, LANES = 200, 3
TOKEN = "token-that-nobody-else-may-see"
OPTIONS = ["--model.layers=2", "--threads=1", "--checkpoint.every_steps=0", "--checkpoint.ram_every_steps=10", "--watchdog.floor=2s",
           "--elastic.grow=off", f"--checkpoint.upload_command=true {TOKEN}"]


class IncidentTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scene = harness.Scene(STEPS, LANES)
        cls.addClassCleanup(cls.scene.close)
        cls.run_ = cls.scene.run("incidents", OPTIONS)
        cls.start = cls.run_.start(LANES, faults="step.begin@46:2=kill,step.begin@105:1=stop")
        cls.start.expect_exit(0)

    def report(self, *options):
        return harness.program_output("report", self.run_.directory, *options)

    def number_of(self, rank):
        """Of the incident in which this rank was lost, and of how many: a stall of a busy machine may have made one more."""
        faults = self.run_.events("fault")
        found = [number for number, event in enumerate(faults, 1) if re.match(rf"rank {rank} ", event.get("lost", ""))]
        self.assertEqual(len(found), 1, faults)
        return found[0], len(faults)

    def test_a_death(self):
        number, count = self.number_of(2)
        said = self.report(f"--incident={number}")
        self.assertIn(f"incident {number} of {count}: rank-died", said)
        self.assertRegex(said, r"decided: in place .*: 2 of 3 ranks are left")
        self.assertRegex(said, r"decided: go on from step (\d+), in RAM")
        page = (self.run_.directory / f"incident-{number}.html").read_text()
        self.assertIn("rank 2 (", page)
        self.assertIn("What each rank was at", page)
        lost_steps = [event["lost_steps"] for event in self.run_.events("recovery") if event["reason"] == "loss"]
        self.assertIn(f"<td class=\"details\">{lost_steps[number - 1]} step", page)
        self.assertNotRegex(page, r"<script|https?://")

    def test_a_hang(self):
        number, count = self.number_of(1)
        said = self.report("--incident=last" if number == count else f"--incident={number}")
        self.assertIn(f"incident {number} of {count}: rank-hangs", said)
        unnoticed_s = float(re.search(r"cost: .*: ([\d.]+) s until it was noticed", said)[1])
        self.assertGreaterEqual(unnoticed_s, 1.9)  # watchdog.floor, but for what it had heard before
        self.assertRegex(said, r"cheaper: .* passed before it was sure that the rank hangs: .*watchdog.floor")
        page = (self.run_.directory / f"incident-{number}.html").read_text()
        self.assertRegex(page, r"likely culprit: rank 1 \(host \S+\) hangs")
        self.assertRegex(page, r"rank 1 \(\S+\)</text>")
        self.assertRegex(page, r"rank 2 \(\S+\) †</text>", "it was lost before, and its line says so")

    def test_the_report_numbers_them(self):
        self.report()
        page = (self.run_.directory / "report.html").read_text()
        self.assertEqual(re.findall(r'<tr><td class="number">(\d+)</td><td class="time">', page),
                         [str(number) for number in range(self.number_of(1)[1], 0, -1)])

    def test_a_bundle_without_secrets(self):
        bundle = self.scene.directory / "bundle"
        self.report(f"--bundle={bundle}")
        names = {path.name for path in bundle.rglob("*") if path.is_file()}
        self.assertLessEqual({"ABOUT.txt", "config.toml", "events.jsonl", "status.json", "report.html", "incident-1.html",
                              "incident-2.html"}, names)
        self.assertEqual(sum(name.endswith("-rank-0000.json") for name in names), 2, names)
        self.assertIn(TOKEN, " ".join(OPTIONS))
        for path in bundle.rglob("*"):
            if path.is_file():
                self.assertNotIn(TOKEN.encode(), path.read_bytes(), path)
        self.assertEqual(json.loads((bundle / "status.json").read_text())["state"], "finished")
        self.assertNotIn("token", names)

    def test_the_playbook_is_generated(self):
        self.assertEqual(harness.program_output("report", "--playbook"), (harness.ROOT / "docs/playbook.md").read_text(),
                         "run: build/release/bin/holdfast report --playbook > docs/playbook.md")

    def test_every_fault_of_the_playbook_is_one_of_chaos(self):
        page = (harness.ROOT / "docs/playbook.md").read_text()
        named = {name for names in re.findall(r"\| `([a-z_,]+)` \| \[", page) for name in names.split(",")}
        self.assertGreater(len(named), 20)
        known = set(re.findall(r'\.name = "([a-z_]+)"', (harness.ROOT / "tools/chaos/chaos_fault.cc").read_text()))
        self.assertEqual(named - known, set())
        self.assertEqual(known - named, {"stalled_output"}, "what it makes is no incident: nobody reads the output")


class DrillTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scene = harness.Scene(12, 2)
        cls.addClassCleanup(cls.scene.close)

    def words_of(self, run, *overrides, ranks=2):
        return [str(harness.PROGRAM), "launch", "-np", str(ranks), "--host", f"localhost:{ranks}", "--drill", str(self.scene.config),
                f"--run.directory={run.directory}", *run.overrides, *overrides]

    def launch(self, name, *overrides, ranks=2):
        run = self.scene.run(name, OPTIONS)
        done = subprocess.run(self.words_of(run, *overrides, ranks=ranks), capture_output=True, text=True, env=self.scene.environment, timeout=harness.HANG_S, check=False)
        return run, done.returncode, done.stdout + done.stderr

    def drills_of(self, run):
        return sorted(path.name for path in run.directory.parent.glob(f"{run.directory.name}-drill-*"))

    def test_a_rank_is_lost_before_it_counts(self):
        run, code, said = self.launch("in-place")
        self.assertEqual(code, 0, said)
        self.assertRegex(said, r"drill: rank 1 lost: 1 of 2 ranks went on in place; [\d.]+ s to notice, [\d.]+ s until it computed")
        self.assertEqual(run.events("fault"), [], "the run itself lost nobody")
        self.assertEqual(run.digest(), harness.reference_digest(self.scene, OPTIONS))
        self.assertEqual(self.drills_of(run), [])
        self.assertEqual(list(Path("/dev/shm").glob("holdfast-*/*drill*")), [])

    def test_a_drill_that_does_not_get_through(self):
        """Nothing is saved, and no rank has the other one's part: each start begins again and is lost again."""
        run, code, said = self.launch("never", "--parallel.pipeline=2", "--checkpoint.ram_every_steps=0")
        self.assertEqual(code, 76, said)
        self.assertRegex(said, r"--drill: the drill ended with exit code 76, so the run would not survive the loss of rank 1")
        self.assertFalse(run.directory.exists(), "the run is not begun")
        self.assertEqual(len(self.drills_of(run)), 2, "the run of the drill, and its output")

    def test_a_spare_is_not_what_is_lost(self):
        run, code, said = self.launch("spare", "--elastic.spares=1", ranks=3)
        self.assertEqual(code, 0, said)
        self.assertRegex(said, r"drill: rank 1 lost: 2 of 3 ranks went on in place")

    def test_a_drill_that_is_refused(self):
        code, said = self.launch("refused", "--parallel.pipeline=3")[1:]
        self.assertEqual(code, 2, said)
        self.assertRegex(said, r"--drill: the drill could not be made, it ended with exit code 2|error")

    def test_a_request_to_stop_ends_the_drill_and_the_run(self):
        run = self.scene.run("stopped", OPTIONS)
        words = self.words_of(run, "--training.microbatches_per_lane=64")
        process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=self.scene.environment)
        harness.wait_until(lambda: self.drills_of(run), harness.HANG_S, lambda: process.poll() is not None, "no drill", lambda: "")
        process.send_signal(signal.SIGTERM)
        said = process.communicate(timeout=harness.HANG_S)[0]
        self.assertEqual(process.returncode, 75, said)
        self.assertEqual(self.drills_of(run), [])


if __name__ == "__main__":
    harness.main(at_once=1)
