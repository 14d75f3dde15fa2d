"""tools/gpu-check without a GPU: what it says when there is none, and what it makes of what the programs that it starts say.
They are stood in for by scripts here."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]

GPU = {"name": "NVIDIA H200", "copied_bytes_per_sec": 4.1e12, "fp32_flops_per_sec": 5e13, "bf16_flops_per_sec": 7.9e14}
# What `holdfast bench` writes, as far as it is read.
KERNELS = {"gpu": GPU, "ops": {"matmul": [{"shape": "256x768x3072 NT", "limit_microseconds": 15.0, "level": "L2",
                                           "implementations": [{"name": "cublaslt", "microseconds": 20.0},
                                                               {"name": "cuda", "microseconds": 150.0}]}]}}
STEP = {"gpu": GPU, "step_ms": 65.5, "between_ops_ms": 0.4, "kinds": {
    "add": {"calls": 24, "ms": 1.5, "limit_ms": 1.2}, "matmul": {"calls": 217, "ms": 50.0, "limit_ms": 40.0}}}
# Of a script that stands in for the program: answers the case that it is asked for.
BENCH = """
import json, pathlib, sys
options = dict(word.lstrip("-").partition("=")[::2] for word in sys.argv)
def answer(result):
    assert options["device"] == "cuda", sys.argv
    pathlib.Path(sys.argv[sys.argv.index("--json") + 1]).write_text(json.dumps({"result": result}))
    sys.exit()
"""


class GpuCheckTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        (self.folder / "build/bin").mkdir(parents=True)
        (self.folder / "path").mkdir()

    def script(self, place, text, interpreter="/bin/sh"):
        path = self.folder / place
        path.write_text(f"#!{interpreter}\n{text}\n")
        path.chmod(0o755)

    def a_gpu_is_there(self):
        self.script("path/nvidia-smi", 'echo "NVIDIA H200, 9.0"')
        self.script("path/nvcc", "exit 1")

    def check(self, *steps):
        words = [word for step in steps for word in ("--only", step)]
        return subprocess.run(
            [sys.executable, str(ROOT / "tools/gpu-check"), *words, "--out", str(self.folder / "out"), "--build",
             str(self.folder / "build")], capture_output=True, text=True, timeout=60, check=False,
            env={"PATH": f"{self.folder}/path:{self.folder}/nowhere", "HOME": str(self.folder)} | (
                {"LD_LIBRARY_PATH": os.environ["LD_LIBRARY_PATH"]} if "LD_LIBRARY_PATH" in os.environ else {}))

    def results(self):
        return json.loads((self.folder / "out/gpu-check.json").read_text()), (self.folder / "out/gpu-check.txt").read_text()

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

    def test_tests_that_ran_have_passed(self):
        self.a_gpu_is_there()
        self.script("path/ctest", 'echo "100% tests passed, 0 tests failed out of 31"')
        outcome = self.check("tests")
        self.assertEqual(outcome.returncode, 0, outcome.stdout + outcome.stderr)
        document, text = self.results()
        self.assertEqual(document["gpus"], ["NVIDIA H200"])
        self.assertEqual(document["steps"]["tests"]["tests"], 31)
        self.assertRegex(text, r"tests +passed")

    def test_skipped_tests_have_not_passed(self):
        self.a_gpu_is_there()
        self.script("path/ctest", 'echo "100% tests passed, 0 tests failed out of 1"; echo " 7 - gpu.matmul.cuda (Skipped)"')
        outcome = self.check("tests")
        self.assertEqual(outcome.returncode, 1)
        self.assertIn("FAILED: skipped although there is a GPU: gpu.matmul.cuda", outcome.stdout)

    def test_a_program_that_is_missing_is_named(self):
        self.a_gpu_is_there()
        outcome = self.check("tests")
        self.assertEqual(outcome.returncode, 1)
        self.assertIn("FAILED: ctest could not be started: No such file or directory", outcome.stdout)

    def test_a_step_that_fails_does_not_keep_the_next_from_running(self):
        self.a_gpu_is_there()
        self.script("path/ctest", "echo broken; exit 8")
        self.script("path/compute-sanitizer", 'echo "========= ERROR SUMMARY: 0 errors"; shift 4; exec "$@"')
        self.script("build/bin/test_kernels_gpu", "exit 0")
        outcome = self.check("tests", "memcheck")
        self.assertEqual(outcome.returncode, 1)
        document, _ = self.results()
        self.assertEqual([step["passed"] for step in document["steps"].values()], [False, True])
        self.assertIn("broken", document["steps"]["tests"]["reason"])
        self.assertEqual(document["steps"]["memcheck"]["summary"], "ERROR SUMMARY: 0 errors")

    def test_kernels_stand_beside_their_limits(self):
        self.a_gpu_is_there()
        self.script("build/bin/holdfast", f"{BENCH}assert sys.argv[1:4] == ['bench', 'op', 'all']\nanswer({KERNELS})",
                    interpreter=sys.executable)
        outcome = self.check("kernels")
        self.assertEqual(outcome.returncode, 0, outcome.stdout + outcome.stderr)
        document, text = self.results()
        self.assertEqual(document["steps"]["kernels"]["bf16"], KERNELS)
        self.assertIn("copy 4100 GB/s, bf16 product 790 TFLOP/s", text)
        self.assertIn("copy 4100 GB/s, fp32 product 50 TFLOP/s", text)
        self.assertRegex(text, r"matmul +256x768x3072 NT +cublaslt +20.0 +15.0 +75% +L2")
        self.assertRegex(text, r"matmul +256x768x3072 NT +cuda +150.0 +15.0 +10% +L2")

    def runs_whose_loss_is(self, loss):
        """`loss`: an expression of `device` and `directory`, the run's."""
        self.a_gpu_is_there()
        self.script("build/bin/holdfast", f"""
import json, pathlib, sys
options = dict(word.lstrip("-").partition("=")[::2] for word in sys.argv)
device, directory = options["device"], pathlib.Path(options["run.directory"])
directory.mkdir()
(directory / "events.jsonl").write_text(json.dumps({{"event": "step", "loss": {loss}}}) + chr(10))
""", interpreter=sys.executable)

    def test_losses_close_to_those_of_the_cpu_are_right(self):
        self.runs_whose_loss_is('10.001 if device == "cuda" else 10.0')
        outcome = self.check("parity")
        self.assertEqual(outcome.returncode, 0, outcome.stdout + outcome.stderr)
        self.assertAlmostEqual(self.results()[0]["steps"]["parity"]["gpt2-124m"]["farthest_relative"], 1e-4)

    def test_losses_far_from_those_of_the_cpu_are_wrong(self):
        self.runs_whose_loss_is('10.1 if device == "cuda" else 10.0')
        outcome = self.check("parity")
        self.assertEqual(outcome.returncode, 1)
        self.assertIn("losses on the GPU are up to 1.0e-02 away from the CPU's", outcome.stdout)

    def test_two_runs_on_the_gpu_have_the_same_bits(self):
        self.runs_whose_loss_is('10.0 if directory.name.endswith("first") else 10.0000001')
        outcome = self.check("parity")
        self.assertEqual(outcome.returncode, 1)
        self.assertIn("two runs on the GPU have other losses", outcome.stdout)

    def test_training_has_tokens_mfu_and_ms_per_op(self):
        self.a_gpu_is_there()
        self.script("build/bin/holdfast", BENCH + f"""
if sys.argv[1] == "bench":
    if "ops-of-llama-1b" in sys.argv[-1]:
        sys.exit("no memory for its clock")
    assert sys.argv[2] == "step" and options["training.precision"] == "bf16", sys.argv
    answer({STEP})
""" + """
import time
directory = pathlib.Path(options["run.directory"])
if directory.name == "llama-8b":
    sys.exit("out of memory")
directory.mkdir()
step = {"event": "step", "step_duration_ms": 65.5, "tokens_per_sec": 500000.0}
slow = {"event": "step", "step_duration_ms": 900.0, "tokens_per_sec": 1.0}
events = [{"event": "start", "flops_per_token": 800e6, "device": "cuda"}] + 5 * [slow] + 20 * [step]
(directory / "events.jsonl").write_text("".join(json.dumps(event) + chr(10) for event in events))
time.sleep(600)  # a run goes on until it is ended
""", interpreter=sys.executable)
        outcome = self.check("training")
        self.assertEqual(outcome.returncode, 1)
        self.assertRegex(outcome.stdout, r"FAILED: llama-1b: exit code 1.*\n.*clock; llama-8b: exit code 1")
        document, text = self.results()
        figures = document["steps"]["training"]
        self.assertEqual([name for name in figures if name in ("gpt2-124m", "gpt2-1558m", "llama-1b", "llama-8b")],
                         ["gpt2-124m", "gpt2-1558m", "llama-1b"])
        self.assertEqual(figures["gpt2-124m"]["ops"], STEP)
        self.assertNotIn("ops", figures["llama-1b"])
        self.assertRegex(text, r"gpt2-124m: op +calls +ms +of step +limit ms +of limit\nmatmul +217 +50.00 +76.3% +40.00 +80%")
        self.assertRegex(text, r"gpt2-124m +32 x 1024 +500000 +40.4% +65.5 +520 K tokens/s")  # 500 K x 0.8 G / 989 T


if __name__ == "__main__":
    unittest.main()
