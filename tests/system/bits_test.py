"""The same bits, whatever the number of ranks and threads and wherever a run was stopped: `holdfast digest` of runs under
mpirun against one rank that ran straight through."""
import json
import re
import signal
import unittest

import harness

BF16_GPT2 = ["--model.style=gpt2", "--model.kv_heads=4", "--training.precision=bf16"]


def bytes_of(text):
    """Of what the program prints: "6.25 MiB"."""
    number, unit = text.split()
    return float(number) * 1024 ** ["B", "KiB", "MiB", "GiB"].index(unit)


class BitsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scene = harness.Scene(microbatch_size=1)  # what is compared needs no long steps
        cls.addClassCleanup(cls.scene.close)
        cls.reference = harness.reference_digest(cls.scene)

    def expect_reference(self, run, reference=None):
        self.assertEqual(run.digest(), reference or self.reference)
        self.assertEqual(run.status()["state"], "finished")

    def stop_at(self, run, step, ranks, overrides=()):
        """SIGUSR2 to mpirun, which passes it on: the step is finished and saved, exit code 75."""
        start = run.start(ranks, overrides=overrides, faults=harness.slow_steps(step - run.newest_step() + 1))
        self.assertTrue(start.wait_for_step(step), start.tail())
        start.signal(signal.SIGUSR2)
        start.expect_exit(75)
        harness.expect_no_processes(run)
        status = run.status()
        self.assertEqual((status["state"], status["exit_code"]), ("saved", 75))
        self.assertGreaterEqual(status["step"], step)
        self.assertEqual(run.newest_step(), status["step"], "what was computed is saved")
        return start

    def test_reference_is_a_run_that_learns(self):
        lines = self.reference.splitlines()
        self.assertEqual([line.split()[0] for line in lines], ["step", "weights", "optimizer", "data", "loss"])
        self.assertEqual(lines[0], f"step {harness.STEPS}")
        steps = self.scene.run("reference").events("step")
        self.assertEqual([event["step"] for event in steps], list(range(1, harness.STEPS + 1)))
        self.assertLess(steps[-1]["loss"], 0.7 * steps[0]["loss"])

    def test_another_seed_is_another_run(self):
        other = harness.reference_digest(self.scene, ["--run.seed=2"], "other-seed")
        for line in other.splitlines()[1:]:
            self.assertNotIn(line, self.reference)

    def test_any_number_of_ranks(self):
        for ranks in (1, 2, 3, 4):
            with self.subTest(ranks=ranks):
                run = self.scene.run(f"ranks-{ranks}")
                run.start(ranks, "ft").expect_exit(0)
                self.assertEqual(run.events("start")[-1]["ranks"], ranks)
                self.expect_reference(run)

    def test_any_pipeline(self):
        layouts = {"p2": (2, ["--parallel.pipeline=2"]), "d2p2": (4, ["--parallel.pipeline=2"]),
                   "ends": (4, ["--parallel.pipeline=4"]),
                   "chunks": (2, ["--parallel.pipeline=2", "--parallel.pipeline_chunks=2",
                                  "--parallel.pipeline_schedule=interleaved"]),
                   "split": (4, ["--parallel.pipeline=4", "--parallel.pipeline_schedule=zero_bubble"])}
        for name, (ranks, overrides) in layouts.items():
            with self.subTest(layout=name):
                run = self.scene.run(f"pipeline-{name}")
                run.start(ranks, overrides=overrides).expect_exit(0)
                self.expect_reference(run)

    def test_tensor_degrees(self):
        self.expect_tensor_layouts(["t2", "p2t2"])

    @harness.full
    def test_more_tensor_degrees(self):
        self.expect_tensor_layouts(["d2t2", "d2"])

    def expect_tensor_layouts(self, names):
        """Each in a run of its own, and all of them in one that changes its layout when it is resumed."""
        slices = ["--parallel.tensor_lanes=2"]
        reference = harness.reference_digest(self.scene, slices, "slices")
        layouts = {"t2": (2, ["--parallel.tensor=2"]), "d2t2": (4, ["--parallel.tensor=2", "--threads=2"]),
                   "p2t2": (4, ["--parallel.tensor=2", "--parallel.pipeline=2"]), "d2": (2, [])}
        for name in names:
            ranks, overrides = layouts[name]
            with self.subTest(layout=name):
                run = self.scene.run(f"tensor-{name}", slices)
                run.start(ranks, overrides=overrides).expect_exit(0)
                self.assertEqual(run.digest(), reference)
        changing = self.scene.run(f"tensor-changing-{names[0]}", slices)
        for step, ranks, overrides in ((7, *layouts["p2t2"]), (17, *layouts["t2"]), (26, *layouts["d2"])):
            self.stop_at(changing, step, ranks, overrides)
        changing.start(4, overrides=["--parallel.tensor=2"]).expect_exit(0)
        self.assertEqual(changing.digest(), reference)

    def test_layouts_of_the_families(self):
        """What blocks of Qwen2 and Qwen3 have that those of Llama have not, under scaled frequencies, and a sliding window: the same bits in data, tensor and
        pipeline parallelism, with split backwards, sharded gradients and recompute, and over a stop."""
        common = ["--model.layers=2", "--model.heads=4", "--model.width=32", "--parallel.tensor_lanes=2", "--training.steps=8",
                  "--optimizer.warmup_steps=2", "--training.microbatches_per_lane=2"]
        families = {
            "qwen2": ["--model.style=qwen2", "--model.kv_heads=2", "--model.head=tied", "--model.rope_scaling=linear",
                      "--model.rope_factor=2"],
            "qwen3": ["--model.style=qwen3", "--model.kv_heads=2", "--model.head_size=12", "--model.rope_scaling=llama3",
                      "--model.rope_factor=8", "--model.rope_original_positions=24"],
            "mistral": ["--model.style=mistral", "--model.kv_heads=2", "--model.attention_window=7", "--model.attention_sinks=2"]}
        layouts = {"t2": (2, ["--parallel.tensor=2", "--training.recompute=full"]),
                   "d2p2": (4, ["--parallel.pipeline=2", "--parallel.pipeline_schedule=zero_bubble", "--training.recompute=selective"]),
                   "p2t2": (4, ["--parallel.tensor=2", "--parallel.pipeline=2", "--optimizer.shard_gradients=true"])}
        digests = set()
        for family, model in families.items():
            reference = harness.reference_digest(self.scene, [*common, *model], family)
            digests.add(reference)
            for name, (ranks, overrides) in layouts.items():
                with self.subTest(family=family, layout=name):
                    run = self.scene.run(f"{family}-{name}", [*common, *model])
                    run.start(ranks, overrides=overrides).expect_exit(0)
                    self.assertEqual(run.digest(), reference)
            changing = self.scene.run(f"{family}-changing", [*common, *model])
            self.stop_at(changing, 3, *layouts["t2"])
            changing.start(2).expect_exit(0)
            self.assertEqual(changing.digest(), reference)
        self.assertEqual(len(digests), 3)

    def test_another_rotary_scaling_is_refused(self):
        run = self.scene.run("rotary", ["--training.steps=6"])
        run.start(1).expect_exit(0)
        start = run.start(1, overrides=["--model.rope_scaling=linear", "--model.rope_factor=4", "--training.steps=7"])
        start.expect_exit(2)
        for says in ('model.rope_scaling: "none" -> "linear"', "model.rope_factor: 1.0 -> 4.0"):
            self.assertIn(says, start.output())

    def test_two_threads(self):
        for ranks in (1, 2):
            with self.subTest(ranks=ranks):
                run = self.scene.run(f"threads-{ranks}")
                run.start(ranks, overrides=["--threads=2"]).expect_exit(0)
                self.expect_reference(run)

    def test_ranks_change_between_resumes(self):
        run = self.scene.run("changing")
        for step, ranks in ((7, 4), (17, 1), (26, 3), (38, 2)):
            self.stop_at(run, step, ranks)
        run.start(4).expect_exit(0)
        resumed = [event["resumed_from_step"] for event in run.events("start")]
        self.assertEqual(len(resumed), 5)
        self.assertEqual(resumed[0], None)
        self.assertEqual(sorted(set(resumed[1:])), resumed[1:], "every start went on from a later step")
        self.expect_reference(run)

    def test_fine_tuning_with_frozen_tensors(self):
        """From the weights of another run, embedding and the first two of four layers frozen: killed and stopped, resumed in another
        layout each time. What is frozen stays as it was, has no moments, and is in a file that all checkpoints share."""
        model = ["--model.layers=4", "--model.head=tied"]
        base = self.scene.run("base", [*model, "--training.steps=6"])
        base.start(1).expect_exit(0)
        tuning = [*model, f"--run.initialize_from={base.directory}", "--checkpoint.keep=9",
                  '--model.freeze=["embedding", "layers 0-1"]']
        reference = harness.reference_digest(self.scene, tuning, "tuned-reference")
        run = self.scene.run("tuned", tuning)
        start = run.start(2, overrides=["--parallel.pipeline=2"], faults=harness.slow_steps(8))
        self.assertTrue(start.wait_for_checkpoint(5), start.tail())
        start.kill_all()
        self.stop_at(run, 17, 3)
        run.start(4, overrides=["--parallel.pipeline=2", "--parallel.pipeline_schedule=zero_bubble"]).expect_exit(0)
        self.expect_reference(run, reference)

        weights = json.loads(harness.call_program("diff", base.directory, run.directory, "--weights", "--json").stdout)["tensors"]
        same = sorted({tensor["tensor"] for tensor in weights if tensor["differing"] == 0})
        contents = json.loads(harness.program_output("inspect", run.directory, "--json"))
        frozen = sorted(tensor["name"] for tensor in contents["tensors"] if tensor["kinds"] == ["weight"])
        self.assertEqual(same, frozen)
        self.assertEqual(frozen, sorted(name for name in {tensor["tensor"] for tensor in weights}
                                        if name.startswith(("embedding.", "layers.0.", "layers.1."))))

        alone = self.scene.run("tuned-reference")
        first, last = alone.checkpoints()[0], alone.checkpoints()[-1]
        shared = [path for path in last.iterdir() if path.name.startswith("base-")]
        self.assertEqual([(path.name, path.stat().st_ino) for path in shared],
                         [(path.name, path.stat().st_ino) for path in first.iterdir() if path.name.startswith("base-")])
        whole = harness.reference_digest(self.scene, [*tuning, "--checkpoint.delta=false"], "tuned-whole")
        self.assertEqual(whole, reference)

        def bytes_of_run(name):
            paths = (self.scene.directory / name / "checkpoints").rglob("*.hfs")
            return sum({path.stat().st_ino: path.stat().st_size for path in paths}.values())
        self.assertLess(bytes_of_run("tuned-reference"), 0.85 * bytes_of_run("tuned-whole"))

    def test_fine_tuning_with_adapters(self):
        """LoRA on the weights of another run: killed and stopped, resumed in another layout each time. The model that is adapted
        stays as it was, has no moments, and is in a file that all checkpoints share."""
        model = ["--model.layers=4", "--model.head=tied", "--parallel.tensor_lanes=2"]
        base = self.scene.run("adapted-base", [*model, "--training.steps=6"])
        base.start(1).expect_exit(0)
        tuning = [*model, f"--run.initialize_from={base.directory}", "--checkpoint.keep=9", "--lora.rank=4", "--lora.alpha=8"]
        reference = harness.reference_digest(self.scene, tuning, "adapted-reference")
        run = self.scene.run("adapted", tuning)
        start = run.start(2, overrides=["--parallel.pipeline=2"], faults=harness.slow_steps(8))
        self.assertTrue(start.wait_for_checkpoint(5), start.tail())
        start.kill_all()
        self.stop_at(run, 17, 2, ["--parallel.tensor=2"])
        run.start(3).expect_exit(0)
        self.expect_reference(run, reference)

        weights = json.loads(harness.call_program("diff", base.directory, run.directory, "--weights", "--json").stdout)["tensors"]
        adapters = {tensor["tensor"] for tensor in weights if ".lora_" in tensor["tensor"]}
        self.assertEqual(len(adapters), 4 * 7 * 2)
        of_model = [tensor for tensor in weights if tensor["tensor"] not in adapters]
        self.assertGreater(len(of_model), 20)
        self.assertEqual([tensor for tensor in of_model if tensor["differing"] != 0], [])
        contents = json.loads(harness.program_output("inspect", run.directory, "--json"))["tensors"]
        self.assertEqual({tensor["name"] for tensor in contents if tensor["kinds"] != ["weight"]}, adapters)

        alone = self.scene.run("adapted-reference")
        losses = [event["loss"] for event in alone.events("step")]
        self.assertLess(losses[-1], losses[0])
        first, last = alone.checkpoints()[0], alone.checkpoints()[-1]
        shared = [path for path in last.iterdir() if path.name.startswith("base-")]
        self.assertEqual([(path.name, path.stat().st_ino) for path in shared],
                         [(path.name, path.stat().st_ino) for path in first.iterdir() if path.name.startswith("base-")])

    def test_another_freeze_list_is_refused(self):
        run = self.scene.run("frozen", ["--training.steps=6"])
        run.start(1, overrides=["--model.freeze=embedding"]).expect_exit(0)
        start = run.start(1, overrides=["--model.freeze=layer 1", "--training.steps=7"])
        start.expect_exit(2)
        self.assertIn('model.freeze: ["embedding"] -> ["layer 1"]', start.output())

    @harness.full
    def test_recompute_changes_between_resumes(self):
        """Less memory, said before the run and by every start of it, and the same bits."""
        run = self.scene.run("recompute")
        planned = []
        for step, mode in ((7, "none"), (17, "selective"), (26, "full")):
            start = self.stop_at(run, step, 2, [f"--training.recompute={mode}"])
            planned.append(bytes_of(re.search(r"tokens per step, ([\d.]+ \w+) per rank", start.output())[1]))
        # What a start says has the scratch memory of its products in it; check, below, has not.
        self.assertGreater(planned[0], planned[1])
        self.assertGreater(planned[1], planned[2])
        run.start(3, overrides=["--training.recompute=full"]).expect_exit(0)
        self.expect_reference(run)
        line = re.search(r"activations +(.*)", harness.program_output("check", *run.train_arguments()[2:]))[1]
        kept = {mode: bytes_of(size) for size, mode in re.findall(r'([\d.]+ \w+)[^"]*"(\w+)"', line)}
        self.assertGreater(kept["none"], kept["selective"])
        self.assertGreater(kept["selective"], kept["full"])

    def test_stop_after(self):
        run = self.scene.run("stop-after")
        run.start(2, overrides=["--run.stop_after=1ms"]).expect_exit(75)  # one step, because time is up at once
        self.assertEqual(run.newest_step(), 1)
        run.start(3).expect_exit(0)
        self.expect_reference(run)

    def test_stop_after_is_in_time(self):
        run = self.scene.run("in-time", ["--training.steps=1000000"])
        limit_s = 12 if harness.SANITIZED else 3  # more than two steps
        slow = harness.slow_steps(2, count=200, milliseconds=60)  # others need the processor meanwhile
        run.start(2, overrides=[f"--run.stop_after={limit_s}s"], faults=slow).expect_exit(75, limit_s + 20)
        # By its own clock, because mpirun takes its time to come and go: the step before the one that it stopped behind was begun
        # when there still was time for both.
        (begun,), steps = run.events("start"), run.events("step")
        begun_us = begun["time_us"] - 1e3 * sum(begun[part] for part in ("join_ms", "worker_ms", "state_ms", "gemm_peak_ms"))
        last_but_one = steps[-2]
        self.assertLess(last_but_one["time_us"] + 1e3 * last_but_one["step_duration_ms"], begun_us + 1e6 * limit_s)
        self.assertGreater(run.newest_step(), 1)

    def test_terminated_alone(self):
        run = self.scene.run("terminated")
        start = run.start(1, faults=harness.slow_steps(13))
        self.assertTrue(start.wait_for_step(12))
        start.signal(signal.SIGTERM)
        start.expect_exit(75)
        self.assertGreaterEqual(run.newest_step(), 12)
        run.start(2).expect_exit(0)
        self.expect_reference(run)

    def test_terminated_mpirun(self):
        """mpirun kills the ranks half a second after SIGTERM; whether the save is done by then is the machine's matter."""
        run = self.scene.run("terminated-mpirun")
        start = run.start(2, faults=harness.slow_steps(14, count=30))
        self.assertTrue(start.wait_for_step(12) and start.wait_for_checkpoint(10), start.tail())
        start.signal(signal.SIGTERM)
        start.expect_failure(20)
        harness.expect_no_processes(run)
        self.assertGreaterEqual(harness.expect_whole_checkpoints(run, 10), 10)
        run.start(3).expect_exit(0)
        self.expect_reference(run)

    @harness.full
    def test_every_dispatch_path(self):
        """Every rung of the processor, forced: products have bits of their own on each, whatever the ranks and threads."""
        isas = ("portable", "avx2", "avx512", "avx512_bf16", "amx", "auto")
        for precision, style in (("fp32", []), ("bf16", BF16_GPT2)):
            digests = {}

            def train(isa):
                overrides = ["--training.steps=8", f"--kernels.isa={isa}", *style]
                straight = self.scene.run(f"{isa}-{precision}", overrides)
                start = straight.start(1, overrides=["--threads=1"])
                if start.wait() == 2 and "this processor has" in start.output():
                    return
                start.expect_exit(0)
                digests[isa] = straight.digest()
                split = self.scene.run(f"{isa}-{precision}-split", overrides)
                split.start(2, overrides=["--run.stop_after=1ms"]).expect_exit(75)
                split.start(3, overrides=["--threads=2"]).expect_exit(0)
                self.expect_reference(split, digests[isa])

            for isa, complaint in zip(isas, harness.complaints(train, [(isa,) for isa in isas], at_once=2)):
                with self.subTest(isa=isa, precision=precision):
                    self.assertIsNone(complaint)
            digests = {isa: digests[isa] for isa in isas if isa in digests}
            self.assertGreaterEqual(len(digests), 2, "portable and the processor's own, at the least")
            self.assertEqual(digests["auto"], list(digests.values())[-2], "the highest rung is what a run takes by itself")
            if precision == "fp32":
                vectors = [digest for isa, digest in digests.items() if isa != "portable"]
                self.assertEqual(len(set(vectors)), 1, "the vectors of every processor give the same bits")

    @harness.full
    def test_a_resume_on_another_processor_speaks_up_where_bits_may_differ(self):
        """fp32 has the bits of every processor with vectors; products of bf16 and those of oneDNN are the instruction's own."""
        for precision, style, isa, told in (("fp32", [], "avx2", ""), ("fp32", [], "portable", "cpu, oneDNN "),
                                            ("bf16", BF16_GPT2, "portable", "cpu, oneDNN ")):
            with self.subTest(precision=precision, isa=isa):
                run = self.scene.run(f"moved-{precision}-{isa}", ["--training.steps=8", *style])
                stopped = run.start(1, overrides=["--run.stop_after=1ms", f"--kernels.isa={isa}"])
                if stopped.wait() == 2 and "this processor has" in stopped.output():
                    continue
                stopped.expect_exit(75)
                again = run.start(1)
                again.expect_exit(0)
                made_on = re.findall(r'resume: made on "(.*?)", now on "cpu', again.output())
                self.assertEqual(len(made_on), 1 if told else 0, again.output())
                self.assertTrue("".join(made_on).startswith(told), made_on)

    @harness.full
    def test_gpt2_style_in_bf16(self):
        reference = harness.reference_digest(self.scene, BF16_GPT2, "bf16-reference")
        self.assertNotEqual(reference, self.reference)
        run = self.scene.run("bf16", BF16_GPT2)
        self.stop_at(run, 20, 3)
        run.start(2, overrides=["--threads=2"]).expect_exit(0)
        self.expect_reference(run, reference)


if __name__ == "__main__":
    harness.main()
