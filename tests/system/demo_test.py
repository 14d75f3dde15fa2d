"""tools/demo, as a newcomer runs it, but smaller: it tells of every fault, and the bits are the same."""
import re
import subprocess
import time
import unittest

import harness


class DemoTest(unittest.TestCase):
    def test_demo(self):
        with harness.Scene() as scene:
            begun = time.monotonic()
            directory = scene.directory / "demo"
            done = subprocess.run([str(harness.ROOT / "tools/demo"), "--fast", f"--directory={directory}"], capture_output=True,
                                  env={**scene.environment, "HOLDFAST": str(harness.PROGRAM)}, text=True, timeout=400, check=False)
            print(f"\n{done.stdout}{time.monotonic() - begun:.0f} s")
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertEqual(done.stdout.count("YOU "), 4)
            self.assertGreaterEqual(done.stdout.count("healed in place"), 3)
            self.assertIn("started again on 4 ranks", done.stdout)
            self.assertEqual(len(re.findall(r"  same$", done.stdout, re.MULTILINE)), 5)
            page = (directory / "disturbed/report.html").read_text()
            self.assertIn("Effective training time", page)
            self.assertEqual(harness.processes_of(directory), [])


if __name__ == "__main__":
    harness.main(at_once=1)
