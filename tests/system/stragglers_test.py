"""Slow ranks: one that sleeps, waits for its data or is slowed from outside is named, and nobody is where all are alike.

HOLDFAST_TEST_STRAGGLER_RUNS: so many runs of straggler_campaign.py (6 when left out); 72 are one of each case that has a promise."""
import collections
import contextlib
import html
import json
import os
import re
import signal
import statistics
import subprocess
import time
import unittest

import harness
import hosts
import straggler_campaign

RUNS = int(os.environ.get("HOLDFAST_TEST_STRAGGLER_RUNS", "6"))
# A step of some 10 ms on a machine of two processors.
OPTIONS = ["--threads=1", "--model.layers=2", "--model.width=64", "--training.sequence_length=64", "--checkpoint.every_steps=0",
           "--checkpoint.ram_every_steps=0"]
LANES = 2
LAST = 1200  # step of a run that is stopped long before
LEARNED_S = 10  # after which the waits of a pair are known


def stragglers(run):
    return [event for event in run.events("straggler")]


class StragglersTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scene = harness.Scene(400, LANES)
        cls.addClassCleanup(cls.scene.close)

    def run_with(self, name, *options, faults="", ranks=2):
        run = self.scene.run(name, [*OPTIONS, *options])
        return run, run.start(ranks, faults=faults)

    def expect_named(self, run, rank, of="rank"):
        found = stragglers(run)
        self.assertTrue(found, "nobody was named")
        self.assertEqual({event["rank"] for event in found}, {rank}, found)
        self.assertEqual(found[0]["of"], of)
        shown = json.loads(harness.program_output("stragglers", run.directory, "--json"))
        self.assertEqual(shown["stragglers"][-1]["rank"], rank)
        self.assertGreater(shown["stragglers"][-1]["lost_seconds"], 0)
        self.assertEqual([each["rank"] for each in shown["ranks"]], list(range(len(shown["ranks"]))))
        self.assertGreater(shown["ranks"][rank]["factor"], 1.1)
        self.assertIn(found[-1]["reason"], harness.program_output("stragglers", run.directory))
        report = (run.directory / "report.html").read_text()
        self.assertIn(f'<p class="fault">{html.escape(found[-1]["reason"])}</p>', report)
        heat = {name: re.findall(rf'heat-(\d)"[^>]*><title>rank {name} ', report) for name in range(2)}
        self.assertIn(max(heat[rank]), "234", "the slow rank is shown as hot")
        # Before it was slow, anything that else runs on the machine may have made the other one hot for a moment.
        self.assertEqual(statistics.median_low(map(int, heat[1 - rank])), 0, "and the other one is not")
        return found

    def stop_when_named(self, run, start):
        """On a busy machine it takes more steps, because both have noise."""
        self.until_named(run, start)
        start.signal(signal.SIGUSR2)
        start.expect_exit(75)

    def until_named(self, run, start):
        harness.wait_until(lambda: stragglers(run), harness.HANG_S, lambda: not start.alive(), "nobody was named", start.tail)

    def test_rank_that_sleeps(self):
        """A fault point that sleeps in each step, from step 40 on."""
        faults = ",".join(f"step.begin@{step}:1=sleep:40" for step in range(40, LAST))
        run, start = self.run_with("sleeps", f"--training.steps={LAST}", faults=faults)
        self.stop_when_named(run, start)
        found = self.expect_named(run, 1)
        self.assertEqual(found[0]["phase"], "host")
        self.assertLess(abs(found[0]["since_step"] - 40), 30)
        self.assertIn(found[0]["reason"], start.output())

    def test_slow_input(self):
        faults = ",".join(f"data.before_batch@{hit}:0=sleep:40" for hit in range(40, LAST))
        run, start = self.run_with("input", f"--training.steps={LAST}", faults=faults)
        self.stop_when_named(run, start)
        self.expect_named(run, 0, of="input")

    def slow_down(self, slower_kind, rank, *layout):
        """A rank that takes an eighth of its processor's time from step 20 on, or soon after, until it is named; no bit depends on
        it."""
        options = ["--training.steps=250", "--training.microbatch_size=6", "--parallel.tensor_lanes=2", *layout]
        run, start = self.run_with(f"slowed-{slower_kind.__name__}", *options)
        self.assertTrue(start.wait_for_step(20), start.tail())
        with contextlib.closing(slower_kind(start.rank_pid(rank), 8.0)) as slower:
            slower.on()
            self.until_named(run, start)
        start.expect_exit(0)
        self.expect_named(run, rank)
        self.assertEqual(run.digest(), harness.reference_digest(self.scene, [*OPTIONS, *options[:3]], f"not-{run.directory.name}"))

    def test_rank_that_is_stopped_again_and_again(self):
        self.slow_down(straggler_campaign.Stops, 1)

    def test_rank_with_a_quota(self):
        if reason := straggler_campaign.why_no_quota():
            self.skipTest(reason)
        self.slow_down(straggler_campaign.Quota, 0, "--parallel.tensor=2")

    @harness.full
    def test_campaign(self):
        """Nobody but the slow rank is named once it is slow, and it is in most cases, whatever else the machine does; the record says
        after how many steps (docs/measurements_archive.md)."""
        if reason := straggler_campaign.why_no_quota():
            self.skipTest(reason)
        lines = straggler_campaign.campaign(RUNS)
        counts = collections.Counter(map(straggler_campaign.verdict_of, lines))
        self.assertLessEqual(100 * counts["wrong"], len(lines), counts)
        self.assertGreater(counts["right"] + counts["late"], counts["missed"], counts)

    def test_nobody_where_all_are_alike(self):
        """Beside a busy loop, which takes a processor from one rank or the other."""
        busy = subprocess.Popen(["python3", "-c", "while True: pass"])
        try:
            run, start = self.run_with("healthy", "--training.steps=400")
            start.expect_exit(0)
        finally:
            busy.kill()
            busy.wait()
        self.assertEqual(stragglers(run), [])
        shown = json.loads(harness.program_output("stragglers", run.directory, "--json"))
        self.assertEqual(shown["stragglers"], [])
        self.assertEqual(len(shown["ranks"]), 2)

    def test_off_and_alone(self):
        for name, ranks, options in (("off", 2, ["--health.preset=off"]), ("alone", 1, [])):
            run, start = self.run_with(name, "--training.steps=5", *options, ranks=ranks)
            start.expect_exit(0)
            self.assertFalse((run.directory / "rank_times.jsonl").exists())
            self.assertEqual(harness.call_program("stragglers", run.directory).returncode, 2)


class SlowLinkTest(unittest.TestCase):
    """Three hosts of hosts.py with a rank each, of which one gets and sends everything late for a while."""

    @harness.full
    def test_the_pair_that_waits_is_named(self):
        if reason := hosts.why_not():
            harness.skip(reason)
        steps = 600
        options = [*OPTIONS, f"--training.steps={steps}", "--evaluation.every_steps=0"]
        # Three ranks that compute share two processors, and one of them is slow: so they sleep for most of a step.
        faults = ",".join(f"step.begin@{step}=sleep:25" for step in range(1, steps + 1))
        with harness.Scene(lanes=3) as scene, hosts.Cluster(3) as cluster:
            del scene.environment["OMPI_MCA_btl_sm_backing_directory"]
            run = scene.run("slow-link", options)
            start = cluster.start(run, [str(harness.PROGRAM), "launch", "-np", "3", "--host", cluster.host_list(1), str(scene.config),
                                        f"--run.directory={run.directory}", *run.overrides, "--elastic.grow=off"], faults=faults)
            self.assertTrue(start.wait_for_step(5), start.tail())
            time.sleep(LEARNED_S)
            cable = cluster.hosts["n2"].cable
            begin = run.last_step()
            cluster.links.slow(cable)
            harness.wait_until(lambda: run.events("straggler"), harness.HANG_S, lambda: not start.alive(), "nobody was named", start.tail)
            cluster.links.fast(cable)
            start.expect_exit(0, 2 * harness.HANG_S)
            found = run.events("straggler")
            self.assertFalse([event for event in found if event["of"] in ("rank", "input")], "no rank is slow")
            named = [event for event in found if event["of"] == "link"]
            self.assertEqual({event["peer"] for event in named}, {2}, found)
            self.assertGreaterEqual(named[0]["since_step"], begin - 30)
            self.assertGreater(named[0]["factor"], 1.15)
            self.assertIn(named[0]["reason"], start.output())
            self.assertEqual(run.digest(), harness.reference_digest(scene, options))


if __name__ == "__main__":
    harness.main(alone=("test_campaign",))
