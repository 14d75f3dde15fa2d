"""Runs whose run directory is another one on each host (hosts.py, Cluster.local): each host keeps its part of every checkpoint and
a copy of another host's, so a host can be lost with its disk, and the run goes on with the bits of the run that nothing disturbed.
What is left on the hosts makes one whole checkpoint again by `holdfast collect`.

Where the system permits no namespaces this is skipped, and says why; with CI=true that is a failure.
"""
import re
import shutil
import signal
import time
import unittest
from pathlib import Path

import errors_test
import harness
import hosts

HOSTS = 3
OPTIONS = ["--checkpoint.every_steps=5", "--watchdog.floor=4s", "--elastic.grow=off"]  # of the disk alone: the scene has no RAM tier
SAVED_STEP = 10
SETTLE_S = 90
NOTICE_S = 20
SLOW_STEPS = ",".join(f"step.begin@{step}=sleep:150" for step in range(12, 31))
ROWS = errors_test.read_table(lambda heading: heading == errors_test.LOCAL_DIRECTORIES)


def setUpModule():
    if reason := hosts.why_not():
        harness.skip(reason)


class LocalRun(harness.Run):
    """Its directory is what processes on the hosts call it; on(host) is the run as this process sees it there."""

    def __init__(self, cluster, scene, name, overrides):
        super().__init__(scene, name, overrides)
        self.cluster, self.directory = cluster, cluster.local / name

    def on(self, host):
        run = harness.Run(self.scene, self.directory.name, [])
        run.directory = self.cluster.disk(host) / self.directory.name
        return run

    def hosts(self):
        return [path.name for path in (self.cluster.directory / "disks").iterdir()]

    def last_step(self):
        return max(self.on(host).last_step() for host in self.hosts())

    def newest_step(self):
        """Of the newest checkpoint that every host has published that is up and has the run."""
        steps = [self.on(host).newest_step() for host in self.cluster.hosts if self.on(host).directory.exists()]
        return min(steps, default=0)

    def lose_disk(self, host):
        shutil.rmtree(self.cluster.disk(host))


class LocalTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scene = harness.Scene(lanes=2 * HOSTS)
        cls.addClassCleanup(cls.scene.close)
        # On each host in its own shared memory, and the program's to clean up.
        del cls.scene.environment["OMPI_MCA_btl_sm_backing_directory"]
        cls.reference = harness.reference_digest(cls.scene, OPTIONS)

    def cluster(self):
        cluster = hosts.Cluster(HOSTS)
        self.addCleanup(cluster.close)
        return cluster

    def expect_sentence(self, name, text):
        self.assertRegex(text, ROWS[name].pattern)

    def refused(self, name, *words):
        """A command that ends as a row says."""
        done = harness.call_program(*words)
        self.expect_sentence(name, done.stdout)
        self.assertEqual(done.returncode, ROWS[name].code, done.stdout)

    def start(self, run, names, *overrides, host="n0", faults=SLOW_STEPS, ranks=None, slots=1):
        words = [str(harness.PROGRAM), "launch", "-np", str(ranks or slots * len(names)), f"--notice={NOTICE_S}", "--host",
                 run.cluster.host_list(slots, names), str(self.scene.config), f"--run.directory={run.directory}", *run.overrides,
                 *overrides]
        return run.cluster.start(run, words, host=host, faults=faults)

    def launch(self, cluster, *overrides, until=SAVED_STEP, names=("n0", "n1", "n2"), slots=1):
        run = LocalRun(cluster, self.scene, self.id().rsplit(".", 1)[1], OPTIONS)
        start = self.start(run, names, *overrides, slots=slots)
        self.assertTrue(start.wait_for_checkpoint(until, SETTLE_S), start.tail())
        return run, start

    def collect(self, run, names):
        """The checkpoint that hosts of these names have together, in a directory of its own."""
        whole = harness.Run(self.scene, f"{run.directory.name}-whole-{'-'.join(names)}", [])
        harness.program_output("collect", whole.directory, *(run.on(name).directory for name in names))
        return whole

    def expect_finished(self, run, start, names):
        """The bits of the reference, from what these hosts have, and every step in the log of the first."""
        output = start.expect_exit(0, SETTLE_S)
        whole = self.collect(run, names)
        self.assertEqual(whole.digest(), self.reference, output)
        self.assertEqual(harness.call_program("verify", whole.directory).returncode, 0)
        self.assertEqual({event["step"] for event in run.on(names[0]).events("step")}, set(range(1, harness.STEPS + 1)))
        self.assertEqual(run.on(names[0]).status()["state"], "finished", output)
        harness.expect_no_processes(run)
        return output

    def shards(self, run, host, step=SAVED_STEP):
        directory = run.on(host).directory / f"checkpoints/step-{step:08d}"
        return {path.name for path in directory.glob("shard-*")}

    def test_every_row_is_tested(self):
        found = re.findall(r'(?:expect_sentence|refused)\("([a-z-]+)"', Path(__file__).read_text())
        self.assertEqual(set(found), set(ROWS))

    def test_a_host_is_lost_for_good(self):
        """With its disk. The others have its part; it is not in RAM."""
        run, start = self.launch(self.cluster())
        step = run.newest_step()
        self.assertEqual([len(self.shards(run, host, step)) for host in ("n0", "n1", "n2")], [2, 2, 2], "its own, and one copy")
        self.refused("verify-part", "verify", run.on("n0").directory)
        self.refused("collect-part-missing", "collect", self.scene.directory / "one-host", run.on("n1").directory)
        begun = time.monotonic()
        run.cluster.lose("n2")
        run.lose_disk("n2")
        output = self.expect_finished(run, start, ["n0", "n1"])
        lasted_s = time.monotonic() - begun
        self.expect_sentence("local-directories", output)
        last = run.on("n0").events("start")[-1]
        self.assertEqual((last["ranks"], last["resumed_from"]), (2, "disk"), output)
        self.assertGreaterEqual(last["resumed_from_step"], step, output)
        again = sum(event["lost_steps"] for event in run.on("n0").events("recovery"))
        print(f"\na host and its disk lost behind the save of step {step}: the others go on from step {last['resumed_from_step']} of their "
              f"disks, {again} steps computed again; {lasted_s:.1f} s to the end of the run, digest equal")

    def test_two_leaders(self):
        """Directories that are of two runs, or of one run that two starts have taken different ways."""
        def train(name, steps, *overrides):
            run = self.scene.run(name, [f"--training.steps={steps}", "--checkpoint.every_steps=2", *overrides])
            run.start(1).expect_exit(0)
            return run

        one, other = train("one", 6), train("other", 6)
        self.refused("collect-different-runs", "collect", self.scene.directory / "both", one.directory, other.directory)
        copy = self.scene.run("copy")
        shutil.copytree(one.directory, copy.directory)
        train("one", 8, "--optimizer.learning_rate=1e-3")
        train("copy", 8, "--optimizer.learning_rate=5e-4")
        self.refused("collect-two-leaders", "collect", self.scene.directory / "both", one.directory, copy.directory)

    @harness.full
    def test_collect_of_base_files(self):
        """A run on one host may have saved what refers to files of older saves, which are taken along."""
        run = self.scene.run("delta", ["--training.steps=4", "--checkpoint.every_steps=1", "--model.freeze=embedding", "--checkpoint.keep=1",
                                       "--optimizer.warmup_steps=0"])
        run.start(1).expect_exit(0)
        self.assertTrue(list(run.checkpoints()[-1].glob("base-*")))
        whole = harness.Run(self.scene, "delta-whole", [])
        harness.program_output("collect", whole.directory, run.directory)
        self.assertEqual(harness.call_program("verify", whole.directory).returncode, 0)
        self.assertEqual(whole.digest(), run.digest())

    @harness.full
    def test_all_hosts_stop_and_start(self):
        """The same hosts go on from their parts, in another layout, too, and with hosts that had none."""
        run, start = self.launch(self.cluster(), names=("n0", "n1"))
        start.signal(signal.SIGTERM)
        start.expect_exit(75, SETTLE_S)
        saved = run.on("n0").status()["step"]
        again = self.start(run, ("n0", "n1", "n2"), faults="")
        self.expect_finished(run, again, ["n0", "n1", "n2"])
        last = run.on("n0").events("start")[-1]
        self.assertEqual((last["ranks"], last["resumed_from"], last["resumed_from_step"]), (3, "disk", saved))

    @harness.full
    def test_the_host_of_the_launcher_is_lost(self):
        """The run is launched again on another host, which has the log, too."""
        run, start = self.launch(self.cluster())
        step = run.newest_step()
        run.cluster.lose("n0")
        run.lose_disk("n0")
        start.wait()
        harness.wait_until(lambda: not any(run.cluster.processes(run).values()), 60, lambda: False, "processes stay", start.tail)
        again = self.start(run, ("n1", "n2"), host="n1", faults="")
        self.expect_finished(run, again, ["n1", "n2"])
        self.assertGreaterEqual(run.on("n1").events("start")[-1]["resumed_from_step"], step)

    @harness.full
    def test_a_host_comes_back_with_an_old_disk(self):
        """What it has of steps that the others have removed meanwhile is not used."""
        run, start = self.launch(self.cluster())
        run.cluster.lose("n2")
        self.assertTrue(start.wait_for_checkpoint(30, SETTLE_S), start.tail())
        start.signal(signal.SIGTERM)
        start.expect_exit(75, SETTLE_S)
        run.cluster.power_on("n2")
        again = self.start(run, ("n0", "n1", "n2"), faults="")
        self.expect_finished(run, again, ["n0", "n1", "n2"])

    @harness.full
    def test_ranks_of_a_host_die(self):
        """The others heal the run in place, from what their disks have; the host's own part is among that."""
        run, start = self.launch(self.cluster(), slots=2)
        run.cluster.kill_ranks(run, "n2")
        self.expect_finished(run, start, ["n0", "n1", "n2"])
        recovery = run.on("n0").events("recovery")[0]
        self.assertEqual((recovery["level"], recovery["resumed_from"]), (1, "disk"))

    @harness.full
    def test_two_hosts_are_lost_for_good(self):
        """One more than there are copies: a start with what is left says what is missing, and begins nothing anew."""
        run, start = self.launch(self.cluster())
        for host in ("n1", "n2"):
            run.cluster.lose(host)
            run.lose_disk(host)
        start.signal(signal.SIGKILL)
        start.wait()
        harness.wait_until(lambda: not any(run.cluster.processes(run).values()), 60, lambda: False, "processes stay", start.tail)
        run.cluster.power_on("n1")
        again = self.start(run, ("n0", "n1"), faults="")
        self.expect_sentence("local-part-missing", again.expect_exit(ROWS["local-part-missing"].code, SETTLE_S))

    @harness.full
    def test_parts_that_no_host_has_whole(self):
        """What was published and is gone is missed; what only one host ever published is not."""
        run, start = self.launch(self.cluster(), "--checkpoint.replicas=off", names=("n0", "n1"))
        start.signal(signal.SIGTERM)
        start.expect_exit(75, SETTLE_S)
        theirs = run.on("n1").directory / "checkpoints"
        for shard in theirs.glob("step-*/shard-*"):
            shard.unlink()
        again = self.start(run, ("n0", "n1"), "--checkpoint.replicas=off", faults="")
        self.expect_sentence("local-part-gone", again.expect_exit(ROWS["local-part-gone"].code, SETTLE_S))
        shutil.rmtree(theirs)
        (run.on("n1").directory / "lineage.json").unlink()  # which says that they were published
        again = self.start(run, ("n0", "n1"), "--checkpoint.replicas=off", faults="")
        self.expect_sentence("local-part-removed", self.expect_finished(run, again, ["n0", "n1"]))

    @harness.full
    def test_what_is_in_ram_counts(self):
        """Where no checkpoint is whole: all processes are killed, and a host loses its part of every one."""
        words = ("--checkpoint.replicas=off", "--checkpoint.ram_every_steps=1")
        run, start = self.launch(self.cluster(), *words, names=("n0", "n1"))
        start.signal(signal.SIGKILL)
        start.wait()
        harness.wait_until(lambda: not any(run.cluster.processes(run).values()), 60, lambda: False, "processes stay", start.tail)
        for shard in run.on("n1").directory.glob("checkpoints/step-*/shard-*"):
            shard.unlink()
        again = self.start(run, ("n0", "n1"), *words, faults="")
        self.expect_sentence("local-ram-alone", self.expect_finished(run, again, ["n0", "n1"]))
        self.assertEqual(run.on("n0").events("start")[-1]["resumed_from"], "ram")

    @harness.full
    def test_upload_of_a_part(self):
        run = LocalRun(self.cluster(), self.scene, "upload", OPTIONS)
        start = self.start(run, ("n0", "n1"), "--checkpoint.upload_command=true", faults="")
        self.expect_sentence("local-upload", start.expect_exit(ROWS["local-upload"].code, SETTLE_S))

    @harness.full
    def test_collect_from_hosts(self):
        """By the way that the launcher reaches them."""
        run, start = self.launch(self.cluster())
        start.expect_exit(0, SETTLE_S)
        done = run.cluster.call("n0", "env", f"PRTE_MCA_plm_ssh_agent={run.cluster.agent}", str(harness.PROGRAM), "collect",
                                str(run.directory), "--hosts", "n0,n1,n2")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(run.on("n0").digest(), self.reference)
        self.assertEqual(harness.call_program("verify", run.on("n0").checkpoints()[-1]).returncode, 0)


if __name__ == "__main__":
    harness.main(at_once=1)
