"""The program on the CUDA device, emulated: a whole run alone and under mpirun, and what `holdfast check` says of it."""
import os
import unittest

import harness

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

    def test_auto_takes_the_gpu_and_check_says_so(self):
        outcome = harness.program_output("check", self.scene.config)
        self.assertIn("GPU 0: emulated device", outcome)
        self.assertRegex(outcome, r"device +yes +cuda, sm_80, 4 multiprocessors, CUDA 13\.0")


if __name__ == "__main__":
    unittest.main()
