"""holdfast health: what it says of this host, records, and finds in recordings."""

import json
import os
import pathlib
import signal
import subprocess
import tempfile
import time
import unittest

import harness

ROOT = pathlib.Path(__file__).resolve().parents[2]
HOLDFAST = os.environ["HOLDFAST"]
HEADER = {"holdfast_health": 1, "host": "node7", "label": "a GPU that falls off the bus", "interval_ms": 15000}
XID = "[ 99.0] NVRM: Xid (PCI:0000:18:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."


def run(*words):
    return subprocess.run([HOLDFAST, "health", *map(str, words)], capture_output=True, text=True, timeout=60, check=False)


class HealthTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.file = self.folder / "recording.jsonl"

    def write(self, *readings):
        self.file.write_text("".join(json.dumps(line) + "\n" for line in [HEADER, *readings]))

    def test_the_page_is_generated(self):
        self.assertEqual(run("--rules").stdout, (ROOT / "docs/health.md").read_text(),
                         "run: build/release/bin/holdfast health --rules > docs/health.md")

    def test_this_host_is_looked_at(self):
        seen = run("--disk", self.folder)
        self.assertIn(seen.returncode, (0, 76), seen.stderr)
        self.assertRegex(seen.stdout, r"memory +available_percent \d")
        self.assertRegex(seen.stdout, rf"disk {self.folder} +free_MB \d")

    def test_what_is_recorded_is_judged_again(self):
        recorded = run("--record", self.file, "--seconds", 1, "--every", 0.2)
        self.assertIn(recorded.returncode, (0, 76), recorded.stderr)
        lines = [json.loads(line) for line in self.file.read_text().splitlines()]
        self.assertEqual((lines[0]["holdfast_health"], lines[0]["interval_ms"]), (1, 200))
        self.assertGreaterEqual(len({line["time_ms"] for line in lines[1:]}), 4)
        again = run("--replay", self.file)
        self.assertEqual(again.returncode, recorded.returncode)
        self.assertIn(f"{len(lines) - 1} readings", again.stdout)
        refused = run("--record", self.file, "--seconds", 1)
        self.assertEqual(refused.returncode, 2)
        self.assertIn("is there already", refused.stderr)

    def test_a_recorder_that_is_ended_leaves_a_whole_recording(self):
        with subprocess.Popen([HOLDFAST, "health", "--record", str(self.file), "--every", "0.1"], stdout=subprocess.DEVNULL) as recorder:
            deadline = time.monotonic() + 30
            while not self.file.exists() or self.file.read_text().count("\n") < 20:
                self.assertLess(time.monotonic(), deadline)
                time.sleep(0.05)
            recorder.send_signal(signal.SIGTERM)
        self.assertIn(run("--replay", self.file).returncode, (0, 76))

    def test_what_is_found_has_an_exit_code_and_one_line(self):
        self.write({"time_ms": 1000, "source": "kmsg", "name": "line", "text": "usb 1-1: new device"},
                   {"time_ms": 16000, "source": "kmsg", "name": "line", "text": XID})
        found = run("--replay", self.file, "--json")
        self.assertEqual(found.returncode, 76)
        findings = [json.loads(line) for line in found.stdout.splitlines()]
        self.assertEqual([(each["rule"], each["action"]) for each in findings], [("xid", "reboot"), ("gpu-off-the-bus", "leave_out")])
        self.assertEqual(findings[0]["part"], "0000:18:00")
        self.write({"time_ms": 1000, "source": "nvml", "part": "0000:18:00.0", "name": "temperature_C", "value": 60})
        nothing = run("--replay", self.file)
        self.assertEqual(nothing.returncode, 0)
        self.assertIn("0 found", nothing.stdout)

    def test_bad_input_gets_a_sentence(self):
        self.write({"time_ms": 1000, "source": "net", "name": "is_up", "value": 1})
        cases = {self.file.read_text()[:-9]: "cut short", '{"holdfast_health": 9}\n': "version 9 of the format", "hello\n": "no header"}
        for text, sentence in cases.items():
            self.file.write_text(text)
            refused = run("--replay", self.file)
            self.assertEqual(refused.returncode, 4)
            self.assertIn(sentence, refused.stderr)
        missing = run("--replay", self.folder / "nowhere")
        self.assertEqual(missing.returncode, 4, missing.stderr)
        self.assertEqual(run("--every", "0").returncode, 2)
        self.assertIn("looks at no host", run("--replay", self.file, "--seconds", 3).stderr)


class HealthOfARunTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scene = harness.Scene(200)
        cls.addClassCleanup(cls.scene.close)

    def counter(self, value):
        path = self.scene.directory / "host/sys/class/infiniband/mlx5_0/ports/1/counters/link_downed"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{value}\n")

    def run_that_becomes_sick(self, name, *options):
        self.counter(0)
        run = self.scene.run(name, ["--health.every=100ms", f"--health.host_root={self.scene.directory}/host", *options])
        start = run.start(2, faults=",".join(f"step.begin@{step}:1=sleep:50" for step in range(10, 110)))
        # Its guard has read the counter at least once by then, and reads it again before the run ends.
        self.assertTrue(start.wait_for_step(40), start.output())
        self.counter(2)
        start.expect_exit(0)
        return run, start.output(), [event for event in run.events("health") if event["rule"] == "infiniband-down"]

    def test_a_finding_is_told_once_with_what_guard_would_do(self):
        """By the guard of a run with the defaults; what it trains is the same."""
        run, output, found = self.run_that_becomes_sick("watch")
        self.assertEqual([(event["host"], event["part"], event["reading"], event["value"], event["threshold"], event["action"],
                           event["answer"]) for event in found],
                         [(os.uname().nodename, "mlx5_0/1", "infiniband: link_downed", 2, 1, "drain", "would ask to leave")], output)
        self.assertEqual(output.count("an InfiniBand link went down"), 1, output)
        self.assertRegex(output, r"holdfast guard: host \S+: mlx5_0/1: an InfiniBand link went down: by 2 times in 60 s "
                                 r"\(infiniband-down\); with health.preset = \"guard\" the run would leave the host\n")
        off, output, found = self.run_that_becomes_sick("off", "--health.preset=off")
        self.assertEqual((off.events("health"), found), ([], []), output)
        self.assertEqual(run.digest(), off.digest())

    def test_rules_are_changed(self):
        """A run that does not want to leave for a link; and changes that cannot be meant."""
        run, output, found = self.run_that_becomes_sick("changed", '--health.rules=["infiniband-down=watch"]')
        self.assertEqual([(event["action"], event["answer"]) for event in found], [("watch", "told")], output)
        for key, value, sentence in (("rules", '["infiniband-dwn=watch"]', "did you mean 'infiniband-down'?"),
                                     ("rules", '["gpu-hot=watch:80", "gpu-hot=drain:70"]', "they contradict each other"),
                                     ("dcgm_exporter", "node7:9400", "is no address of an exporter")):
            refused = self.scene.run("refused", [f"--health.{key}={value}"]).start(2)
            self.assertIn(sentence, refused.expect_exit(2))

    def test_the_rules_of_a_run_judge_a_recording(self):
        recording, config = self.scene.directory / "hot.jsonl", self.scene.directory / "hot.toml"
        readings = [{"time_ms": 1000 + 10000 * i, "source": "nvml", "part": "0000:18:00.0", "name": "temperature_C", "value": 84} for i in range(20)]
        recording.write_text("".join(json.dumps(line) + "\n" for line in [HEADER, *readings]))
        for rules, code in {"[]": 0, '["gpu-hot=drain"]': 76, '["gpu-hot=drain:87"]': 0}.items():
            config.write_text(self.scene.config.read_text() + f"\n[health]\nrules = {rules}\n")
            judged = run(config, "--replay", recording)
            self.assertEqual(judged.returncode, code, judged.stdout + judged.stderr)
            self.assertIn("1 found" if "87" not in rules else "0 found", judged.stdout)

    def test_nobody_moves_a_run_without_a_launcher(self):
        run, output, found = self.run_that_becomes_sick("guard", "--health.preset=guard")
        self.assertEqual([event["answer"] for event in found], ["nobody to ask"], output)
        self.assertFalse((run.directory / "requests").exists() and list((run.directory / "requests").glob("drain-*")))


class NoticeTest(unittest.TestCase):
    """The commands of configs/notice, with doubles of the programs that they ask."""

    def ask(self, name, program, answer, **variables):
        with tempfile.TemporaryDirectory() as folder:
            double = pathlib.Path(folder, program)
            double.write_text(f"#!/bin/sh\ncat <<'END'\n{answer}\nEND\n")
            double.chmod(0o755)
            environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", **variables}
            return subprocess.run([str(ROOT / "configs/notice" / name)], env=environment, timeout=30, check=False).returncode == 0

    def test_slurm(self):
        node = "NodeName=n2 Arch=x86_64 CPUTot=8 State={} ThreadsPerCore=1 Reason=ECC drain [root@now]"
        for state, leaves in {"ALLOCATED": False, "ALLOCATED+DRAIN": True, "DOWN*": True, "MIXED+FAIL": True, "IDLE": False}.items():
            self.assertEqual(self.ask("slurm", "scontrol", node.format(state)), leaves, state)

    def test_dcgm(self):
        report = "| Health Monitor Report |\n| Overall Health            | {}        |\n| GPU 0 | Memory: ok |"
        with tempfile.TemporaryDirectory() as folder:
            violations = pathlib.Path(folder, "violations")
            for health, leaves in {"Healthy": False, "Warning": False, "Failure": True}.items():
                self.assertEqual(self.ask("dcgm", "dcgmi", report.format(health), DCGM_VIOLATIONS=str(violations)), leaves, health)
            violations.write_text("Listening for violations\nTimestamp: now\nA double-bit ECC error has violated policy manager values.\n")
            self.assertTrue(self.ask("dcgm", "dcgmi", report.format("Healthy"), DCGM_VIOLATIONS=str(violations)))

    def test_nvsentinel(self):
        self.assertTrue(self.ask("nvsentinel", "kubectl", "true", NODE_NAME="n2"))
        self.assertFalse(self.ask("nvsentinel", "kubectl", "", NODE_NAME="n2"))

    def test_without_the_program_nothing_is_left(self):
        with tempfile.TemporaryDirectory() as empty:
            for command in (ROOT / "configs/notice").iterdir():
                environment = {"PATH": empty, "NODE_NAME": "n2"}
                code = subprocess.run([str(command)], env=environment, stderr=subprocess.DEVNULL, timeout=30, check=False).returncode
                self.assertNotEqual(code, 0, command)


if __name__ == "__main__":
    harness.main()
