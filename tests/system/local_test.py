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
import object_store_test as object_store

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

    def lose_directory(self, host):
        """Of a host that stays, with a new disk."""
        shutil.rmtree(self.on(host).directory)

    def kill_all(self, start):
        """As when the job is killed."""
        start.signal(signal.SIGKILL)
        start.wait()
        harness.wait_until(lambda: not any(self.cluster.processes(self).values()), 60, lambda: False, "processes stay", start.tail)


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
        self.assertEqual(set(run.on(names[0]).steps_told()), set(range(1, harness.STEPS + 1)))
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

    @harness.full
    def test_a_host_whose_part_is_nowhere_else_loses_its_ranks(self):
        """The others cannot go on without its disk: they end for another start, which has it."""
        run, start = self.launch(self.cluster(), "--checkpoint.replicas=off")
        step = run.newest_step()
        run.cluster.kill_trainers("n2")
        output = self.expect_finished(run, start, ["n0", "n1", "n2"])
        last = run.on("n0").events("start")[-1]
        self.assertEqual((last["ranks"], last["resumed_from"]), (HOSTS, "disk"), output)
        self.assertGreaterEqual(last["resumed_from_step"], step, output)

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
        run.kill_all(start)
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
        again = self.start(run, ("n0", "n1"), "--checkpoint.replicas=off", "--checkpoint.download_command=true", faults="")
        self.expect_sentence("local-nothing-elsewhere", again.expect_exit(ROWS["local-nothing-elsewhere"].code, SETTLE_S))
        shutil.rmtree(theirs)
        (run.on("n1").directory / "lineage.json").unlink()  # which says that they were published
        again = self.start(run, ("n0", "n1"), "--checkpoint.replicas=off", faults="")
        self.expect_sentence("local-part-removed", self.expect_finished(run, again, ["n0", "n1"]))

    @harness.full
    def test_what_is_in_ram_counts(self):
        """Where no checkpoint is whole: all processes are killed, and a host loses its part of every one."""
        words = ("--checkpoint.replicas=off", "--checkpoint.ram_every_steps=1")
        run, start = self.launch(self.cluster(), *words, names=("n0", "n1"))
        run.kill_all(start)
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

    def store(self, cluster):
        """An S3 server beside the switch."""
        if reason := object_store.why_not():
            harness.skip(reason)
        address = f"{hosts.NETWORK}.254"
        cluster.in_switch("ip", "link", "set", "lo", "up")
        cluster.in_switch("ip", "address", "add", f"{address}/24", "dev", "bridge")
        server = object_store.Server(cluster.directory / "store", cluster.enter_switch(), address)
        self.addCleanup(server.close)
        return server

    def run_with_store(self, server, cluster, name, *options):
        """Ranks get nothing of the caller's environment, so the command has it all."""
        variables = " ".join(f"{variable}={value}" for variable, value in server.variables().items())
        command = f"exec env {variables} {object_store.PYTHON} {object_store.CLIENT} {{}} s3://{object_store.BUCKET}/{name}"
        return LocalRun(cluster, self.scene, name, [*OPTIONS, *options, f"--checkpoint.upload_shard_command={command.format('put')} --keep 3",
                                                    f"--checkpoint.download_command={command.format('get')}"])

    def wait_until_stored(self, server, run, start):
        name = run.directory.name
        harness.wait_until(lambda: server.whole(name), SETTLE_S, lambda: not start.alive(), "nothing was uploaded", start.tail)

    def expect_downloaded(self, server, run, start, names):
        """The run goes on from the store, which has its last checkpoint at the end."""
        output = start.expect_exit(0, SETTLE_S)
        resumed = run.on(names[0]).events("start")[-1]["resumed_from_step"]
        self.assertIn(f"downloaded the checkpoint of step {resumed}: ", output)
        self.assertEqual(self.collect(run, names).digest(), self.reference, output)
        target = self.scene.directory / f"{run.directory.name}-fetched"
        target.mkdir()
        server.client("get", run.directory.name, HOLDFAST_DOWNLOAD=str(target))
        self.assertEqual(harness.program_output("digest", target), self.reference)

    @harness.full
    def test_all_directories_are_lost(self):
        """After a rank was killed in the middle of an upload; the others heal the run, and what it has saved is sent again. Other hosts
        go on from the store, each with what it needs."""
        cluster = self.cluster()
        server = self.store(cluster)
        run = self.run_with_store(server, cluster, "store")
        with server.holding("store", "PUT", "shard-00002.hfs") as wait_for_it:
            start = self.start(run, ("n0", "n1"), slots=2)
            wait_for_it(start)
            self.assertEqual(server.whole("store"), [], "half of a checkpoint is none")
            harness.kill(cluster.ranks_on(run, "n1")[0], signal.SIGKILL)
        self.wait_until_stored(server, run, start)
        self.assertEqual(len(run.on("n0").events("recovery")), 1, start.tail())
        run.kill_all(start)
        for host in ("n0", "n1"):
            run.lose_directory(host)
        self.expect_downloaded(server, run, self.start(run, ("n1", "n2"), host="n1", faults=""), ["n1", "n2"])

    @harness.full
    def test_one_directory_is_lost_and_was_copied_nowhere_but_to_the_store(self):
        """What comes from there takes the place of the parts that are left."""
        cluster = self.cluster()
        server = self.store(cluster)
        run = self.run_with_store(server, cluster, "part", "--checkpoint.replicas=off")
        start = self.start(run, ("n0", "n1"))
        self.wait_until_stored(server, run, start)
        run.kill_all(start)
        run.lose_directory("n1")
        self.expect_downloaded(server, run, self.start(run, ("n0", "n1"), faults=""), ["n0", "n1"])

    @harness.full
    def test_a_verdict_goes_back_to_what_comes_from_elsewhere(self):
        """The hosts have nothing of before the last good products any more. What comes to the host of rank 0 is copied from there."""
        elsewhere = self.scene.directory / "elsewhere"
        elsewhere.mkdir()
        options = ["--checkpoint.replicas=off", "--checkpoint.every_steps=4", "--checkpoint.keep=19", "--verdict.audit_every_steps=7",
                   f'--checkpoint.download_command=test -z "$HOLDFAST_BEFORE_STEP" || cp {elsewhere}/* "$HOLDFAST_DOWNLOAD"']
        names = ("n0", "n1", "n2")
        run = LocalRun(self.cluster(), self.scene, "verdict", [*OPTIONS, *options])
        start = self.start(run, names, faults=f"step.begin@20:1=wrong_product_always,{harness.slow_steps(14, count=8, milliseconds=500)}")
        self.assertTrue(start.wait_for_checkpoint(16, SETTLE_S), start.tail())
        for host in names:
            for checkpoint in run.on(host).checkpoints():
                if checkpoint.name == "step-00000012":
                    for file in checkpoint.iterdir():
                        shutil.copy(file, elsewhere)
                if checkpoint.name <= "step-00000012":
                    shutil.rmtree(checkpoint)
        output = start.expect_exit(0, SETTLE_S)
        self.assertIn("downloaded the checkpoint of step 12: ", output)
        self.assertEqual(run.on("n0").events("recovery")[0]["resumed_from_step"], 12, output)
        self.assertEqual(self.collect(run, ["n0", "n2"]).digest(), self.reference, output)

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
