"""Whole runs on a GPU: the same bits twice and after a kill, and the losses of the CPU. With HOLDFAST_CUDA_MODULE naming the
emulator (tests/cuda_emulator) the same on that, much smaller. Exit code 77, with a sentence, where there is no GPU.
"""
import math
import os
import sys
import unittest
from dataclasses import dataclass

import harness

EMULATED = "emulated" in os.environ.get("HOLDFAST_CUDA_MODULE", "")


@dataclass
class Size:
    model: list
    resumed_steps: int   # of a run that is killed and started again
    checkpoint_every: int
    # After its vote: that step and those since the checkpoint are computed again. Behind two saves, of which the second cannot
    # begin before the first is whole.
    killed_in_step: int
    curve_steps: int
    patience_s: int
    seeds: tuple = (1,)  # of the runs whose losses are compared: few steps of one run say little about the noise


FULL = Size(model=["--model.layers=2", "--model.width=256", "--training.sequence_length=256", "--training.microbatch_size=4",
                   "--training.microbatches_per_lane=1", "--parallel.lanes=2",
                   # So gentle that training does not magnify what rounding does.
                   "--optimizer.learning_rate=5e-4", "--optimizer.warmup_steps=20"],
            resumed_steps=50, checkpoint_every=20, killed_in_step=47, curve_steps=200, patience_s=600)
# Every thread of a GPU takes its turn on the CPU.
SMALL = Size(model=["--model.layers=1", "--model.heads=1", "--model.kv_heads=1", "--model.width=64",
                    "--training.sequence_length=16", "--training.microbatch_size=2", "--training.microbatches_per_lane=1",
                    "--parallel.lanes=2"],
             resumed_steps=6, checkpoint_every=2, killed_in_step=5, curve_steps=12, patience_s=120, seeds=tuple(range(1, 9)))
SIZE = SMALL if EMULATED else FULL

# Of two bf16 runs that round in other places, each as far from fp32 as the noise and in its own direction, the difference
# is sqrt(2) of it; docs/measurements_archive.md has how far apart two such runs on the CPU are.
NOISE_SHARE_BF16 = 2.0
# fp32 rounds 2^16 times finer.
NOISE_SHARE_FP32 = 0.01


def text_of_repository():
    """What people wrote here, English and C++: a text that every copy of the tree has."""
    folders = ["docs", "runtime", "kernels", "parallel", "checkpoint", "tests"]
    paths = [path for folder in folders for path in (harness.ROOT / folder).rglob("*") if path.suffix in (".md", ".h", ".cc", ".cu")]
    return b"".join(path.read_bytes() for path in sorted(paths))


def root_mean_square(values):
    return math.sqrt(sum(value * value for value in values) / len(values))


class GpuTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scene = harness.Scene()
        cls.addClassCleanup(cls.scene.close)
        cls.scene.text.write_bytes(text_of_repository())

    def run_of(self, name, device, precision, steps):
        settings = [f"--device={device}", f"--training.precision={precision}", f"--training.steps={steps}",
                    f"--checkpoint.every_steps={SIZE.checkpoint_every}", "--evaluation.every_steps=0", *SIZE.model]
        return self.scene.run(f"{name}-{precision}", settings)

    def losses(self, name, device, precision):
        """Of all steps, for each seed one run after the other."""
        losses = []
        for seed in SIZE.seeds:
            run = self.run_of(f"{name}-{seed}", device, precision, SIZE.curve_steps)
            run.start(1, overrides=["--checkpoint.every_steps=1000", f"--run.seed={seed}"]).expect_exit(0, SIZE.patience_s)
            losses += [event["loss"] for event in run.events("step")]
        self.assertEqual(len(losses), SIZE.curve_steps * len(SIZE.seeds))
        return losses

    def test_same_bits_twice_and_after_a_kill(self):
        for precision in ("bf16", "fp32"):
            with self.subTest(precision):
                digests = []
                for name in ("one", "two"):
                    run = self.run_of(name, "cuda", precision, SIZE.resumed_steps)
                    run.start(1).expect_exit(0, SIZE.patience_s)
                    digests.append(run.digest())
                self.assertEqual(digests[0].splitlines()[0], f"step {SIZE.resumed_steps}")
                self.assertEqual(digests[1], digests[0])

                killed = self.run_of("killed", "cuda", precision, SIZE.resumed_steps)
                faults = f"step.after_vote@{SIZE.killed_in_step}=kill"
                killed.start(1, faults=faults).expect_exit(-9, SIZE.patience_s)
                self.assertLess(killed.newest_step(), SIZE.killed_in_step)
                output = killed.start(1).expect_exit(0, SIZE.patience_s)
                self.assertIn("resuming from", output)
                self.assertEqual(killed.digest(), digests[0])
                replayed = harness.program_output("replay", killed.directory, f"--step={SIZE.killed_in_step}")
                self.assertTrue(replayed.endswith("comparison same bits\n"), replayed)

    def test_losses_are_the_cpus_but_for_the_noise_of_bf16(self):
        """The noise is how far rounding to bf16 moves the CPU's own losses, as a root mean square over all steps."""
        cpu = {precision: self.losses("cpu", "cpu", precision) for precision in ("fp32", "bf16")}
        noise = root_mean_square([a - b for a, b in zip(cpu["bf16"], cpu["fp32"])])
        self.assertLess(cpu["fp32"][-1], cpu["fp32"][0], "it learns")
        print(f"losses {cpu['fp32'][0]:.4f} to {cpu['fp32'][-1]:.4f} in {SIZE.curve_steps} steps; noise of bf16 {noise:.2e}")
        for precision, share in (("fp32", NOISE_SHARE_FP32), ("bf16", NOISE_SHARE_BF16)):
            with self.subTest(precision):
                gpu = self.losses("gpu", "cuda", precision)
                distance = root_mean_square([a - b for a, b in zip(gpu, cpu[precision])])
                print(f"{precision}: {distance:.2e} from the CPU's, {distance / noise:.3f} of the noise, at most {share}")
                self.assertLessEqual(distance, share * noise)


def main():
    with harness.Scene() as scene:
        checked = harness.call_program("check", scene.config, "--device=cuda")
    if checked.returncode != 0:
        print("skipped:", checked.stdout.splitlines()[-1])
        sys.exit(77)
    harness.main(at_once=1)


if __name__ == "__main__":
    main()
