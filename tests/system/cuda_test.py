"""The program on the CUDA device, emulated: a whole run alone and under mpirun, what is done with its checkpoint, what
`holdfast check` says of the device, and benchmarks.
"""
import json
import os
import re
import unittest

import harness
import kernel_test

MODULE = harness.PROGRAM.parent / "libholdfast_cuda_emulated.so"
# Small, because every thread of a GPU takes its turn on the CPU.
SMALL = ["--device=cuda", "--model.width=32", "--model.layers=1", "--training.steps=3", "--training.sequence_length=16",
         "--training.microbatch_size=1", "--optimizer.warmup_steps=1", "--checkpoint.every_steps=2",
         "--evaluation.every_steps=0"]


class CudaTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        os.environ["HOLDFAST_CUDA_MODULE"] = str(MODULE)
        cls.addClassCleanup(os.environ.pop, "HOLDFAST_CUDA_MODULE")
        cls.scene = harness.Scene()
        cls.addClassCleanup(cls.scene.close)

    def test_ranks_share_a_gpu_and_the_bits(self):
        alone = self.scene.run("alone")
        alone.start(1, overrides=SMALL).expect_exit(0)
        self.assertEqual(alone.digest().splitlines()[0], "step 3")
        start = alone.events("start")[0]
        self.assertTrue(start["device"].startswith("cuda, sm_80"), start["device"])
        self.assertEqual(start["kernels"]["gelu_forward"]["name"], "cuda")
        two = self.scene.run("two")
        two.start(2, overrides=SMALL).expect_exit(0)
        self.assertEqual(two.digest(), alone.digest())

    def test_a_kernel_of_a_plugin_is_for_the_cpu(self):
        file = kernel_test.build(self.scene.directory / "mine.so")
        refused = self.scene.run("plugin").start(1, overrides=[*SMALL, f"--kernels.plugins={file}", "--kernels.add=mine"]).expect_exit(2)
        self.assertRegex(refused, r'kernels.add = "mine" \(command line\): the kernel mine of add, of the plug-in \S+/mine.so is for the CPU, and this run computes on a GPU')
        self.assertNotIn("no such implementation", refused)

    def test_a_gpu_that_takes_other_algorithms(self):
        """As an H200 after an H100 may, which have one name for what decides bits. A run takes its algorithms along; where the
        GPU lacks them, it says so."""
        other = "resume: the state was made on another GPU of this kind, which computes the product m "
        stayed = self.scene.run("stayed")
        for steps in (3, 5):
            stayed.start(1, overrides=[*SMALL, f"--training.steps={steps}"]).expect_exit(0)
        runs = {kind: self.scene.run(f"moved-{kind}") for kind in ("prefers", "lacks")}
        for kind, run in runs.items():
            run.start(1, overrides=SMALL).expect_exit(0)
        self.addCleanup(self.scene.environment.pop, "EMULATED_GPU_OTHER_ALGORITHMS")
        for kind, run in runs.items():
            self.scene.environment["EMULATED_GPU_OTHER_ALGORITHMS"] = kind
            moved = run.start(1, overrides=[*SMALL, "--training.steps=5"]).expect_exit(0)
            if kind == "lacks":
                self.assertIn(other, moved)
                self.assertRegex(moved, r"generation 1 begins after step 3 \(changed: device\)")
                self.assertNotEqual(run.digest(), stayed.digest())
            else:
                self.assertNotIn(other, moved)
                self.assertEqual(run.digest(), stayed.digest())

    def test_every_stage_takes_its_algorithms_along(self):
        """What is saved has the plan of all ranks, also of those that do not write the manifest: the head, with products of its own, is
        in the second stage alone."""
        layers = [*SMALL, "--model.layers=2", "--model.vocabulary=320"]
        alone = self.scene.run("stages-alone")
        for steps in (3, 5):
            alone.start(1, overrides=[*layers, f"--training.steps={steps}"]).expect_exit(0)
        stages = self.scene.run("stages")
        stages.start(2, overrides=[*layers, "--parallel.pipeline=2"]).expect_exit(0)
        plans = [set(run.events("start")[0]["device_plan"].splitlines()) for run in (alone, stages)]
        self.assertEqual(*plans)
        self.scene.environment["EMULATED_GPU_OTHER_ALGORITHMS"] = "prefers"
        self.addCleanup(self.scene.environment.pop, "EMULATED_GPU_OTHER_ALGORITHMS")
        moved = stages.start(2, overrides=[*layers, "--parallel.pipeline=2", "--training.steps=5"]).expect_exit(0)
        self.assertNotIn("the state was made on another GPU", moved)
        self.assertEqual(stages.digest(), alone.digest())

    def test_a_weight_that_changes_while_parameters_are_gathered(self):
        """Its rank waits for what the other one sends, which waits for it in the vote about the state that is to be saved."""
        words = [*SMALL, "--model.layers=2", "--training.steps=6", "--parallel.lanes=4", "--verdict.preset=guard",
                 "--checkpoint.ram_every_steps=1", "--elastic.grow=off"]
        undisturbed = self.scene.run("unflipped")
        undisturbed.start(1, overrides=words).expect_exit(0)
        run = self.scene.run("flipped")
        run.start(2, overrides=words, faults="step.end@4:1=flip:weights:0").expect_exit(0)
        self.assertEqual([event["action"] for event in run.events("verdict")], ["evict"])
        self.assertEqual([event["of"] for event in run.events("verdict")], ["state"])
        self.assertEqual(len(run.events("recovery")), 1)
        self.assertEqual(run.digest(), undisturbed.digest())

    def test_a_given_plan(self):
        """A run on another GPU of the kind has the bits of the run whose device_plan it is given, and others without."""
        here = self.scene.run("planned-here")
        here.start(1, overrides=SMALL).expect_exit(0)
        plan = self.scene.directory / "products.plan"
        plan.write_text(here.events("start")[0]["device_plan"] + "\n")
        self.scene.environment["EMULATED_GPU_OTHER_ALGORITHMS"] = "prefers"
        self.addCleanup(self.scene.environment.pop, "EMULATED_GPU_OTHER_ALGORITHMS")
        for name, words in (("as-planned", [f"--kernels.plan={plan}"]), ("unplanned", [])):
            there = self.scene.run(name)
            there.start(1, overrides=[*SMALL, *words]).expect_exit(0)
            self.assertEqual(there.digest() == here.digest(), name == "as-planned", name)
        plan.write_text("m 8 n 8\n")
        refused = self.scene.run("misplanned").start(1, overrides=[*SMALL, f"--kernels.plan={plan}"]).expect_exit(2)
        self.assertIn(f'{plan}:1: "m 8 n 8" is not a product with its algorithm; expected', refused)

    def test_algorithms_are_measured_and_written_for_a_run(self):
        plan = self.scene.directory / "measured.plan"
        result, printed = self.bench("op", "matmul", "--device=cuda", "--dtype=bf16", "--sizes=toy", "--algorithms",
                                     f"--plan={plan}", "--milliseconds=1")
        for shape in result["ops"]["matmul"]:
            names = [each["name"] for each in shape["implementations"]]
            self.assertTrue(names == ["none"] or names[0].startswith("algorithm "), names)
        self.assertIn("splits 2 reduction 2", printed)
        self.assertTrue(plan.read_text().startswith("# Algorithms of matrix products for kernels.plan, measured on "))
        self.scene.run("measured").start(1, overrides=[*SMALL, f"--kernels.plan={plan}"]).expect_exit(0)

    def bench(self, *words):
        """Figures of a case, and what it printed."""
        path = self.scene.directory / "figures.json"
        printed = harness.program_output("bench", *words, "--json", path)
        return json.loads(path.read_text())["result"], printed

    def test_a_step_is_timed_op_by_op(self):
        result, printed = self.bench("step", self.scene.config, *SMALL, "--training.precision=bf16", "--parallel.lanes=2",
                                     "--training.microbatches_per_lane=1", "--steps=2", "--warmup-steps=1")
        kinds = result["kinds"]
        self.assertEqual({name: kinds[name]["calls"] for name in ("attention_forward", "swiglu_backward", "adamw")},
                         {"attention_forward": 2, "swiglu_backward": 2, "adamw": 1})
        for name, kind in kinds.items():
            self.assertGreater(kind["ms"], 0.0, name)
        self.assertGreater(kinds["adamw"]["limit_ms"], 0.0, "its bytes are in a table in the GPU's memory")
        self.assertLessEqual(sum(kind["ms"] for kind in kinds.values()), 1.05 * result["step_ms"])
        self.assertTrue(result["device"].startswith("cuda, sm_80"), result["device"])
        self.assertGreater(result["gpu"]["copied_bytes_per_sec"], 0.0)
        self.assertRegex(printed, r"emulated device, sm_80[^\n]*\nit copies \d+ GB/s and multiplies")
        self.assertRegex(printed, r"\n  attention_forward +2 ")
        self.assertIn("matrix products at the rate of one large product", printed)

    def test_ops_stand_beside_copy_and_product(self):
        result, _ = self.bench("op", "rmsnorm_forward", "--device", "cuda", "--dtype", "bf16", "--sizes=cpu",
                               "--shape", "llama-15m 4x64", "--milliseconds", "1")
        (shape,) = result["ops"]["rmsnorm_forward"]
        self.assertIn("cuda", [each["name"] for each in shape["implementations"]])
        limit_s = (shape["bytes_read"] + shape["bytes_written"]) / result["gpu"]["copied_bytes_per_sec"]
        self.assertAlmostEqual(shape["limit_microseconds"] / (limit_s * 1e6), 1.0, places=6)

    def test_toy_sizes_cover_every_op(self):
        """As the GPU's sizes do, and each in no time."""
        result, printed = self.bench("op", "all", "--device", "cuda", "--dtype", "bf16", "--sizes", "toy", "--milliseconds", "1")
        self.assertEqual(result["sizes"], "toy")
        for name, shapes in result["ops"].items():
            self.assertGreater(len(shapes), 0, name)
        for name in ("attention_forward", "attention_backward"):
            uses = [shape["shape"] for shape in result["ops"][name]]
            self.assertTrue(any(use.endswith("1x32 2/1 heads of 128 bf16") for use in uses), uses)
            self.assertTrue(any(use.endswith("in documents") for use in uses), uses)
        self.assertRegex(printed, r"1x32 2/2 heads of 128 bf16 in documents")

    def test_the_optimizer_of_a_whole_model(self):
        result, _ = self.bench("optimizer", "--device=cuda", "--preset=llama-15m", "--updates=1")
        sums = result["square_sum"]  # 8 bytes of a block and a digest; an update reads one of the state, and one of the gradient
        self.assertEqual(result["adamw"]["bytes_read"], 4 * sums["bytes_read"] + sums["bytes_written"])
        self.assertGreaterEqual(result["square_sum"]["bytes_read"], 4 * result["parameters"])
        for case in ("adamw", "adamw_without_digests", "square_sum"):
            self.assertGreater(result[case]["ms"], 0.0)
            self.assertGreater(result[case]["limit_ms"], 0.0)

    def test_sample_and_evaluate(self):
        run = self.scene.run("trained")
        run.start(1, overrides=SMALL).expect_exit(0)
        data = self.scene.directory / "held-out.txt"
        data.write_text(harness.text_of(1000, seed=2))
        texts, losses = {}, {}
        for device in ("cpu", "cuda"):
            told = harness.program_output("sample", run.directory, "--prompt=A run", "--tokens=8", "--temperature=0", f"--device={device}")
            texts[device] = harness.without_rate(told).partition("A run")[2]
            evaluated = harness.program_output("evaluate", run.directory, f"--data={data}", f"--device={device}")
            losses[device] = float(evaluated.split()[-1])
        self.assertEqual(texts["cuda"], texts["cpu"])
        self.assertNotEqual(losses["cuda"], 0.0)
        self.assertAlmostEqual(losses["cuda"], losses["cpu"], delta=1e-5 * losses["cpu"])

    def test_a_rank_whose_gpu_breaks_leaves_the_run_with_its_bits(self):
        """Kernels that trap or read what is not there end their rank; one that never ends is noticed by the watchdog, which names
        the rank whose own device is stuck, not the peers that it seems to wait for. A rank passes the points twice a step. Where
        nobody waits for the watchdog all wait in step 9: the snapshot of step 8, copied beside it, is whole when the GPU breaks."""
        steps = ["--training.steps=12", "--checkpoint.every_steps=0", "--checkpoint.ram_every_steps=1", "--watchdog.floor=2s"]
        alone = self.scene.run("undisturbed")
        alone.start(1, overrides=[*SMALL, *steps]).expect_exit(0)
        for action, said in (("gpu_trap", "unspecified launch failure"),
                             ("gpu_illegal_address", "an illegal memory access was encountered"),
                             ("gpu_endless", r"rank 1 \(host .*\) hangs: step 9 for .*; it waits for nobody")):
            with self.subTest(action):
                run = self.scene.run(action)
                wait = "" if action == "gpu_endless" else "step.before_backward@17=sleep:1000,"
                output = run.start(2, overrides=[*SMALL, *steps], faults=f"{wait}step.before_reduce@17:1={action}").expect_exit(0)
                self.assertRegex(output, said)
                if action == "gpu_endless":
                    self.expect_found_in_time(output)
                self.assertRegex(output, "recovery: .*lost rank 1 .* at step 9: 1 of 2 ranks go on, from step 8 in RAM")
                self.assertEqual(run.digest(), alone.digest())

    @harness.full
    def test_chaos_breaks_gpus(self):
        campaign = self.scene.run("chaos")
        words = [str(self.scene.config), f"--directory={campaign.directory}", "--layouts=2x1x1", "--faults=gpu_fault", "--faults-max=1",
                 "--seeds=1..2", *SMALL, "--training.steps=12", "--checkpoint.ram_every_steps=1", "--watchdog.floor=4s"]
        output = harness.program_output("chaos", *words)
        self.assertIn("2 of 2 runs ended with the right bits", output)
        result = json.loads((campaign.directory / "chaos.json").read_text())
        self.assertEqual(result["faults"]["gpu_fault"]["in place"], 2, output)

    def expect_found_in_time(self, output):
        """At the floor of 2 s, or at three times what a step takes where that is more (watchdog.factor), and within another step."""
        hung, usual, unit = re.search(r"hangs: step 9 for ([\d.]+) s, ([\d.]+) (ms|s) are usual", output).groups()
        usual_s = float(usual) * (1e-3 if unit == "ms" else 1)
        limit_s = max(2, 3 * usual_s)
        self.assertTrue(limit_s - 0.1 <= float(hung) < limit_s + max(1, usual_s), (hung, usual, unit))

    def test_a_slow_path_has_a_sentence(self):
        run = self.scene.run("slow-path")
        heads_of_16 = ["--model.heads=2", "--model.kv_heads=2", "--training.precision=bf16", "--training.steps=1"]
        output = run.start(2, overrides=[*SMALL, *heads_of_16]).expect_exit(0)
        for op in ("attention_forward", "attention_backward"):
            self.assertEqual(len(re.findall(rf"slow path of {op}: .*\(head size 16, bf16\): expect 15 to 20 times its time", output)), 1)

    def test_auto_takes_the_gpu_and_check_says_so(self):
        run = self.scene.run("auto")
        output = run.start(1, overrides=["--device=auto", *SMALL[1:]]).expect_exit(0)
        self.assertIn('device = "auto" is the GPU: emulated device (GPU 0); "cpu" leaves it alone', output)
        outcome = harness.program_output("check", self.scene.config)
        self.assertRegex(outcome, r"device +cuda, GPU 0: emulated device, 8.00 GiB, sm_80, driver for CUDA 13\.0")
        self.assertRegex(outcome, r"CUDA +yes +GPU 0: emulated device")
        self.assertRegex(outcome, r"device +yes +cuda, sm_80, 4 multiprocessors, CUDA 13\.0")

    def test_check_shows_the_health_of_each_gpu(self):
        # A host with a driver has the library, which does not know the emulator's GPU.
        self.assertRegex(harness.program_output("check", self.scene.config),
                         r"GPU health +no +NVML (could not be loaded from libnvidia-ml\.so\.1: |says of the GPU at e0e0:)")
        readings = self.scene.directory / "readings"
        readings.write_text("e0e0:00:00.0 temperature 67\ne0e0:00:00.0 clock_reasons 64\ne0e0:01:00.0 lost 1\n")
        for name, value in {"LD_LIBRARY_PATH": str(MODULE.parent / "nvml_double"), "NVML_DOUBLE": str(readings), "EMULATED_GPUS": "2"}.items():
            before = os.environ.get(name)
            os.environ[name] = value
            self.addCleanup(lambda name=name, before=before: os.environ.pop(name) if before is None else os.environ.__setitem__(name, before))
        outcome = harness.program_output("check", self.scene.config)
        self.assertRegex(outcome, r"GPU health +yes +67 C; clocks lowered by heat \(hardware\)\n")
        self.assertRegex(outcome, r"GPU health +no +NVML says of the GPU at e0e0:01:00\.0: GPU is lost\n")

    def test_check_names_a_gpu_that_cannot_be_used(self):
        os.environ["EMULATED_GPU_NO_IMAGE"] = "1"
        self.addCleanup(os.environ.pop, "EMULATED_GPU_NO_IMAGE")
        outcome = harness.program_output("check", self.scene.config)
        self.assertRegex(outcome, r"CUDA +no +emulated device \(GPU 0, compute capability 8\.0\) does not run")
        self.assertRegex(outcome, r"device +cpu\n")

    def test_version_names_the_build_and_the_gpus(self):
        self.assertRegex(harness.program_output("--version"),
                         r"cuda +13\.0, kernels for emulator\ngpu +GPU 0: emulated device, 8.00 GiB, sm_80, driver for CUDA 13\.0\n")
        os.environ["EMULATED_GPUS"] = "0"
        self.addCleanup(os.environ.pop, "EMULATED_GPUS")
        self.assertRegex(harness.program_output("--version"), r"gpu +none: there is no GPU that it can use: no CUDA-capable device")


if __name__ == "__main__":
    harness.main(at_once=1)
