"""holdfast preflight, hosts, taint and untaint: this host, healthy and sabotaged, and hosts in namespaces.

HOLDFAST_TEST_PREFLIGHTS: how often three healthy hosts are tried; once when left out.
"""

import collections
import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

import harness
import hosts

ROOT = pathlib.Path(__file__).resolve().parents[2]
HOLDFAST = str(harness.PROGRAM)
PREFLIGHTS = int(os.environ.get("HOLDFAST_TEST_PREFLIGHTS") or 1)
SHARED = {"slow-fleet", "slow-usual", "link-fleet", "link-usual"}  # rules that hosts which share processors may break
# A clock that is five seconds ahead, for what is linked with it.
WRONG_CLOCK = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <time.h>
int clock_gettime(clockid_t clock, struct timespec* time) {
  static int (*real)(clockid_t, struct timespec*);
  if (!real) real = (int (*)(clockid_t, struct timespec*))dlsym(RTLD_NEXT, "clock_gettime");
  const int result = real(clock, time);
  if (clock == CLOCK_REALTIME) time->tv_sec += 5;
  return result;
}
"""
CONFIG = """[run]
directory = "run"
[model]
layers = 1
heads = 2
width = 32
[data]
sources = [{ path = "data that are not here.txt" }]
[training]
steps = 4
sequence_length = 32
microbatch_size = 2
[parallel]
lanes = 2
"""


class PreflightTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        (self.folder / "run.toml").write_text(CONFIG)
        self.environment = {**os.environ, "XDG_STATE_HOME": str(self.folder / "state"), "TMPDIR": str(self.folder)}
        self.book = self.folder / "state/holdfast/hosts.json"

    def call(self, *words, **variables):
        return subprocess.run([HOLDFAST, *map(str, words)], capture_output=True, text=True, timeout=300, check=False,
                              cwd=self.folder, env={**self.environment, **variables})

    def preflight(self, *words, code, seconds=0.5, **variables):
        """What it found of each host."""
        done = self.call("preflight", *words, "--seconds", seconds, "--json", **variables)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        found = json.loads(done.stdout)
        self.assertEqual(found["fit"], code == 0)
        return found["hosts"]

    def rules(self, host):
        return [reason["rule"] for reason in host["reasons"]]

    def sentences(self, host):
        return "; ".join(reason["sentence"] for reason in host["reasons"])

    def test_a_healthy_host_is_fit_and_known(self):
        [first] = self.preflight("run.toml", code=0)
        [device] = first["trials"]["devices"]
        self.assertGreaterEqual(device["rounds"], 2)
        self.assertEqual((device["other_rounds"], device["wrong_bytes"], device["trouble"]), (0, 0, ""))
        self.assertGreater(device["tokens_per_s"], 0)
        self.assertGreater(device["memory_bytes"], 0)
        self.assertGreater(first["trials"]["disk"]["write_MB_per_s"], 0)
        self.assertEqual(first["trials"]["disk"]["directory"], str(self.folder), "the run has no directory yet")
        self.assertEqual(sorted(each.name for each in self.folder.iterdir()), ["run.toml", "state"], "nothing stays behind")
        # The next one has the same bits. The machine of the tests may be at something else, so the rate is no matter here.
        again = self.call("preflight", "run.toml", "--seconds", 0.5, "--json")
        [second] = json.loads(again.stdout)["hosts"]
        self.assertEqual(second["trials"]["devices"][0]["digest"], device["digest"])
        self.assertNotIn("bits", self.rules(second))
        known = self.call("hosts")
        self.assertEqual(known.returncode, 0, known.stderr)
        self.assertIn(first["host"], known.stdout)
        self.assertIn("tokens/s", known.stdout)
        told = json.loads(self.call("hosts", "--json").stdout)["hosts"]
        self.assertEqual([each["host"] for each in told], [first["host"]])

    def test_without_a_file_the_shapes_are_those_of_llama_15m(self):
        done = self.call("preflight", "--seconds", 1)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertRegex(done.stdout, r"tokens/s.*\n\S+ +fit +\d+ ")

    def test_a_gpu_is_tried(self):
        emulated = {"HOLDFAST_CUDA_MODULE": str(harness.PROGRAM.parent / "libholdfast_cuda_emulated.so")}
        [host] = self.preflight("run.toml", "--device=cuda", code=0, **emulated)
        [device] = host["trials"]["devices"]
        self.assertTrue(device["device"].startswith("GPU-") and device["kind"].startswith("cuda"), device)
        self.assertEqual((device["other_rounds"], device["wrong_bytes"]), (0, 0))

    def test_wrong_bits_are_found(self):
        self.preflight("run.toml", code=0)
        [host] = self.preflight("run.toml", code=76, HOLDFAST_FAULTS="step.begin@6=flip:weights:22:5")
        self.assertEqual(self.rules(host)[0], "bits-steady")
        self.assertIn("1 of ", self.sentences(host))
        self.assertIn("not fit", self.call("hosts").stdout)

    def test_bits_other_than_those_recorded_are_found(self):
        self.preflight("run.toml", code=0)
        book = json.loads(self.book.read_text())
        book["bits"][0]["digest"] = "0123456789abcdef" * 2
        self.book.write_text(json.dumps(book))
        [host] = self.preflight("run.toml", code=76)
        self.assertIn("bits", self.rules(host))
        self.assertIn("and then 01234567", self.sentences(host))

    def test_a_host_that_has_become_slow_is_found(self):
        self.preflight("run.toml", code=0)
        [host] = self.preflight("run.toml", code=76, HOLDFAST_FAULTS="step.begin@6=sleep:5000")
        self.assertIn("slow-usual", self.rules(host))
        self.assertRegex(self.sentences(host), r"\d+ tokens/s are \d+ % of its own usual \d+; the bound is 80 %")

    def test_a_host_that_does_not_answer(self):
        agent = self.folder / "agent"
        agent.write_text("#!/bin/sh\nexit 255\n")
        agent.chmod(0o755)
        found = self.preflight("run.toml", "--host", "localhost,node7", code=76, PRTE_MCA_plm_ssh_agent=str(agent))
        self.assertEqual(self.rules(found[1]), ["answers"])
        self.assertIn("does not answer", self.sentences(found[1]))
        self.assertNotIn("answers", self.rules(found[0]))

    def test_hosts_are_tainted_for_a_time(self):
        self.assertIn("no host is tainted", self.call("hosts").stdout)
        self.assertEqual(self.call("taint", "n2", "--for", "2h", "--reason", "the fan").returncode, 0)
        self.assertRegex(self.call("hosts").stdout, r"n2 +tainted[^\n]*\n  tainted since 2\d{3}-.* UTC, until .* UTC: the fan\n")
        book = json.loads(self.book.read_text())
        book["hosts"][0]["taint"]["until_us"] = 1
        self.book.write_text(json.dumps(book))
        self.assertIn("no host is tainted", self.call("hosts").stdout)
        self.call("taint", "n3")
        self.assertEqual(self.call("untaint", "n3").returncode, 0)
        refused = self.call("untaint", "n3")
        self.assertEqual((refused.returncode, "n3 is not tainted" in refused.stderr), (2, True))

    def test_bad_input_gets_a_sentence(self):
        for words, sentence in {("preflight", "--seconds", "0"): "--seconds must be",
                                ("preflight", "--host", "a", "--hostfile", "b"): "both name the hosts",
                                ("preflight", "missing.toml"): "missing.toml",
                                ("preflight", "--host", "-x"): "cannot be the name of a host",
                                ("taint", "a b"): "cannot be the name of a host",
                                ("taint", "a", "--for", "-3s"): "is not a duration",
                                ("taint", "a", "--for", "0s"): "--for must be longer than 0"}.items():
            refused = self.call(*words)
            self.assertEqual(refused.returncode, 2, words)
            self.assertIn(sentence, refused.stderr)
        self.call("taint", "n3")
        self.book.write_text('{"version":9,"hosts":[]}\n')
        for words in (["preflight"], ["hosts"], ["taint", "a"], ["untaint", "a"]):
            refused = self.call(*words)
            self.assertEqual(refused.returncode, 2, words)
            self.assertIn("version 9 of the format", refused.stderr)
        self.assertEqual(self.book.read_text(), '{"version":9,"hosts":[]}\n')

    def test_the_rules_of_the_page_are_those_of_the_program(self):
        self.assertIn(self.call("preflight", "--rules").stdout, (ROOT / "docs/preflight.md").read_text(),
                      "put what holdfast preflight --rules prints into docs/preflight.md")


@unittest.skipIf(hosts.why_not(), hosts.why_not())
class SeveralHostsTest(unittest.TestCase):
    def setUp(self):
        self.scene = self.enterContext(harness.Scene())
        # On each host in its own shared memory, and the program's to clean up.
        self.scene.environment.pop("OMPI_MCA_btl_sm_backing_directory", None)
        self.cluster = self.enterContext(hosts.Cluster(3))

    def preflight(self, *codes, seconds=1, state="state", faults=""):
        """What it tells of all three hosts, and {host: {rule: sentence}} of those that are not fit."""
        run = self.scene.run(self.id().rsplit(".", 1)[1])
        words = [HOLDFAST, "preflight", str(self.scene.config), f"--run.directory={run.directory}", "--host", self.cluster.host_list(1),
                 "--seconds", str(seconds), "--json"]
        start = self.cluster.start(run, words, faults=faults, XDG_STATE_HOME=str(self.cluster.directory / state))
        code = start.wait(180)
        self.assertIn(code, codes, start.output())
        told = json.loads(next(line for line in start.output().splitlines() if line.startswith("{")))
        self.assertEqual([host["host"] for host in told["hosts"]], ["n0", "n1", "n2"])
        return told, {host["host"]: {reason["rule"]: reason["sentence"] for reason in host["reasons"]} for host in told["hosts"]}

    def expect_alone(self, *rules, **preflight):
        """That n1 breaks these rules, and no other host one of them, or one that has nothing to do with rates."""
        told, found = self.preflight(76, **preflight)
        print(f"\n{self.id().rsplit('.', 1)[1]}: exit code 76, {found}", flush=True)
        self.assertLessEqual(set(rules), set(found["n1"]), found)
        for name in ("n0", "n2"):
            self.assertLessEqual(set(found[name]), SHARED - set(rules), found)
        return told

    @harness.full
    def test_healthy_hosts(self):
        """They share the processors of this machine, so that rates say little; all the other rules find nothing."""
        counts, lost = collections.Counter(), []
        for attempt in range(PREFLIGHTS):
            told, found = self.preflight(0, 76, state=f"state-{attempt}")
            counts.update(["fit" if told["fit"] else "not fit", *(rule for rules in found.values() for rule in rules)])
            for rules in found.values():
                self.assertLessEqual(set(rules), SHARED, found)
            lost.append(max(link["lost_share"] for link in told["links"]))
        print(f"\n{PREFLIGHTS} preflights of three healthy hosts on {os.cpu_count()} processors: {dict(counts)}; a link lost at most "
              f"{100 * max(lost):.2f} %")

    @harness.full
    def test_a_host_with_a_quota_is_slow(self):
        self.cluster.limit_cpu("n1", 0.15)
        self.expect_alone("slow-fleet", seconds=4)

    @harness.full
    def test_a_slow_disk_is_found(self):
        self.cluster.limit_disk("n1", self.scene.directory, 2_000_000)
        self.expect_alone("disk-rate", "disk-read")

    @harness.full
    @unittest.skipIf(hosts.why_not() or hosts.why_no_links(), "links cannot lose frames here")
    def test_a_lossy_link_is_found(self):
        self.cluster.links.spoil(self.cluster.hosts["n1"].cable)
        told = self.expect_alone("link-loss")
        self.assertEqual([link["lost_share"] > 0.01 for link in told["links"]], ["n1" in (link["from"], link["to"]) for link in told["links"]])

    @harness.full
    @unittest.skipIf(shutil.which("cc") is None or harness.SANITIZED, "needs a C compiler, and a program that loads other libraries first")
    def test_a_wrong_clock_is_found(self):
        library = self.cluster.directory / "clock.so"
        subprocess.run(["cc", "-shared", "-fPIC", "-x", "c", "-o", str(library), "-", "-ldl"], input=WRONG_CLOCK, text=True, check=True)
        self.cluster.set_variables("n1", LD_PRELOAD=str(library))
        self.expect_alone("clock")

    def test_one_of_three_has_wrong_bits(self):
        told, found = self.preflight(76, faults="step.begin@6:1=flip:weights:22:5")
        self.assertEqual(sorted((link["from"], link["to"]) for link in told["links"]), [("n0", "n1"), ("n0", "n2"), ("n1", "n2")])
        self.assertTrue(all(link["MB_per_s"] > 1 and 0 < link["latency_us"] < 1e6 for link in told["links"]), told["links"])
        self.assertIn("bits-steady", found["n1"])
        for name in ("n0", "n2"):
            self.assertFalse({"bits", "bits-steady", "answers", "clock", "program"} & set(found[name]), found)

    @unittest.skipIf(hosts.why_not() or hosts.why_no_links(), "links cannot be slowed down here")
    def test_a_slow_link_is_found(self):
        self.cluster.links.slow(self.cluster.hosts["n1"].cable)
        _, found = self.preflight(76)
        self.assertRegex(found["n1"]["link-fleet"], r"its best link has \d+ MB/s, \d+ % of the \d+ that .*; the bound is 50 %")
        for name in ("n0", "n2"):
            self.assertNotIn("link-fleet", found[name])

    def test_a_tainted_host_is_left_out_of_a_start(self):
        state = {"XDG_STATE_HOME": str(self.cluster.directory)}
        subprocess.run([HOLDFAST, "taint", "n1", "--reason", "the fan"], check=True, stdout=subprocess.DEVNULL, env={**os.environ, **state})
        run = self.scene.run("tainted", ["--training.steps=5", "--evaluation.every_steps=0"])
        words = [HOLDFAST, "launch", "-np", "4", "--host", self.cluster.host_list(2), str(self.scene.config),
                 f"--run.directory={run.directory}", *run.overrides]
        output = self.cluster.start(run, words, **state).expect_exit(0)
        self.assertIn("host n1 is tainted: the fan; holdfast untaint n1 ends that", output)
        self.assertEqual(run.events("start")[-1]["hosts"], {"n0": 2, "n2": 2})

    def test_a_launch_with_a_preflight_leaves_a_sick_host_out(self):
        run = self.scene.run("tried", ["--training.steps=5", "--evaluation.every_steps=0"])
        words = [HOLDFAST, "launch", "--preflight", "--faults", "-np", "2", "--host", self.cluster.host_list(2), str(self.scene.config),
                 f"--run.directory={run.directory}", *run.overrides]
        # A start of five steps does not come to the hit that spoils the rank of the preflight.
        output = self.cluster.start(run, words, faults="step.begin@26:1=flip:weights:22:5",
                                    XDG_STATE_HOME=str(self.cluster.directory)).expect_exit(0)
        self.assertIn("host n1 is not fit: its processors computed wrong numbers", output)
        # One of the others may be slow, as three hosts share the processors of this machine.
        self.assertNotIn("n1", run.events("start")[-1]["hosts"], output)


if __name__ == "__main__":
    harness.main()
