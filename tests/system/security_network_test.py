"""Strangers on the network of a run: they reach its ports, and change nothing."""
import os
import re
import signal
import subprocess
import sys
import time
import unittest
from pathlib import Path

import harness
import hosts

SLOTS = 2
SETTLE_S = 90
FLOOD = harness.ROOT / "tests/security/s2_flood.py"
# Those below are of Open MPI's TCP transport, which begins at 1024; it believes whoever connects, and a flood there stops its ranks.
FIRST_OWN_PORT = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
OPTIONS = ["--checkpoint.every_steps=20", "--checkpoint.ram_every_steps=2", "--checkpoint.replicas=on", "--watchdog.floor=4s"]
SLOW_STEPS = ",".join(f"step.begin@{step}=sleep:200" for step in range(10, 41))


def listening_ports(pid):
    """Of TCP sockets of a process, in its network namespace."""
    inodes = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            inodes.add(os.readlink(entry).removeprefix("socket:[").removesuffix("]"))
        except OSError:
            continue
    ports = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and words[9] in inodes:
                ports.add(int(words[1].rsplit(":", 1)[1], 16))
    return ports


def guard_on(host):
    """The pid of the only guard there."""
    (pid,) = [pid for pid in host.processes() if b"\0guard\0" in hosts.command_line(pid)]
    return pid


class OneHostTest(unittest.TestCase):
    def test_no_guard_listens(self):
        with harness.Scene(lanes=2) as scene:
            run = scene.run("alone")
            start = run.start(2, faults="step.begin@10=sleep:3000")
            self.assertTrue(start.wait_for_step(9), start.tail())
            guards = run.guards()
            self.assertTrue(guards, "there is no guard")
            self.assertEqual({pid: listening_ports(pid) for pid in guards}, {pid: set() for pid in guards})
            start.expect_exit(0)


class SeveralHostsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if reason := hosts.why_not():
            harness.skip(reason)
        cls.scene = harness.Scene(lanes=2 * SLOTS, microbatch_size=4)
        cls.addClassCleanup(cls.scene.close)
        del cls.scene.environment["OMPI_MCA_btl_sm_backing_directory"]
        cls.reference = harness.reference_digest(cls.scene, OPTIONS)

    def launch(self, cluster, *overrides):
        run = self.scene.run(self.id().rsplit(".", 1)[1], OPTIONS)
        words = [str(harness.PROGRAM), "launch", "-np", str(2 * SLOTS), "--host", cluster.host_list(SLOTS, ["n0", "n1"]),
                 str(run.scene.config), f"--run.directory={run.directory}", *run.overrides, *overrides]
        start = cluster.start(run, words, faults=SLOW_STEPS)
        self.assertTrue(start.wait_for_step(12, SETTLE_S), start.tail())
        return run, start

    def expect_undisturbed(self, run, start):
        output = start.expect_exit(0, SETTLE_S)
        self.assertEqual(run.digest(), self.reference, output)
        self.assertEqual(run.events("fault") + run.events("recover"), [], output)
        self.assertEqual(len(run.events("start")), 1, output)

    def test_a_flood_of_strangers_beside_a_cut(self):
        """Idle and talkative connections at every port of both hosts, while their guards have to find each other again."""
        with hosts.Cluster(3) as cluster:
            run, start = self.launch(cluster)
            places = []
            for name in ("n0", "n1"):
                host = cluster.hosts[name]
                ports = set().union(*(listening_ports(pid) for pid in [guard_on(host), *cluster.ranks_on(run, name)]))
                ports = {port for port in ports if port >= FIRST_OWN_PORT}
                places.append(f"{host.address}:{','.join(map(str, ports))}")
            flood = subprocess.Popen([*cluster.hosts["n2"].enter(), sys.executable, str(FLOOD), *places],
                                     stdout=subprocess.PIPE, text=True)
            self.addCleanup(flood.kill)
            self.assertGreaterEqual(int(flood.stdout.readline().split()[0]), 6, "a guard and two ranks of each host listen")
            cluster.cut("n1")
            time.sleep(1.5)
            cluster.mend("n1")
            self.expect_undisturbed(run, start)
            for pid in hosts_children(flood.pid):
                harness.kill(pid, signal.SIGTERM)
            count = int(re.search(r"(\d+) connections", flood.communicate(timeout=20)[0])[1])
            self.assertGreater(count, 500, "there was hardly a flood")

    def test_an_interface_is_all_that_listens(self):
        with hosts.Cluster(2) as cluster:
            run, start = self.launch(cluster, "--network.interface=e0")
            for host in cluster.hosts.values():
                pid = guard_on(host)
                (port,) = listening_ports(pid)
                inside = ["nsenter", "--target", str(pid), "--net", "--"]
                at_loopback = subprocess.run([*inside, sys.executable, "-c",
                                              f"import socket; socket.create_connection(('127.0.0.1', {port}), 2)"],
                                             capture_output=True, text=True, check=False)
                self.assertIn("ConnectionRefusedError", at_loopback.stderr)
            self.expect_undisturbed(run, start)


def hosts_children(pid):
    """A process entered the host for it, and has its number outside."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()] or [pid]


if __name__ == "__main__":
    harness.main()
