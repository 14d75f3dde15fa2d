"""tools/flip_memory changes exactly one bit of the process that it is given, where that has its memory, and says which."""
import json
import subprocess
import sys
import unittest
from pathlib import Path

import harness

TOOL = str(harness.ROOT / "tools/flip_memory")
BYTES = 64 << 20  # more than everything else of a small process
# Fills memory of its own with a pattern, prints its address, and at every line of its input what differs from the pattern.
VICTIM = f"""
import ctypes, mmap, sys
memory = mmap.mmap(-1, {BYTES}, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
pattern = bytes([0x5a]) * {BYTES}
memory[:] = pattern
print(ctypes.addressof(ctypes.c_char.from_buffer(memory)), flush=True)
for line in sys.stdin:
    content = memory[:]
    print([] if content == pattern else [(i, byte) for i, byte in enumerate(content) if byte != 0x5a], flush=True)
"""


class FlipMemoryTest(unittest.TestCase):
    def setUp(self):
        self.victim = subprocess.Popen([sys.executable, "-c", VICTIM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.addCleanup(self.end)
        self.begin = int(self.victim.stdout.readline())
        self.assertEqual(self.changes(), [])

    def end(self):
        self.victim.kill()
        self.victim.wait()
        self.victim.stdin.close()
        self.victim.stdout.close()

    def changes(self):
        self.victim.stdin.write("what differs?\n")
        self.victim.stdin.flush()
        return json.loads(self.victim.stdout.readline().replace("(", "[").replace(")", "]"))

    def flip(self, *words):
        done = subprocess.run([TOOL, str(self.victim.pid), *words], capture_output=True, text=True)
        if "Operation not permitted" in done.stderr or "Permission denied" in done.stderr:
            self.skipTest("this user may not trace a process")
        self.assertEqual(done.returncode, 0, done.stderr)
        return [json.loads(line) for line in done.stdout.splitlines()]

    def flip_in_memory(self, *words):
        """The flip in the memory with the pattern: the interpreter may have another mapping that counts as large."""
        for seed in range(50):
            flip, = self.flip(f"--seed={seed}", *words)
            if self.begin <= int(flip["address"], 16) < self.begin + BYTES:
                return flip
        self.fail("the largest mapping was never met")

    def test_one_bit_is_another_one(self):
        flip = self.flip_in_memory("--nonzero")
        self.assertEqual(flip["process"], self.victim.pid)
        self.assertEqual((flip["old"], flip["new"]), (0x5A, 0x5A ^ 1 << flip["bit"]))
        self.assertEqual(self.changes(), [[int(flip["address"], 16) - self.begin, flip["new"]]])

    def test_the_seed_draws_the_same_bit_again(self):
        flip = self.flip_in_memory("--bit=7")
        self.assertEqual(flip["new"], 0xDA)
        others = [self.flip("--seed=77")[0] for _ in range(2)]
        self.assertEqual([(each["address"], each["bit"]) for each in others][0], (others[1]["address"], others[1]["bit"]))
        self.assertEqual(others[0]["old"], others[1]["new"], "the second flip has undone the first")

    def test_several_bits(self):
        flips = self.flip("--count=3", "--seed=5")
        self.assertEqual(len({(each["address"], each["bit"]) for each in flips}), 3)

    def test_no_such_process(self):
        done = subprocess.run([TOOL, str(2 ** 22 + 1)], capture_output=True, text=True)
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, r"^flip_memory: the memory of process \d+ cannot be changed: No such file or directory\n$")

    def test_no_such_run(self):
        done = subprocess.run([TOOL, "--run", str(Path("/no/such/run")), "--rank=3"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 1)
        self.assertIn("no process on this host is rank 3 of a run with --run.directory=/no/such/run", done.stderr)


if __name__ == "__main__":
    harness.main()
