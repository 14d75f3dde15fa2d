"""What tools/quickstart builds, HOLDFAST_NATIVE, has the kernels that a build of everything chooses on this processor, so that runs
have the same bits; and nothing that this machine does not run."""
import re
import subprocess
import tempfile
import unittest
from pathlib import Path

import harness

ANYWHERE = {"reference", "onednn"}  # in every build


def chosen_kernels(output):
    """The names in the lines of `holdfast check` of what runs each op: the first, and those that run what that does not support."""
    lines = re.findall(r"^  [a-z0-9_]+ +(\w+) +(?:best|the only)(.*)$", output, re.MULTILINE)
    return {name for first, rest in lines for name in [first, *re.findall(r"\w+", "".join(re.findall(r"; else ([\w, ]+)", rest)))]}


class NativeTest(unittest.TestCase):
    def test_has_what_a_whole_build_chooses(self):
        with tempfile.TemporaryDirectory() as directory, harness.Scene() as scene:
            configured = subprocess.run(["cmake", "--preset", "release", "-DHOLDFAST_NATIVE=ON", "-DHOLDFAST_TESTS=OFF", "-B", directory], cwd=harness.ROOT,
                                        capture_output=True, text=True, timeout=300, check=False)
            self.assertEqual(configured.returncode, 0, configured.stdout + configured.stderr)
            ninja = Path(directory, "build.ninja").read_text()
            check = harness.program_output("check", scene.config, "--kernels")
            chosen = chosen_kernels(check) - ANYWHERE
            self.assertTrue(chosen, check)
            self.assertEqual(set(re.findall(r"hf_kernels_ops(?:_bf16)?_(\w+)\.dir/", ninja)), chosen, check)
            self.assertIn("bin/holdfast", ninja)
            self.assertNotIn("bin/test_core", ninja)


if __name__ == "__main__":
    harness.main()
