"""Runs on several hosts (hosts.py), which lose ranks, a cable or their power: the run ends with the bits of the run that
nothing disturbed, what was in the memory of a lost host comes from where it was copied to, nobody writes beside the run that
goes on, and nothing stays behind on any host.

Where the system permits no namespaces this is skipped, and says why; with CI=true that is a failure.

HOLDFAST_TEST_CRASH_LOOPS: how many runs have one bad host among eight; 1 when left out.
"""
import fcntl
import json
import os
import random
import re
import signal
import threading
import time
import unittest
from pathlib import Path

import errors_test
import harness
import hosts

HOSTS, SLOTS = 3, 2
RANKS = HOSTS * SLOTS
INTERVAL = 2  # of RAM snapshots
NO_GROWTH = "--elastic.grow=off"  # a slow machine needs longer for the rest of a run than elastic.grow_after
OPTIONS = ["--checkpoint.every_steps=20", f"--checkpoint.ram_every_steps={INTERVAL}", "--checkpoint.replicas=on",
           "--watchdog.floor=4s"]
NOTICE_S = 20
SETTLE_S = 90    # no start and its restarts take so long
SILENCE_S = 4    # of a host that is unreachable, before the others say so: watchdog.floor
ROWS = errors_test.read_table(lambda heading: heading == errors_test.SEVERAL_HOSTS)
# A step that takes long enough for something to happen in it, whatever else the machine does.
SLOW_STEPS = ",".join(f"step.begin@{step}=sleep:150" for step in range(10, 31))
# Small, because every thread of a GPU takes its turn on the CPU. All hosts have the same emulated one.
EMULATED_GPU = ["--device=cuda", "--parallel.ranks_per_gpu=6", "--model.width=32", "--model.layers=1", "--training.sequence_length=16",
                "--training.microbatch_size=1", "--evaluation.every_steps=0"]
CRASH_LOOPS = int(os.environ.get("HOLDFAST_TEST_CRASH_LOOPS") or 1)
SLOW_UNTIL_THE_END = ",".join(f"step.begin@{step}=sleep:700" for step in range(10, 45))


def setUpModule():
    if reason := hosts.why_not():
        harness.skip(reason)


class HostsTest(unittest.TestCase):
    maxDiff = None
    @classmethod
    def setUpClass(cls):
        cls.scene = harness.Scene(lanes=RANKS, microbatch_size=4)
        cls.addClassCleanup(cls.scene.close)
        # On each host in its own shared memory, and the program's to clean up.
        del cls.scene.environment["OMPI_MCA_btl_sm_backing_directory"]
        cls.reference = harness.reference_digest(cls.scene, OPTIONS)

    def expect_sentence(self, name, text, *others):
        """A row of docs/errors.md, or one of several."""
        self.assertTrue(any(ROWS[row].pattern.search(text) for row in (name, *others)), f"{name} {others}: {text}")

    def setUp(self):
        self.cluster = hosts.Cluster(HOSTS)
        self.addCleanup(self.cluster.close)

    def launch_words(self, run, *overrides, ranks=RANKS, names=None, options=()):
        return [str(harness.PROGRAM), "launch", "-np", str(ranks), f"--notice={NOTICE_S}", *options,
                "--host", self.cluster.host_list(SLOTS, names), str(run.scene.config), f"--run.directory={run.directory}",
                *run.overrides, *overrides]

    def launch(self, *overrides, ranks=RANKS, names=None, options=(), faults=SLOW_STEPS, until=14, **variables):
        run = self.scene.run(self.id().rsplit(".", 1)[1], OPTIONS)
        words = self.launch_words(run, *overrides, ranks=ranks, names=names, options=options)
        start = self.cluster.start(run, words, faults=faults, **variables)
        self.assertTrue(start.wait_for_step(until, SETTLE_S), start.tail())
        return run, start

    def expect_finished(self, run, start, reference=None, steps=harness.STEPS):
        """The bits of the reference, every step, and nothing left on the hosts that are up."""
        output = start.expect_exit(0, SETTLE_S)
        self.assertEqual(run.digest(), reference or self.reference, output)
        self.assertEqual(set(run.steps_told()), set(range(1, steps + 1)))
        self.assertEqual(run.status()["state"], "finished", output)
        harness.expect_no_processes(run)
        self.expect_clean(start)
        return output

    def expect_clean(self, start, timeout_s=15):
        """Daemons of MPI take their time."""
        for name, host in self.cluster.hosts.items():
            harness.wait_until(lambda: not host.processes(), timeout_s, lambda: False,
                               f"{name} still has {[harness.describe(pid) for pid in host.processes()]}", start.tail)
            self.assertEqual(host.shared_memory(), [], (name, start.output()))

    def expect_level_2(self, run, start, ranks_after, resumed_from="ram"):
        recoveries = [event for event in run.events("recovery") if event["level"] == 2]
        self.assertEqual(len(recoveries), 1, (run.events("fault"), run.events("recovery"), start.output()))
        self.assertEqual((recoveries[0]["ranks_before"], recoveries[0]["ranks_after"]), (RANKS, ranks_after))
        last = run.events("start")[-1]
        self.assertEqual((last["ranks"], last["resumed_from"]), (ranks_after, resumed_from))
        self.assertGreaterEqual(last["resumed_from_step"], confirmed_before(run.events(), last), recoveries)
        return recoveries[0]

    def test_every_row_is_tested(self):
        self.assertEqual(set(re.findall(r'expect_sentence\("([a-z-]+)"', Path(__file__).read_text())), set(ROWS))

    # What works

    def test_undisturbed(self):
        run, start = self.launch(faults="", until=3)
        for name in self.cluster.hosts:
            self.assertEqual(len(self.cluster.ranks_on(run, name)), SLOTS, name)
        self.expect_finished(run, start)
        self.assertEqual(run.events("fault") + run.events("recovery"), [])

    # Ranks

    def test_all_ranks_of_a_host_die(self):
        """Its daemon lives, so the others heal the run in place."""
        run, start = self.launch(NO_GROWTH)
        before = {name: self.cluster.ranks_on(run, name) for name in self.cluster.hosts}
        mpirun = mpirun_of(self.cluster, run)
        dead = self.cluster.ranks_on(run, "n2")
        self.cluster.kill_ranks(run, "n2")
        recovered = harness.wait_until(lambda: run.events("recovery"), SETTLE_S, lambda: not start.alive(), "nobody recovered",
                                       start.tail)
        self.assertTrue(recovered, start.tail())
        after = {name: self.cluster.ranks_on(run, name) for name in self.cluster.hosts}
        self.assertEqual(after, {**before, "n2": []}, "the others are the same processes")
        self.assertEqual(mpirun_of(self.cluster, run), mpirun)
        output = self.expect_finished(run, start)
        said = re.findall(r"^holdfast guard: (.*) \(host n2\) died: signal 9 \(SIGKILL\)$", output, re.MULTILINE)
        if harness.TELLS_CAUSES:
            self.assertEqual(" ".join(said).count("rank"), len(dead), output)
        self.assertEqual([(event["level"], event["ranks_before"], event["ranks_after"], event["resumed_from"])
                          for event in run.events("recovery")], [(1, RANKS, RANKS - SLOTS, "ram")])
        self.assertEqual(len(run.events("start")), 1)

    @harness.full
    def test_a_lock_that_outlives_its_host(self):
        """As on a file server which the kernel of a lost host never tells: those that are left wait for a few renewals that do not
        come, and go on in place."""
        run, start = self.launch(NO_GROWTH)
        lock = open(run.directory / "lock", "rb")
        self.addCleanup(lock.close)
        # It waits for the lock, and has it as soon as the writer is dead.
        threading.Thread(target=fcntl.flock, args=(lock, fcntl.LOCK_EX), daemon=True).start()
        time.sleep(0.5)
        self.cluster.kill_ranks(run, "n0")
        output = self.expect_finished(run, start)
        self.assertRegex(output, r"host n0 pid \d+ has not renewed its claim: claim 2 takes over")
        self.assertEqual([(event["level"], event["ranks_before"], event["ranks_after"]) for event in run.events("recovery")],
                         [(1, RANKS, RANKS - SLOTS)], output)
        print(f"\nwith a lock that outlives its host, to the next step: {run.events('recovery')[0]['duration_ms']} ms")

    def test_a_host_is_used_again(self):
        """Whose ranks had all died: the run is started again with all ranks, from the step that it had come to, in RAM. What dies
        there again is lost like the first, and comes back again."""
        run, start = self.launch("--elastic.grow_after=2s", "--elastic.settle_after=0s", faults=SLOW_UNTIL_THE_END, until=11)

        def growths():
            return [event for event in run.events("recovery") if event.get("reason") == "growth"]

        for count in (1, 2):
            self.cluster.kill_ranks(run, "n2")
            harness.wait_until(lambda: len(growths()) >= count, SETTLE_S, lambda: not start.alive(), "no growth", start.tail)
            self.assertEqual(len(self.cluster.ranks_on(run, "n2")), SLOTS, start.tail())
        output = self.expect_finished(run, start)
        self.expect_sentence("launch-room-for-more", output)
        self.assertEqual([(event["level"], event.get("reason"), event["ranks_after"]) for event in run.events("recovery")],
                         2 * [(1, "loss", RANKS - SLOTS), (2, "growth", RANKS)], output)
        self.assertEqual([event["lost_steps"] for event in growths()], [0, 0])
        print(f"\nfrom the end of the ranks that there were to the first step of all: "
              f"{', '.join(str(event['duration_ms']) for event in growths())} ms")
        # On a busy machine a host can be silent for longer than SILENCE_S at a start, which is then made once more.
        starts = run.events("start")
        self.assertIn(len(starts), (3, 4), output)
        self.assertEqual([event.get("resumed_from") for event in starts], [None] + (len(starts) - 1) * ["ram"], output)
        self.assertEqual([event["ranks"] for event in starts], len(starts) * [RANKS], output)

    @harness.full
    def test_a_drill_loses_a_rank_and_a_host(self):
        run, start = self.launch(NO_GROWTH, options=["--drill"], faults="", until=3)
        output = self.expect_finished(run, start)
        self.assertRegex(output, rf"drill: rank {RANKS // 2} lost: {RANKS - 1} of {RANKS} ranks went on in place")
        self.assertRegex(output, rf"drill: host n2 lost: {RANKS - SLOTS} of {RANKS} ranks went on in place")
        self.assertEqual(run.events("fault"), [])

    def test_variables_reach_other_hosts(self):
        """What is asked of a rank reaches it wherever it is; ranks that differ in a setting would not begin."""
        run, start = self.launch(NO_GROWTH, faults=f"step.begin@16:{RANKS - 1}=kill", until=3, HOLDFAST_LOG_EVERY_STEPS="7")
        self.expect_finished(run, start)
        self.assertEqual([(event["level"], event["ranks_after"]) for event in run.events("recovery")], [(1, RANKS - 1)], start.output())

    def test_the_ranks_of_two_hosts_die(self):
        """Together they and the host that is left have all of a snapshot, and that one alone has nothing: another start goes on
        from the snapshot."""
        run, start = self.launch(NO_GROWTH)
        for name in ("n1", "n2"):
            self.cluster.kill_ranks(run, name)
        output = self.expect_finished(run, start)
        self.expect_sentence("hosts-have-newer-state", output)
        self.expect_level_2(run, start, ranks_after=RANKS)

    def test_the_lower_half_dies(self):
        """Those that are left are half of the run, and not the half with the lowest rank: what the guard of the other host
        has seen is their proof that they are not merely cut off."""
        run, start = self.launch(NO_GROWTH, ranks=4, names=["n0", "n1"])
        self.cluster.kill_ranks(run, "n0")
        self.expect_finished(run, start)
        self.assertEqual([(event["level"], event["ranks_after"]) for event in run.events("recovery")], [(1, 2)], start.output())

    @harness.full
    def test_a_hang_in_the_first_step(self):
        """Of the only rank of its stage, and of its host, before the others give up. The spare takes its coordinate."""
        run = self.scene.run("first-step", ["--checkpoint.ram_every_steps=1", "--watchdog.floor=2s", "--elastic.grow=off"])
        words = [str(harness.PROGRAM), "launch", "-np", "3", f"--notice={NOTICE_S}", "--host", self.cluster.host_list(1),
                 str(run.scene.config), f"--run.directory={run.directory}", *run.overrides, "--parallel.pipeline=2", "--elastic.spares=1",
                 "--parallel.timeout=40s"]
        start = self.cluster.start(run, words, faults="step.begin@1:0=spin")  # which distant ranks do not hear of
        output = self.expect_finished(run, start)
        self.assertRegex(output, r"guard: rank 0 \(host n0\) hangs: step 1 for \S+ s, 24\.0 s are the limit; ")
        self.assertNotRegex(output, r"rank [12] \(host \S+\) hangs")
        self.assertEqual(len(run.events("start")), 1, output)
        self.assertEqual([(event["level"], event["ranks_after"]) for event in run.events("recovery")], [(1, 2)], output)

    # The launcher's side

    @harness.full
    def test_mpirun_killed(self):
        run, start = self.launch()
        harness.kill(mpirun_of(self.cluster, run), signal.SIGKILL)
        output = self.expect_finished(run, start)
        self.assertIn("mpirun was killed by signal 9; starting again", output)

    @harness.full
    def test_launcher_killed(self):
        """What it started ends with it, on all hosts; the next one cleans up after it."""
        run, start = self.launch()
        start.signal(signal.SIGKILL)
        start.wait()
        harness.wait_until(lambda: not any(self.cluster.processes(run).values()), 30, lambda: False, "processes stay", start.tail)
        again = self.cluster.start(run, self.launch_words(run))
        self.expect_finished(run, again)
        self.assertEqual(sorted(path.name for path in (run.directory / "launch").iterdir()), ["lock", "token"])

    @harness.full
    def test_a_second_launch(self):
        """While the first lives it is refused, and changes nothing."""
        run, start = self.launch(faults=",".join(f"step.begin@{step}=sleep:400" for step in range(10, 45)))
        output = self.cluster.call("n1", *self.launch_words(run), timeout_s=SETTLE_S)
        self.assertEqual(output.returncode, 76, output.stderr)
        self.assertRegex(output.stderr, r"in use by another launch \(host n0 pid \d+\)")
        self.expect_finished(run, start)
        self.assertEqual(run.events("fault"), [])

    # Hosts

    def test_a_host_is_lost(self):
        """With all that it had in memory: its state comes from the replicas on other hosts."""
        run, start = self.launch()
        begun = time.monotonic()
        self.cluster.lose("n2")
        output = self.expect_finished(run, start)
        self.expect_sentence("launch-host-left-out", output)
        self.expect_level_2(run, start, ranks_after=RANKS - SLOTS)
        print(f"\na host lost to the end of the run: {time.monotonic() - begun:.1f} s")

    @harness.full
    def test_a_host_crashes_loudly(self):
        """Its processes die while its network still says so."""
        run, start = self.launch(faults=SLOW_UNTIL_THE_END)
        for pid in self.cluster.hosts["n2"].processes():
            harness.kill(pid, signal.SIGKILL)
        self.cluster.lose("n2")
        self.expect_finished(run, start)
        self.assertEqual(run.events("start")[-1]["ranks"], RANKS - SLOTS)

    def test_a_host_comes_back(self):
        """The launcher finds that it answers again, and the run is started again with it."""
        run, start = self.launch("--elastic.grow_after=1s", faults=SLOW_UNTIL_THE_END)
        self.cluster.lose("n1")
        self.assertTrue(harness.wait_until(lambda: "host n1 does not answer" in start.output(), SETTLE_S,
                                           lambda: not start.alive(), "no word", start.tail), start.tail())
        self.cluster.power_on("n1")
        output = self.expect_finished(run, start)
        self.expect_sentence("launch-host-back", output)
        self.assertEqual([event["ranks"] for event in run.events("start")], [RANKS, RANKS - SLOTS, RANKS])
        self.assertEqual([event.get("reason") for event in run.events("recovery")][-1], "growth", output)

    def drain(self, run, *words):
        """From a shell on another host."""
        done = self.cluster.call("n1", str(harness.PROGRAM), "drain", str(run.directory), *words, timeout_s=SETTLE_S)
        return done.returncode, done.stdout + done.stderr

    def test_a_host_is_drained(self):
        """It is left between two steps, which cost nothing, and may be switched off then; it is used again when it may be. A run
        that may not shrink that far stays where it is."""
        run, start = self.launch("--elastic.min_data_parallel=3", "--elastic.grow_after=1s", faults=SLOW_UNTIL_THE_END, until=11)
        code, output = self.drain(run, "n2")
        self.assertEqual(code, 0, output)
        self.assertIn(f"host n2 is drained: the run goes on without it from step {run.events('start')[-1]['resumed_from_step']}\n",
                      output)
        self.assertEqual(self.cluster.ranks_on(run, "n2"), [])
        self.cluster.lose("n2")
        code, output = self.drain(run, "n1")
        self.assertEqual(code, 2, output)
        self.expect_sentence("drain-no-room", output)
        code, output = self.drain(run, "n0")
        self.assertEqual(code, 2, output)
        self.expect_sentence("drain-launcher-host", output)
        code, output = self.drain(run, "n7")
        self.assertEqual(code, 2, output)
        self.expect_sentence("drain-unknown-host", output)
        self.cluster.power_on("n2")
        self.assertEqual(self.drain(run, "n2", "--cancel"), (0, "host n2 may be used again\n"))
        self.wait_for_ranks_on_n2(run, start)
        output = self.expect_finished(run, start)
        self.expect_sentence("launch-drains", output)
        self.assertEqual([(event.get("reason"), event["ranks_before"], event["ranks_after"], event["lost_steps"])
                          for event in run.events("recovery")],
                         [("drain", RANKS, RANKS - SLOTS, 0), ("growth", RANKS - SLOTS, RANKS, 0)], output)
        self.assertEqual([event["host"] for event in run.events("drain")], ["n2"])
        self.assertEqual([event.get("resumed_from") for event in run.events("start")], [None, "ram", "ram"])
        self.assertEqual(run.events("fault"), [])
        self.assertEqual(self.drain(run, "n2"), (0, f"the run in {run.directory} has ended (finished, step {harness.STEPS})\n"))

    @harness.full
    def test_a_host_gives_notice(self):
        """By a file and by a signal: the run leaves it. When it is the launcher's, the run is saved instead."""
        file = self.cluster.scratch / "preempted"  # on each host its own
        run, start = self.launch(f"--elastic.notice_file={file}", "--elastic.notice_every=100ms", NO_GROWTH,
                                 faults=SLOW_UNTIL_THE_END, until=11)
        self.assertEqual(self.cluster.call("n2", "touch", str(file)).returncode, 0)
        harness.wait_until(lambda: len(run.events("start")) == 2, SETTLE_S, lambda: not start.alive(), "n2 is not left", start.tail)
        harness.kill(self.cluster.ranks_on(run, "n1")[-1], signal.SIGPWR)
        harness.wait_until(lambda: len(run.events("start")) == 3, SETTLE_S, lambda: not start.alive(), "n1 is not left", start.tail)
        self.assertEqual(run.events("start")[-1]["hosts"], {"n0": 2})
        harness.kill(self.cluster.ranks_on(run, "n0")[-1], signal.SIGPWR)
        output = start.expect_exit(75, SETTLE_S)
        self.expect_sentence("launch-notice", output)
        self.assertEqual([event["lost_steps"] for event in run.events("recovery")], [0, 0])
        self.assertEqual(run.status()["state"], "saved")
        self.cluster.call("n2", "rm", str(file))
        again = self.cluster.start(run, self.launch_words(run, NO_GROWTH))
        self.expect_finished(run, again)

    def test_a_sick_host_is_left(self):
        """Its guard reads a counter of a link that went down: the run leaves the host between two steps, and says why it stays out."""
        counter = "host/sys/class/infiniband/mlx5_0/ports/1/counters/link_downed"
        for name in self.cluster.hosts:
            (self.cluster.disk(name) / counter).parent.mkdir(parents=True)
            (self.cluster.disk(name) / counter).write_text("3\n")
        run, start = self.launch(NO_GROWTH, "--health.preset=guard", "--health.every=100ms",
                                 f"--health.host_root={self.cluster.local}/host", faults=SLOW_UNTIL_THE_END, until=11)
        (self.cluster.disk("n2") / counter).write_text("4\n")
        harness.wait_until(lambda: len(run.events("start")) == 2, SETTLE_S, lambda: not start.alive(), "n2 is not left", start.tail)
        status = self.cluster.call("n1", str(harness.PROGRAM), "status", str(run.directory)).stdout
        self.assertRegex(status, "n2 .*drained.*an InfiniBand link went down")
        output = self.expect_finished(run, start)
        self.expect_sentence("health-finding", output)
        found = [(event["host"], event["rule"], event["value"], event["threshold"], event["action"], event["answer"])
                 for event in run.events("health") if event["action"] != "watch"]
        self.assertEqual(found, [("n2", "infiniband-down", 1, 1, "drain", "asked to leave")], output)
        self.assertEqual([(event["host"], "InfiniBand link went down" in event["reason"]) for event in run.events("drain")],
                         [("n2", True)])
        self.assertEqual([(event.get("reason"), event["ranks_after"], event["lost_steps"]) for event in run.events("recovery")],
                         [("drain", RANKS - SLOTS, 0)], output)
        self.assertEqual([event.get("resumed_from") for event in run.events("start")], [None, "ram"])
        self.assertEqual(run.events("fault"), [])

    @harness.full
    def test_a_host_is_drained_within_a_time(self):
        """Which is over before the step is: it is left at once, and the step is computed again elsewhere."""
        run, start = self.launch(NO_GROWTH, "--watchdog.floor=60s", faults=f"step.begin@14:{RANKS - 1}=sleep:40000", until=13)
        begun = time.monotonic()
        code, output = self.drain(run, "n2", "--deadline", "3s")
        self.assertEqual(code, 0, output)
        self.assertLess(time.monotonic() - begun, 40)
        self.assertIn("host n2 has to be left now, and the step would last longer", self.expect_finished(run, start))
        self.assertEqual([event["ranks"] for event in run.events("start")], [RANKS, RANKS - SLOTS])

    @harness.full
    def test_the_host_of_a_slow_rank_is_left(self):
        """When it has cost what a start costs, as a host that is drained: no step is made again."""
        steps = 100
        options = [NO_GROWTH, "--health.preset=guard", f"--training.steps={steps}"]
        faults = ",".join(f"step.begin@{step}:{RANKS - 1}=sleep:700" for step in range(15, steps + 1))
        run, start = self.launch(*options, faults=faults)
        reference = harness.reference_digest(self.scene, [*OPTIONS, options[-1]], "reference-of-more-steps")
        output = self.expect_finished(run, start, reference, steps)
        self.assertEqual([(event.get("reason"), event["ranks_before"], event["ranks_after"], event["lost_steps"])
                          for event in run.events("recovery")], [("drain", RANKS, RANKS - SLOTS, 0)], output)
        found = run.events("straggler")
        self.assertEqual({event["rank"] for event in found}, {RANKS - 1}, found)
        self.assertEqual([event["answer"] for event in found if event["answer"] != "told"][:1], ["asked to leave"])
        left = run.events("drain")
        self.assertEqual([event["host"] for event in left], ["n2"])
        self.assertIn(f"rank {RANKS - 1} (host n2) takes", left[0]["reason"])

    @harness.full
    def test_a_drained_host_without_replicas(self):
        """What is in its memory alone goes to the disk before it is left."""
        run, start = self.launch(NO_GROWTH, "--checkpoint.replicas=off", faults=SLOW_UNTIL_THE_END, until=11)
        code, output = self.drain(run, "n2")
        self.assertEqual(code, 0, output)
        self.expect_finished(run, start)
        self.assertEqual([event["lost_steps"] for event in run.events("recovery")], [0])
        self.assertEqual(run.events("start")[-1]["resumed_from"], "disk")

    @harness.full
    def test_one_rank_gets_another(self):
        """A run that is left with one rank is as it was when there is a host for the other again."""
        run, start = self.launch_on("one-rank", "-np", "2", "--host", "n0:1,n1:1")
        self.cluster.lose("n1")
        harness.wait_until(lambda: len(run.events("start")) == 2, SETTLE_S, lambda: not start.alive(), "no start", start.tail)
        self.assertEqual(run.events("start")[-1]["hosts"], {"n0": 1})
        self.cluster.power_on("n1")
        self.expect_finished(run, start)
        self.assertEqual([event["ranks"] for event in run.events("start")], [2, 1, 2])

    def launch_on(self, name, *words):
        """A slow run on the hosts that the words name, which looks for more of them every second, at its eleventh step."""
        run = self.scene.run(name, OPTIONS)
        start = self.cluster.start(run, [str(harness.PROGRAM), "launch", *words, f"--notice={NOTICE_S}", str(run.scene.config),
                                         f"--run.directory={run.directory}", *run.overrides, "--elastic.grow_after=1s"],
                                   faults=SLOW_UNTIL_THE_END)
        self.assertTrue(start.wait_for_step(11, SETTLE_S), start.tail())
        return run, start

    def wait_for_ranks_on_n2(self, run, start):
        harness.wait_until(lambda: len(self.cluster.ranks_on(run, "n2")) == 2, SETTLE_S, lambda: not start.alive(), "n2 is not used",
                           start.tail)

    def test_the_hostfile_changes(self):
        """A host is lost for good, and another one, with another name, stands in the hostfile in its place. Then it is empty."""
        hostfile = self.scene.directory / "hostfile"
        hostfile.write_text("n0 slots=2\nn1 slots=2\n")
        run, start = self.launch_on("hostfile-changes", "-np", "4", "--hostfile", str(hostfile))
        self.cluster.lose("n1")
        hostfile.write_text("n0 slots=2\nn2 slots=2\n")
        self.wait_for_ranks_on_n2(run, start)
        self.assertTrue(start.alive(), start.tail())
        step = run.events("step")[-1]["step"]
        self.assertTrue(start.wait_for_step(step + 2, SETTLE_S), start.tail())
        hostfile.write_text("")
        output = self.expect_finished(run, start)
        self.expect_sentence("launch-host-new", output)
        self.expect_sentence("launch-host-gone", output)
        self.expect_sentence("launch-hostfile-lost", output)
        self.assertEqual(run.events("start")[-1]["hosts"], {"n0": 2, "n2": 2})

    @harness.full
    def test_a_campaign_whose_hostfile_loses_the_other_hosts(self):
        """The first run goes on; the next one has nobody to whom anything can happen."""
        hostfile = self.scene.directory / "hostfile"
        hostfile.write_text("n0 slots=2\nn1 slots=2\n")
        campaign = self.scene.run("campaign")
        words = [str(harness.PROGRAM), "chaos", str(self.scene.config), f"--directory={campaign.directory}", "--hostfile", str(hostfile),
                 "--layouts=4x1x1", "--faults=host_killed", "--faults-max=1", "--seeds=1..2", "--kill-host",
                 f"echo n0 slots=2 > {hostfile} #", *OPTIONS]
        output = self.cluster.start(campaign, words).expect_exit(2, SETTLE_S)
        self.assertIn("1 fault", output)
        self.expect_sentence("chaos-hostfile-lost", output)

    @harness.full
    def test_a_command_names_the_hosts(self):
        """As a hostfile does, which it prints here: a host with another name takes the place of one that is lost."""
        hosts = self.scene.directory / "hosts"
        hosts.write_text("n0 slots=2\nn1 slots=2\n")
        run, start = self.launch_on("host-command", "-np", "4", "--host-command", f"echo no-host >&2; cat {hosts}")
        self.cluster.lose("n1")
        hosts.write_text("n0 slots=2\nn2 slots=2\n")
        self.wait_for_ranks_on_n2(run, start)
        hosts.unlink()
        output = self.expect_finished(run, start)
        self.assertIn("host n2 is new in the command of --host-command: the next start can use it", output)
        self.assertEqual(run.events("start")[0]["hosts"], {"n0": 2, "n1": 2})
        self.assertEqual(run.events("start")[-1]["hosts"], {"n0": 2, "n2": 2})

    @harness.full
    def test_a_range_of_ranks(self):
        """A run begins on the slots that there are, and gets those of a host that comes later."""
        hostfile = self.scene.directory / "hostfile"
        hostfile.write_text("n0 slots=2\nn1 slots=2\n")
        run, start = self.launch_on("range", "-np", "4:9", "--hostfile", str(hostfile))
        hostfile.write_text("n0 slots=2\nn1 slots=2\nn2 slots=2\n")
        self.wait_for_ranks_on_n2(run, start)
        self.expect_finished(run, start)
        self.assertEqual([event["ranks"] for event in run.events("start")], [4, 6])
        self.assertEqual([event["lost_steps"] for event in run.events("recovery")], [0])

    @harness.full
    def test_a_host_that_loses_its_ranks_each_time(self):
        """Whose ranks die soon after each start that gave it some: it is left out, and the run goes on without it."""
        slow = ",".join(f"step.begin@{step}=sleep:300" for step in range(1, 20))  # of each start
        run, start = self.launch("--elastic.grow_after=0s", faults=slow, until=2)
        killed = 0
        while start.alive() and "is left out" not in start.output():
            begun = len(run.events("start"))
            if begun > killed and len(self.cluster.ranks_on(run, "n2")) == SLOTS and run.events()[-1]["event"] == "step":
                self.cluster.kill_ranks(run, "n2")
                killed = begun
            time.sleep(0.1)
        output = self.expect_finished(run, start)
        self.expect_sentence("launch-host-loses-ranks", output)
        self.assertEqual(killed, 2)
        self.assertEqual([event["ranks"] for event in run.events("start")], 2 * [RANKS])

    @harness.full
    def test_a_host_without_the_program(self):
        """It answers, and cannot be used; what is left there goes when the program is back, at the end at the latest."""
        run, start = self.launch()
        done = self.cluster.call("n2", "mount", "--bind", "/dev/null", str(harness.PROGRAM))
        self.assertEqual(done.returncode, 0, done.stderr)
        harness.kill(mpirun_of(self.cluster, run), signal.SIGKILL)
        harness.wait_until(lambda: "cannot be used" in start.output(), SETTLE_S, lambda: not start.alive(), "no word", start.tail)
        done = self.cluster.call("n2", "umount", str(harness.PROGRAM))
        self.assertEqual(done.returncode, 0, done.stderr)
        output = self.expect_finished(run, start)
        self.expect_sentence("launch-host-unusable", output)
        self.assertEqual(run.events("start")[-1]["ranks"], RANKS - SLOTS)

    def test_a_host_without_its_data(self):
        """It answers, and its ranks cannot read what the others read: the run goes on without it, is not asked to end for ranks
        that would leave again, and takes it back when it has its data."""
        run, start = self.launch("--elastic.grow_after=1s", faults=SLOW_UNTIL_THE_END)
        done = self.cluster.call("n2", "mount", "--bind", "/dev/null", str(self.scene.text))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.cluster.kill_ranks(run, "n2")
        self.assertTrue(harness.wait_until(lambda: run.events("exclude"), SETTLE_S, lambda: not start.alive(), "no word", start.tail))
        told = json.loads(self.cluster.call("n1", str(harness.PROGRAM), "status", str(run.directory), "--json").stdout)
        self.assertEqual({host: row["state"] for host, row in told["left_out"].items()}, {"n2": "unfit"}, told)
        self.assertEqual(len(run.events("start")), 1, "it is asked before the run is asked to end for it")
        done = self.cluster.call("n2", "umount", str(self.scene.text))
        self.assertEqual(done.returncode, 0, done.stderr)
        output = self.expect_finished(run, start)
        self.expect_sentence("launch-host-not-ready", output)
        self.expect_sentence("launch-host-ready-again", output)
        self.assertEqual({event["host"] for event in run.events("exclude")}, {"n2"}, output)
        self.assertEqual([event["ranks"] for event in run.events("start")], [RANKS, RANKS], output)
        self.assertEqual(run.events("recovery")[-1]["lost_steps"], 0, output)

    def test_a_host_that_loses_its_data_at_the_start(self):
        """When it has proved that it is ready: its ranks say what they lack and leave, and the others begin without them."""
        run = self.scene.run("lost-at-the-start", OPTIONS)
        start = self.cluster.start(run, self.launch_words(run, "--elastic.grow=off"), faults="start.before_join=stop")
        ranks = []

        def are_stopped():
            ranks[:] = [pid for name in self.cluster.hosts for pid in self.cluster.ranks_on(run, name)]
            return len(ranks) == RANKS and all(harness.state_of(pid) == "T" for pid in ranks)

        self.assertTrue(harness.wait_until(are_stopped, SETTLE_S, lambda: not start.alive(), "no ranks", start.tail), start.tail())
        done = self.cluster.call("n2", "mount", "--bind", "/dev/null", str(self.scene.text))
        self.assertEqual(done.returncode, 0, done.stderr)
        for pid in ranks:
            harness.kill(pid, signal.SIGCONT)
        output = self.expect_finished(run, start)
        self.expect_sentence("launch-host-unfit", output)
        self.assertNotIn("another start would end the same way", output)
        self.assertEqual({event["host"] for event in run.events("exclude")}, {"n2"}, output)
        self.assertEqual(run.events("start")[-1]["ranks"], RANKS - SLOTS, output)

    @harness.full
    def test_a_host_that_the_others_cannot_do_without(self):
        """Its rank cannot read any more, which no question shows, and leaves; the one that is left is half a copy of the model, and
        ends with 76. The next start has the host that was free in place of it, not the same two again."""
        run = self.scene.run("half-a-copy", [*OPTIONS, "--checkpoint.every_steps=4", "--parallel.pipeline=2"])
        words = [str(harness.PROGRAM), "launch", "-np", "2", f"--notice={NOTICE_S}", "--host", self.cluster.host_list(1),
                 str(run.scene.config), f"--run.directory={run.directory}", *run.overrides]
        start = self.cluster.start(run, words, faults="data.read@1500:1=error:EIO:always")  # of 2,400 and more
        output = self.expect_finished(run, start)
        self.assertRegex(output, "host n1 is left out for 20s: cannot read .*: Input/output error")
        self.assertEqual({event["host"] for event in run.events("exclude")}, {"n1"}, output)
        self.assertEqual([event["ranks"] for event in run.events("start")], [2, 2], output)

    @harness.full
    def test_data_are_gone_and_a_gpu_for_good(self):
        """Of three hosts with GPUs (emulated) one loses its data for a while and another one its driver for good, before the
        start with the first one has made a step: the run goes on without the first one, takes it back, and ends without the
        second one, whose ranks leave and never end it."""
        module = harness.PROGRAM.parent / "libholdfast_cuda_emulated.so"
        gpu = [*OPTIONS, *EMULATED_GPU]
        reference = harness.reference_digest(self.scene, gpu, name="gpu-reference", HOLDFAST_CUDA_MODULE=str(module))
        run = self.scene.run("gpu-story", gpu)
        start = self.cluster.start(run, self.launch_words(run, "--elastic.grow_after=1s"), faults=SLOW_UNTIL_THE_END,
                                   HOLDFAST_CUDA_MODULE=str(module))
        self.assertTrue(start.wait_for_step(5, SETTLE_S), start.tail())
        self.lose_for_its_ranks(run, start, "n2", self.scene.text, excluded=1)
        self.cluster.fit("n2")
        self.assertTrue(harness.wait_until(lambda: run.events("start")[-1]["ranks"] == RANKS and len(run.events("start")) > 1,
                                           SETTLE_S, lambda: not start.alive(), "it is not used again", start.tail), start.tail())
        self.lose_for_its_ranks(run, start, "n1", module, excluded=2)
        output = start.expect_exit(0, SETTLE_S)
        self.assertEqual(run.digest(), reference, output)
        self.expect_clean(start)
        self.assertEqual([event["host"] for event in run.events("exclude")][:2], ["n2", "n1"], output)
        self.assertEqual([event["ranks"] for event in run.events("start")], [RANKS, RANKS],
                         f"no start is lost to a GPU that is gone\n{output}")
        self.assertEqual(run.events("recovery")[-1]["ranks_after"], RANKS - SLOTS, output)
        self.assertEqual(run.events("recovery")[-1]["resumed_from"], "ram", output)

    def lose_for_its_ranks(self, run, start, name, hidden, excluded):
        """A host has not that any more, and its ranks die; until the run has been told so many times that one is left out."""
        self.cluster.hide(name, hidden)
        self.cluster.kill_ranks(run, name)
        self.assertTrue(harness.wait_until(lambda: len(run.events("exclude")) >= excluded, SETTLE_S, lambda: not start.alive(),
                                           "no word", start.tail), start.tail())

    @harness.full
    def test_the_only_copy_loses_a_host(self):
        """Which held a stage of it: the run goes on with both stages on the other host, and is as it was when the host returns."""
        cut = ["--parallel.tensor_lanes=2"]
        reference = harness.reference_digest(self.scene, [*OPTIONS, *cut], name="one-copy-reference")
        run = self.scene.run("one-copy", [*OPTIONS, *cut])
        words = [str(harness.PROGRAM), "launch", "-np", "4", "--host", "n0:2,n1:2", f"--notice={NOTICE_S}", str(run.scene.config),
                 f"--run.directory={run.directory}", *run.overrides, "--parallel.tensor=2", "--parallel.pipeline=2",
                 "--elastic.grow_after=1s"]
        start = self.cluster.start(run, words, faults=SLOW_UNTIL_THE_END)
        self.assertTrue(start.wait_for_step(14, SETTLE_S), start.tail())
        self.cluster.lose("n1")
        harness.wait_until(lambda: len(run.events("start")) == 2, SETTLE_S, lambda: not start.alive(), "no start", start.tail)
        self.cluster.power_on("n1")
        output = start.expect_exit(0, SETTLE_S)
        self.expect_sentence("launch-narrower", output)
        self.assertEqual(run.digest(), reference, output)
        self.assertEqual([event["hosts"] for event in run.events("start")], [{"n0": 2, "n1": 2}, {"n0": 2}, {"n0": 2, "n1": 2}])
        self.expect_clean(start)

    @harness.full
    def test_too_few_hosts(self):
        """The run may not shrink, and the host that is lost does not come back. What the others have in memory stays for the
        next launch."""
        run, start = self.launch(f"--parallel.data={RANKS}", f"--elastic.min_data_parallel={RANKS}", options=["--wait-for-hosts=5"])
        self.cluster.lose("n2")
        output = start.expect_exit(76, SETTLE_S)
        self.expect_sentence("launch-waits-for-hosts", output)
        self.expect_sentence("launch-no-more-hosts", output)
        harness.expect_no_processes(run)

    # Cables

    @harness.full
    def test_two_hosts_lose_each_other_on_the_training_network(self):
        """They answer the launcher and their guards hear each other, and their ranks do not reach each other: one of them is left
        out, and the run goes on with the rest."""
        self.cluster.close()
        self.cluster = hosts.Cluster(HOSTS, training_network=True)
        self.addCleanup(self.cluster.close)
        run, start = self.launch("--elastic.grow=off", faults=SLOW_UNTIL_THE_END, OMPI_MCA_btl_tcp_if_exclude="lo,e0")
        self.cluster.cut_pair("n1", "n2", card="e1")
        output = self.expect_finished(run, start)
        self.assertEqual([(event["ranks_before"], event["ranks_after"]) for event in run.events("recovery")],
                         [(RANKS, RANKS - SLOTS)], output)
        self.assertIn("the others may go on", output)

    def test_a_start_with_two_hosts_that_do_not_reach_each_other(self):
        """They answer the launcher, and their ranks would not reach each other: one of them is left out before a start is lost."""
        self.cluster.close()
        self.cluster = hosts.Cluster(HOSTS, training_network=True)
        self.addCleanup(self.cluster.close)
        self.cluster.cut_pair("n1", "n2", card="e1")
        run, start = self.launch(NO_GROWTH, faults="", until=3, OMPI_MCA_btl_tcp_if_exclude="lo,e0")
        status = json.loads(self.cluster.call("n0", str(harness.PROGRAM), "status", "--json", str(run.directory)).stdout)
        self.assertEqual({name: row["state"] for name, row in status["left_out"].items()}, {"n2": "suspected"}, status)
        output = self.expect_finished(run, start)
        self.assertEqual([event["hosts"] for event in run.events("start")], [{"n0": SLOTS, "n1": SLOTS}], output)
        self.assertEqual(run.events("fault") + run.events("recovery"), [], output)
        [excluded] = run.events("exclude")
        self.assertEqual(excluded["host"], "n2")
        self.assertRegex(excluded["reason"], "n1 .*10.78.0.3")
        self.expect_sentence("launch-host-not-linked", output)

    @harness.full
    def test_a_newcomer_that_does_not_reach_the_run(self):
        """A healthy run is not asked to pause for it, until its link is mended."""
        self.cluster.close()
        self.cluster = hosts.Cluster(HOSTS, training_network=True)
        self.addCleanup(self.cluster.close)
        self.cluster.cut_pair("n1", "n2", card="e1")
        run, start = self.launch("--elastic.grow_after=1s", faults=SLOW_UNTIL_THE_END, until=16, OMPI_MCA_btl_tcp_if_exclude="lo,e0")
        self.assertEqual(len(run.events("start")), 1, start.tail())
        self.cluster.mend_pair("n1", "n2", card="e1")
        harness.wait_until(lambda: len(run.events("start")) > 1, SETTLE_S, lambda: not start.alive(), "n2 is not taken back", start.tail)
        output = self.expect_finished(run, start)
        everywhere = {name: SLOTS for name in ("n0", "n1", "n2")}
        self.assertEqual([event["hosts"] for event in run.events("start")], [{"n0": SLOTS, "n1": SLOTS}, everywhere], output)
        self.assertEqual(run.events("fault"), [], output)

    @harness.full
    def test_hosts_with_room_for_fewer_ranks(self):
        """Each has one GPU for its two ranks, and they are not to share it: a start with all would lose half of them."""
        run, start = self.launch("--device=cuda", "--parallel.ranks_per_gpu=1", "--training.steps=6", faults="", until=2,
                                 **errors_test.EMULATED)
        output = start.expect_exit(0, SETTLE_S)
        self.assertEqual([event["hosts"] for event in run.events("start")], [{"n0": 1, "n1": 1, "n2": 1}], output)
        self.assertEqual(run.events("fault"), [], output)
        self.expect_sentence("launch-host-room", output)

    @harness.full
    def test_two_hosts_lose_each_other(self):
        """For good, and the third one, the launcher's, hears both: the ranks of one end, and the others go on in place."""
        run, start = self.launch(NO_GROWTH, faults=SLOW_UNTIL_THE_END)
        before = self.cluster.ranks_on(run, "n1")
        self.cluster.cut_pair("n1", "n2")
        harness.wait_until(lambda: run.events("recovery"), SETTLE_S, lambda: not start.alive(), "nobody recovered", start.tail)
        self.assertEqual(self.cluster.ranks_on(run, "n1"), before, start.tail())
        output = self.expect_finished(run, start)
        self.assertIn("without host n2 the others may go on", output)
        [recovery] = run.events("recovery")
        self.assertEqual((recovery["level"], recovery["ranks_before"], recovery["ranks_after"], recovery["resumed_from"]),
                         (1, RANKS, RANKS - SLOTS, "ram"), output)
        self.assertLessEqual(recovery["lost_steps"], INTERVAL + 1, output)
        self.assertEqual(len(run.events("start")), 1, output)

    @harness.full
    def test_a_host_and_that_of_the_launcher_lose_each_other(self):
        """For good. All end at once, and the next start has the two that reach each other."""
        run, start = self.launch(NO_GROWTH, faults=SLOW_UNTIL_THE_END)
        self.cluster.cut_pair("n0", "n2")
        output = self.expect_finished_but(run, start, "n2")
        self.expect_level_2(run, start, ranks_after=RANKS - SLOTS)
        self.assertEqual(run.events("start")[-1]["hosts"], {"n0": SLOTS, "n1": SLOTS}, output)

    @harness.full
    def test_a_cable_is_cut(self):
        """The side with fewer ranks ends and writes nothing; the other one ends, too, and is started again without it."""
        run, start = self.launch()
        begun = time.monotonic()
        self.cluster.cut("n2")
        harness.wait_until(lambda: not self.cluster.ranks_on(run, "n2"), 20 + SILENCE_S, lambda: False,
                           "the ranks that are cut off go on", start.tail)
        noticed_s = time.monotonic() - begun
        output = self.expect_finished_but(run, start, "n2")
        # What they say behind the cut reaches nobody.
        self.expect_sentence("hosts-out-of-reach", output)
        self.assertIn("ranks 4 (host n2), 5 (host n2) are unreachable", output)
        self.expect_level_2(run, start, ranks_after=RANKS - SLOTS)
        self.assertEqual(run.events("start")[-1]["ranks"], RANKS - SLOTS)
        print(f"\na cut cable to the end of the ranks behind it: {noticed_s:.1f} s")

    def test_the_writer_is_cut_off(self):
        """The host of the launcher and of rank 0, which is the smaller side: it lets go of the run directory without a word in
        it, and the launcher, the only one there is, goes on with what it reaches."""
        run, start = self.launch()
        self.cluster.cut("n0")
        harness.wait_until(lambda: "starting again" in start.output(), SETTLE_S, lambda: not start.alive(), "no restart",
                           start.tail)
        # Which of the two depends on whether both of the other hosts have been silent for long enough when one has.
        self.expect_sentence("hosts-cut-off", start.output(), "hosts-out-of-reach")
        self.assertEqual([event for event in run.events("finish")], [])
        self.assertTrue(start.wait_for_step(20, SETTLE_S), start.tail())
        self.assertEqual(self.cluster.ranks_on(run, "n1") + self.cluster.ranks_on(run, "n2"), [],
                         "nobody goes on beside the run")
        self.cluster.mend("n0")
        self.expect_finished(run, start)

    @harness.full
    def test_a_cable_that_comes_back_soon(self):
        """Before anybody has given up: nothing has happened."""
        run, start = self.launch()
        self.cluster.cut("n1")
        time.sleep(SILENCE_S / 3)
        self.cluster.mend("n1")
        self.expect_finished(run, start)
        self.assertEqual(run.events("fault") + run.events("recovery"), [])

    # Without the launcher

    @harness.full
    def test_deaths_without_the_launcher(self):
        """Those that are left go on, and say that nobody starts others."""
        run = self.scene.run("no-launcher", [*OPTIONS, "--elastic.grow_after=0s"])
        words = [str(harness.ROOT / "tools/mpirun"), "--tune", str(harness.ROOT / "configs/mpi/several_hosts.conf"), "-np",
                 str(RANKS), "--host", self.cluster.host_list(SLOTS), *run.train_arguments()]
        start = self.cluster.start(run, words, faults=SLOW_STEPS)
        self.assertTrue(start.wait_for_step(14, SETTLE_S), start.tail())
        code, output = self.drain(run, "n2")
        self.assertEqual(code, 76, output)
        self.expect_sentence("drain-not-launched", output)
        self.cluster.kill_ranks(run, "n2")
        start.expect_exit(0, SETTLE_S)
        self.expect_sentence("hosts-without-launcher", start.output())
        self.assertEqual(run.digest(), self.reference)
        self.assertEqual([(event["level"], event["ranks_after"]) for event in run.events("recovery")], [(1, RANKS - SLOTS)])

    @harness.full
    def test_a_cut_without_the_launcher(self):
        """Under mpirun alone both sides end with 76, and the next start goes on."""
        run = self.scene.run(self.id().rsplit(".", 1)[1], OPTIONS)
        words = [str(harness.ROOT / "tools/mpirun"), "--tune", str(harness.ROOT / "configs/mpi/several_hosts.conf"), "-np",
                 str(RANKS), "--host", self.cluster.host_list(SLOTS), *run.train_arguments()]
        start = self.cluster.start(run, words, faults=SLOW_STEPS)
        self.assertTrue(start.wait_for_step(14, SETTLE_S), start.tail())
        self.cluster.cut("n2")
        harness.wait_until(lambda: not any(self.cluster.ranks_on(run, name) for name in self.cluster.hosts), 30,
                           lambda: False, "ranks go on", start.tail)
        status = run.status()
        self.assertEqual((status["state"], status["exit_code"]), ("failed", 76), start.output())
        self.assertIn("unreachable", status["reason"])
        start.kill_all()  # mpirun waits for the host for ever, which is why there is holdfast launch
        self.cluster.mend("n2")
        words[words.index("--host") + 1] = self.cluster.host_list(SLOTS, ["n0", "n1"])
        words[words.index("-np") + 1] = str(RANKS - SLOTS)
        again = self.cluster.start(run, words)
        again.expect_exit(0, SETTLE_S)
        self.assertEqual(run.digest(), self.reference)
        resumed = run.events("start")[-1]
        self.assertGreaterEqual(resumed["resumed_from_step"], confirmed_before(run.events(), resumed))

    def expect_finished_but(self, run, start, cut_off):
        """As expect_finished(), with a host unreachable, which has cleaned up after itself."""
        output = start.expect_exit(0, SETTLE_S)
        self.assertEqual(run.digest(), self.reference, output)
        host = self.cluster.hosts[cut_off]
        harness.wait_until(lambda: not host.processes(), 15, lambda: False,
                           f"{cut_off} still has {[harness.describe(pid) for pid in host.processes()]}", start.tail)
        self.assertEqual(run.status()["state"], "finished", output)
        return output


class BadHostTest(unittest.TestCase):
    @harness.full
    def test_a_crash_loop_of_one_host_among_eight(self):
        """Its rank dies up to three seconds after each start that gave it one: it is left out after the second time, though the run
        lasts longer than it would take to try it again."""
        with harness.Scene(lanes=8) as scene, hosts.Cluster(8) as cluster:
            del scene.environment["OMPI_MCA_btl_sm_backing_directory"]
            reference = harness.reference_digest(scene, OPTIONS)
            rows = [self.crash_loop(scene, cluster, seed, reference) for seed in range(CRASH_LOOPS)]
        lost = [len(row["deaths"]) for row in rows]
        print(f"\n{len(rows)} runs with one bad host of eight: its rank was started {sum(lost) / len(rows):.2f} times in a run, at most {max(lost)}")
        self.assertLessEqual(max(lost), 2, rows)

    def crash_loop(self, scene, cluster, seed, reference):
        draw = random.Random(seed)
        run = scene.run(f"crash-loop-{seed}", [*OPTIONS, "--elastic.grow_after=1s"])
        words = [str(harness.PROGRAM), "launch", "-np", "8", f"--notice={NOTICE_S}", "--host", cluster.host_list(1), str(scene.config),
                 f"--run.directory={run.directory}", *run.overrides]
        start = cluster.start(run, words, faults=",".join(f"step.begin@{step}=sleep:250" for step in range(1, harness.STEPS + 1)))
        begun, deaths = time.monotonic(), []
        while start.alive() and time.monotonic() < begun + 2 * SETTLE_S:
            if cluster.ranks_on(run, "n5") and len(run.events("start")) > len(deaths):
                delay = round(draw.uniform(0, 3), 2)
                time.sleep(delay)
                if cluster.ranks_on(run, "n5"):
                    cluster.kill_ranks(run, "n5")
                    died = time.monotonic()
                    deaths.append(delay)
                harness.wait_until(lambda: not cluster.ranks_on(run, "n5"), SETTLE_S, lambda: not start.alive(), "it lives", start.tail)
            time.sleep(0.05)
        output = start.expect_exit(0, SETTLE_S)
        row = {"seed": seed, "deaths": deaths, "ranks": [event["ranks"] for event in run.events("start")],
               "after_s": round(time.monotonic() - died, 1), "s": round(time.monotonic() - begun, 1)}
        print(row, flush=True)
        self.assertEqual(run.digest(), reference, output)
        self.assertIn("host n5 is left out for 1h: ", output)
        harness.expect_no_processes(run)
        return row


def confirmed_before(events, start):
    """The newest RAM snapshot of which the log says that it and its replicas were whole before this start. There is one."""
    before = events[:events.index(start)]
    return [event["step"] for event in before if event["event"] == "snapshot"][-1]


def mpirun_of(cluster, run):
    found = [pid for pid in cluster.processes(run)["n0"] if harness.executable_of(pid) in harness.MPIRUN]
    return found[0] if found else None


if __name__ == "__main__":
    harness.main(at_once=2)
