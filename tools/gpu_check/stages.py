"""What gpu-check does, in the order of what it is worth: the first ten minutes answer the most."""
import os
from dataclasses import dataclass
from typing import Callable

from . import build, faults, kernels, nccl, peers, sanitizers, tests, training


@dataclass(frozen=True)
class Item:
    """One question. `deadline_s` ends it, `least_s` is the least time with which it is begun at all."""
    name: str
    stage: int
    asks: str
    run: Callable  # (session, record): puts what it finds into the record; Failure when it did not pass
    deadline_s: float
    least_s: float = 10
    wrong_if: str = ""


# Seconds of a stage, whatever its items would take.
STAGE_DEADLINES_S = {1: 570, 2: 900, 3: 1500}
# The first stage is planned for 16 processors; fewer build for longer, and the stage lasts as much longer.
BUILD_S = 300
SLOW_BUILD_S = BUILD_S * max(0, 16 // (os.cpu_count() or 1) - 1)
STAGE_TITLES = {1: "is it right, how fast is it, where does a step go, and what does PyTorch need",
                2: "all tests, NCCL, faults, ranks that share the GPU, snapshots",
                3: "attention and all kernels at real shapes, large models, profiles, sanitizers"}

ITEMS = [
    Item("build", 1, "builds for this GPU what the items need", build.build, BUILD_S + SLOW_BUILD_S, 20,
         "it takes more than 90 s on 16 processors, or a kernel spills registers"),
    Item("check", 1, "what the program finds here, and is a product by wgmma right", tests.program, 60, 5,
         "the program does not take the GPU, or a product by wgmma is wrong"),
    Item("smoke", 1, "does every kernel that a step consists of compute what its reference computes", tests.smoke, 90, 10,
         "any of these tests fails"),
    Item("gpt2", 1, "tokens/s of GPT-2 124M, 64 x 1024 tokens, one microbatch a step", training.throughput("gpt2"), 120, 20,
         "ms of a step are outside the interval that tools/predict gives"),
    Item("gpt2-ops", 1, "where the time of that step goes, op by op, beside the limit of each op", training.ops("gpt2"), 90, 20,
         "an op takes more than 1.3 times, or less than 0.7 times, what tools/predict says"),
    Item("bits", 1, "do two runs of that model have the same bits", training.twice, 90, 20,
         "a loss, a gradient norm or a data digest differs in any step"),
    Item("head-rows", 1, "what the chunk of the LM head costs", training.head_rows, 120, 30,
         "8,192 rows save less than half, or more than 1.5 times, of what tools/predict says against 256 rows"),
    Item("graphs", 1, "what CUDA graphs save, with the same bits", training.graphs("gpt2", -0.5, 4), 90, 30,
         "bits differ, graphs cost time, or they save more than 4 ms of a step"),
    Item("default-config", 1, "tokens/s of GPT-2 124M as a user starts it: its lanes, its saves", training.default_config, 120, 30,
         "saves change a bit or cost a usual step more than 1 %, or lanes cost more than 2 %"),
    Item("small-batch", 1, "GPT-2 124M with 4 x 1024 tokens a step, without graphs and with them", training.graphs("gpt2-small", 0.5, 5), 60,
         20, "bits differ, or graphs save less than 0.5 or more than 5 ms of a step"),
    Item("torch-gpt2", 1, "GPT-2 124M in PyTorch on this GPU, if there is one", peers.gpt2, 150, 30,
         "torch.compile is faster than we are"),
    Item("llama-1b", 1, "tokens/s of Llama 1B, 8 x 1024 tokens, 16 microbatches a step", training.throughput("llama-1b"), 120, 30,
         "ms of a step are outside the interval that tools/predict gives"),
    Item("gpt2-x8", 1, "tokens/s of GPT-2 124M with 8 microbatches a step, as its peers train it",
         training.throughput("gpt2-accumulated"), 90, 20, "ms of a step are outside the interval that tools/predict gives"),
    Item("torch-attention", 1, "PyTorch's attention at our shapes, flash and cuDNN", peers.attention, 90, 20,
         "flash attention is slower than our own attention at a head of 128"),
    Item("torch-products", 1, "PyTorch's matrix products at our shapes", peers.products, 60, 15,
         "a product is more than 10 % faster by torch.mm than in gpt2-ops"),

    Item("faults", 2, "a trap, an illegal address, an endless kernel: who is named, how soon, are the bits the same",
         faults.gpu_faults, 300, 60, "an endless kernel is noticed before 4 s or after 8 s, nobody is named, or a digest differs"),
    Item("shared-gpu", 2, "2 and 4 ranks on this GPU, killed or broken, go on with the same bits", faults.shared_gpu, 300, 60,
         "a digest differs, or the next step comes more than 10 s after the fault"),
    Item("changes", 2, "growth, eviction, roll-back, slices and stages that die, more lanes: are the bits the same", faults.changes, 300, 60,
         "a digest differs, nobody is named, or the run does not grow, evict or go back"),
    Item("nccl-ranks", 2, "2 and 4 ranks on this GPU over NCCL 2.30.3 or newer, one killed before or in an exchange", faults.nccl_ranks, 300, 60,
         "a digest differs, a survivor ends by CUDA error 700, or the next step comes more than 3 s after the fault"),
    Item("stall", 2, "how long training waits for a snapshot and for a save, per GB of state", faults.stall, 150, 30,
         "a RAM snapshot costs more than 0.05 s per GB"),
    Item("build-tests", 2, "builds the other tests", build.build_tests, 240, 30),
    Item("nccl", 2, "NCCL with one rank, made again 50 times, memory and descriptors watched", nccl.one_rank, 150, 30,
         "memory or descriptors grow, or an abort does not return"),
    Item("tests", 2, "all other tests with the label gpu", tests.labelled, 420, 60, "any of them fails or is skipped"),
    Item("parity", 2, "are fp32 losses those of the CPU", training.parity("fp32"), 120, 30, "a loss is further than 1e-3 from the CPU's"),
    Item("bf16-parity", 2, "are bf16 losses those of the CPU, with tensor cores in attention and products", training.parity("bf16"), 120, 30,
         "a loss is further than 5e-3 from the CPU's"),
    Item("tolerance", 2, "what all of fault tolerance costs GPT-2 124M, beside none of it in the same call", training.tolerance, 150, 60,
         "bits differ, or it costs more than 1 %"),

    Item("attention", 3, "attention alone: heads of 64 and 128, 1K to 16K tokens, grouped, masked", kernels.attention, 180, 30,
         "forward is below 190 or above 360 TFLOP/s, backward (5 products) below 165 or above 250 at 1K to 8K tokens"),
    Item("attention-mma5", 3, "attention backward with 5 products of tiles, two ways, beside the one with 7, in turns",
         training.attention_beside("attention_backward", "cuda_mma", "cuda_mma5", "cuda_mma5_tiles", tested_in_a_rehearsal="cuda_mma5_tiles"),
         300, 60, "a test fails, bits differ, or cuda_mma5 saves less than half, or more than 1.5 times, of what tools/predict says"),
    Item("attention-wgmma", 3, "attention by wgmma and tensor copies, forward and backward, beside mma.sync, in turns; for compute capability 9.0",
         training.one_after_another(
             training.attention_beside("attention_forward", "cuda_mma", "cuda_wgmma", tested_in_a_rehearsal="cuda_wgmma"),
             training.attention_beside("attention_backward", "cuda_mma", "cuda_wgmma", "cuda_wgmma_tiles", tested_in_a_rehearsal="cuda_wgmma_tiles")),
         500, 60, "a test fails or hangs, bits differ, or it saves less than half, or more than 1.5 times, of what tools/predict says"),
    Item("algorithms", 3, "all algorithms of cuBLASLt for the products of GPT-2 124M, and steps with the fastest", training.algorithms,
         400, 60, "bits differ from one turn to the next, or the plan saves less than 1.0, or more than 4.5, ms of a step"),
    Item("llama-8b", 3, "tokens/s of Llama 8B, 1 x 8192 tokens, everything recomputed", training.throughput("llama-8b"), 300, 60,
         "ms of a step are outside the interval that tools/predict gives"),
    Item("llama-8b-ops", 3, "where the time of that step goes", training.ops("llama-8b"), 300, 60,
         "an op takes more than 1.3 times, or less than 0.7 times, what tools/predict says"),
    Item("gpt2-1558m", 3, "tokens/s of GPT-2 1558M, 8 x 1024 tokens, 16 microbatches a step", training.throughput("gpt2-1558m"), 200,
         40, "ms of a step are outside the interval that tools/predict gives"),
    Item("gpt2-1558m-ops", 3, "where the time of that step goes", training.ops("gpt2-1558m"), 200, 40,
         "an op takes more than 1.3 times, or less than 0.7 times, what tools/predict says"),
    Item("kernels", 3, "every op at the shapes of real models, beside its limit", kernels.all_ops, 300, 60,
         "an op that only moves memory is below 70 % of the rate of a copy"),
    Item("profile", 3, "what Nsight Compute says about the kernels that take most of a step", kernels.profile, 240, 40,
         "a kernel has less occupancy, or more traffic, than docs/cuda_kernels.md lets expect"),
    Item("memcheck", 3, "no kernel of a chosen few touches memory that is not its own", sanitizers.check("memcheck"), 240, 40,
         "any error is reported"),
    Item("racecheck", 3, "no such kernel has a race in shared memory", sanitizers.check("racecheck"), 480, 40,
         "any hazard is reported"),
    Item("initcheck", 3, "no such kernel reads memory of the device that nobody has written", sanitizers.check("initcheck"), 240, 40,
         "any error is reported"),
    Item("synccheck", 3, "no such kernel waits at a barrier that others do not reach", sanitizers.check("synccheck"), 240, 40,
         "any error is reported"),
]
BY_NAME = {item.name: item for item in ITEMS}


def stage_deadline_s(stage):
    return STAGE_DEADLINES_S[stage] + (SLOW_BUILD_S if stage == 1 else 0)


def chosen(stages, names):
    """The items of a call, in order. Items that are named run alone; else those of the stages, with the build before them."""
    if names:
        return [item for item in ITEMS if item.name in names]
    return [item for item in ITEMS if not stages or item.stage in stages or item.name == "build"]


def listing():
    lines = []
    for stage, title in STAGE_TITLES.items():
        lines.append(f"stage {stage} (at most {stage_deadline_s(stage):.0f} s): {title}")
        lines += [f"  {item.name:16} {item.deadline_s:4.0f} s  {item.asks}" for item in ITEMS if item.stage == stage]
    return "\n".join(lines)
