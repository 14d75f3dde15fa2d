"""The attacks of tests/security on texts and commands, each of which has to fail (docs/security.md). What they share is
tests/security/attack.py."""
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import harness

CANNOT = 77


class SecurityTest(unittest.TestCase):
    def attack(self, name, root=harness.ROOT, within=()):
        program = harness.PROGRAM if root == harness.ROOT else root / harness.PROGRAM.relative_to(harness.ROOT)
        done = subprocess.run([*within, sys.executable, root / name, "--holdfast", program], capture_output=True, text=True,
                              errors="replace", timeout=600, check=False)
        if done.returncode == CANNOT:
            harness.skip(done.stdout.strip())
        self.assertEqual((done.returncode, done.stdout.strip().splitlines()[-1:]), (0, ["the attack fails"]), done.stdout + done.stderr)

    def test_ports_of_one_host(self):
        self.attack("tests/security/s2_listens.py")

    def test_run_ids_and_hosts(self):
        self.attack("tests/security/s3_run_id.py")

    def test_ports_for_replicas(self):
        self.attack("tests/security/s5_replica.py")

    def test_home(self):
        self.attack("tests/security/s4_home.py")

    @harness.needs(os.geteuid() == 0 and shutil.which("unshare"), "it takes root and unshare to show the tree in another place")
    def test_home_of_a_tree_below_tmp(self):
        """The attacker's /tmp hides neither the program nor its libraries."""
        root = Path(tempfile.mkdtemp(prefix="holdfast-tree-", dir="/tmp"))
        self.addCleanup(root.rmdir)
        self.attack("tests/security/s4_home.py", root, ["unshare", "--mount", "sh", "-c", 'mount --bind "$0" "$1" && shift && exec "$@"',
                                                        harness.ROOT, root])

    def test_files(self):
        self.attack("tests/security/s6_files.py")

    def test_what_is_no_text(self):
        self.attack("tests/security/s7_not_text.py")

    def test_secrets(self):
        self.attack("tests/security/s9_secrets.py")

    def test_links_in_checkpoints(self):
        self.attack("tests/security/s12_links.py")

    def test_devices_in_replay(self):
        self.attack("tests/security/s13_replay.py")

    def test_core_files(self):
        self.attack("tests/security/s14_cores.py")

    def test_hosts_of_chaos(self):
        self.attack("tests/security/s11_chaos_hosts.py")


if __name__ == "__main__":
    harness.main()
