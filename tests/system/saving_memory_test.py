#!/usr/bin/env python3
"""What saving takes of the host's memory: the peak of a run that saves, beside that of the same run that does not, is what
`holdfast plan` says of its snapshots, and what a writer needs for its buffers. HOLDFAST names the program."""
import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import harness

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = os.environ.get("HOLDFAST", str(ROOT / "build/release/bin/holdfast"))
MIB = 1 << 20
# Beside the snapshots: of the drain four buffers of 4 MiB, the index and a chunk that is compressed; threads and texts.
WRITER_BYTES = 24 * MIB

CONFIG = """threads = 2
[run]
directory = "run"
[model]
layers = 1
heads = 2
width = 192
vocabulary = 40000
[data]
sources = [{ path = "text.txt" }]
[training]
steps = 8
sequence_length = 16
[parallel]
lanes = 1
"""
NOTHING = ["--checkpoint.every_steps=0", "--checkpoint.ram_every_steps=0"]
SAVING = {"to disk": ["--checkpoint.every_steps=2", "--checkpoint.ram_every_steps=0"],
          "to disk and to shared memory": ["--checkpoint.every_steps=4", "--checkpoint.ram_every_steps=1"],
          "as often as pays": ["--checkpoint.every_steps=auto", "--checkpoint.ram_every_steps=auto"]}


class SavingMemory(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="holdfast-memory-")
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        (self.folder / "text.txt").write_bytes(bytes(range(32, 127)) * 40)
        (self.folder / "run.toml").write_text(CONFIG)

    def peak_bytes(self, run, words):
        """Resident at most: its own memory, and what of shared memory it has mapped."""
        command = [PROGRAM, "train", "run.toml", f"--run.directory={run}", *words]
        with (self.folder / f"{run}.log").open("w+") as log:
            process = subprocess.Popen(command, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            log.seek(0)
            printed = log.read()
        self.assertEqual(process.returncode, 0, printed)
        self.assertNotIn("no RAM snapshots", printed)
        return usage.ru_maxrss * 1024

    def planned_bytes(self, words):
        command = [PROGRAM, "plan", "run.toml", "--ranks", "1", "--json", "--peak-tflops", "1", "--memory-gbs", "10", *words]
        plan = json.loads(subprocess.run(command, cwd=self.folder, check=True, capture_output=True, text=True).stdout)
        rank = plan["ranks"][0]
        return rank["class_bytes"]["snapshot"] + rank["shared_memory_bytes"], plan["checkpoint_bytes"]

    def test_is_what_the_plan_says(self):
        without = self.peak_bytes("without", NOTHING)
        self.assertEqual(self.planned_bytes(NOTHING)[0], 0)
        for number, (name, words) in enumerate(SAVING.items()):
            with self.subTest(name):
                planned, state = self.planned_bytes(words)
                more = self.peak_bytes(f"saving-{number}", words) - without
                print(f"{name}: {more / MIB:.1f} MiB more than without, planned {planned / MIB:.1f} MiB; the state has "
                      f"{state / MIB:.1f} MiB", file=sys.stderr)
                self.assertGreaterEqual(planned, state * (1 if "--checkpoint.ram_every_steps=0" in words else 3))
                self.assertLessEqual(more, planned + WRITER_BYTES)
                self.assertGreater(more, planned / 2, "the snapshots are not resident: this measures something else")


if __name__ == "__main__":
    harness.main(at_once=1)
