"""What another user of the host can do to a run by way of shared memory and files: each attack of tests/security fails.

HOLDFAST names the program."""
import subprocess
import sys
import unittest

import harness

CANNOT_BE_TRIED = 77


class SharedMemoryAttacks(unittest.TestCase):
    def expect_to_fail(self, script):
        words = [sys.executable, str(harness.ROOT / "tests/security" / script), "--holdfast", str(harness.PROGRAM)]
        done = subprocess.run(words, text=True, check=False, timeout=120, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if done.returncode == CANNOT_BE_TRIED:
            harness.skip(done.stdout.strip().splitlines()[-1])
        self.assertIn("the attack fails", done.stdout)
        self.assertEqual(done.returncode, 0, done.stdout)

    def test_reading(self):
        self.expect_to_fail("s1_read.py")

    def test_planting_a_snapshot(self):
        self.expect_to_fail("s1_poison.py")

    def test_holding_the_locks(self):
        self.expect_to_fail("s1_lock.py")

    def test_taking_the_names(self):
        self.expect_to_fail("s1_squat.py")


if __name__ == "__main__":
    harness.main()
