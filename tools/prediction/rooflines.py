"""The constants of the prediction: what a GPU can do, and what part of it each class of kernels is expected to reach.

Every constant has its source beside it:
  measured     on an H200 (docs/measurements_archive.md, "A training step on a GPU, measured"); its power cap was reached all the time
  data sheet   NVIDIA's, of the H200 SXM and the H100 SXM
  published    somebody else's measurement, which is named
  read         derived from the source of the kernel: what it reads and writes, and the instructions of its inner loop
  assumed      a usual figure for this hardware generation; nothing in the repository supports it
They describe classes of kernels and are not to be tuned until one result fits. A measurement that says otherwise changes the
constant here, with the measurement as its source.
"""
from dataclasses import dataclass
from math import log2

MICRO, NANO = 1e-6, 1e-9


@dataclass(frozen=True)
class Device:
    name: str
    peak_flops: float  # dense bf16, FLOP/s; data sheet
    memory_limit: float  # bytes/s; data sheet
    processors: int  # multiprocessors; data sheet
    memory_bytes: float  # that a program gets; assumed: what drivers report, less half a GiB for the CUDA context
    clock: float = 1.755e9  # Hz under load; assumed (boost clock of the H200 SXM 1.98 GHz)

    @property
    def streaming(self):
        """Bytes/s of a kernel that reads and writes memory once: 4.0 of 4.8 TB/s. Published: quack and cuDNN reach 77 to 90 %."""
        return self.memory_limit * 4.0 / 4.8

    @property
    def copying(self):
        """Bytes/s of a copy inside the device, read and written: 4.3 of 4.8 TB/s. Published: copies measured on an H200."""
        return self.memory_limit * 4.3 / 4.8

    @property
    def issue(self):
        """Instructions of single threads per second: 4 warps a clock on every multiprocessor, 95 % of it. Read and assumed."""
        return self.processors * 4 * 32 * self.clock * 0.95


DEVICES = {
    "H200": Device("H200", 989e12, 4.8e12, 132, 139.8 * 2**30),
    "H100": Device("H100", 989e12, 3.35e12, 132, 78.6 * 2**30),
}

# ---- matrix products --------------------------------------------------------------------------------------------------------
# cuBLASLt's first heuristic answer, bf16. Measured: all products of a step of GPT-2 124M together, 714 TFLOP/s, and torch.mm at shapes of 1B and
# 8B models, 693 to 791. Between the two sizes, and below the smaller one, the rate follows the logarithm of the smallest of m, n and k: a
# short sum or a narrow result leaves the pipeline of a tile less time to fill.
MATMUL_SIZE_SMALL, MATMUL_FLOPS_SMALL = 768, 725e12
MATMUL_SIZE_LARGE, MATMUL_FLOPS_LARGE = 4096, 740e12
# A product with fp32 results over a long sum whose left operand is transposed in memory: a weight gradient. Read: few tiles of
# results, so the sum is cut.
WEIGHT_GRADIENT_SHARE = 0.95
# cuBLASLt's usual tile on sm_90. Read: results of fewer tiles than multiprocessors are made of parts of the sum, which are
# written as fp32 and added by a second kernel (CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE, kernels/cuda/matmul_cache.cc).
MATMUL_TILE_M, MATMUL_TILE_N, MATMUL_PART_K_MIN = 128, 256, 1024
MATMUL_WORKSPACE_BYTES = 32 << 20
MATMUL_RAMP_S = 2.0 * MICRO  # until the first tiles are multiplied and after the last ones are; assumed
# fp32 is "pedantic": no tensor cores. 67 TFLOP/s on the data sheet, three quarters of it assumed.
MATMUL_FLOPS_FP32 = 50e12

# ---- attention --------------------------------------------------------------------------------------------------------------
# FLOP/s by sequence length, products of causal pairs (2 forward, 5 backward, which computes the scores twice: 7 for 5). Measured;
# of 512 tokens assumed.
ATTENTION_FLOPS = {
    ("forward", 64): {512: 165e12, 1024: 210e12, 8192: 295e12},
    ("forward", 128): {512: 205e12, 1024: 269e12, 8192: 342e12},
    ("backward", 64): {512: 140e12, 1024: 179e12, 8192: 235e12},
    ("backward", 128): {512: 145e12, 1024: 183e12, 8192: 223e12},
}
ATTENTION_FLOPS_GENERAL = 15e12  # other head sizes and fp32, without tensor cores; measured: 16 to 22 forward, 10 to 12 backward
ATTENTION_KEY_PASS_SHARE = 4 / 7  # of the products of a backward pass; read
# kernels/cuda/attention_mma5.cu, at the rate of the products above. Read.
ATTENTION_MMA5_PRODUCTS = 5 / 7
ATTENTION_MMA5_KEYS = {64: 128, 128: 64}  # of a tile, by the size of a head
# kernels/cuda/sm_90a/attention_wgmma.cu and _backward.cu, by sequence length. Assumed, beside cuDNN's, which also use wgmma and were
# measured at the same shapes (345 and 457, 440 and 609 TFLOP/s forward; 254 and 419, 312 and 516 backward): forward half way to
# them from the kernels above; backward nine tenths of them, since it adds the gradients of queries in one order.
ATTENTION_WGMMA_FLOPS = {
    ("forward", 64): {512: 215e12, 1024: 275e12, 8192: 375e12},
    ("forward", 128): {512: 265e12, 1024: 350e12, 8192: 475e12},
    ("backward", 64): {512: 175e12, 1024: 229e12, 8192: 377e12},
    ("backward", 128): {512: 215e12, 1024: 281e12, 8192: 464e12},
}
ATTENTION_WGMMA_KEYS = 128  # of a tile; read
L2_BYTES = 5.5e12  # bytes/s of the L2 cache, read and written; published for an H100's reads

# ---- instructions per element (read: the inner loops as the assembler made them) --------------------------------------------
SIGMOID_INSTRUCTIONS = 5  # exponential and reciprocal of kernels/cuda/scalar.h
ROUND_INSTRUCTIONS = 1  # pack_bf16 of kernels/cuda/scalar.h, of two elements
GELU_FORWARD_INSTRUCTIONS = SIGMOID_INSTRUCTIONS + ROUND_INSTRUCTIONS + 9
GELU_SLOPE_INSTRUCTIONS = SIGMOID_INSTRUCTIONS + 18
# The same inside cuBLASLt: the tanh form with the GPU's instruction for tanh, after the products of a tile and not beside those of
# another. Assumed.
LIBRARY_GELU_SLOPE_INSTRUCTIONS = 12
SWIGLU_FORWARD_INSTRUCTIONS = SIGMOID_INSTRUCTIONS + ROUND_INSTRUCTIONS + 7
SWIGLU_BACKWARD_INSTRUCTIONS = SIGMOID_INSTRUCTIONS + 2 * ROUND_INSTRUCTIONS + 14

# ---- kernels that wait rather than work -------------------------------------------------------------------------------------
LAUNCH_GAP_S = 0.9 * MICRO  # between two kernels of a stream; assumed
LAUNCH_GAP_GRAPH_S = 0.2 * MICRO  # inside a CUDA graph; assumed
SHORTEST_KERNEL_S = 2.0 * MICRO  # assumed
COLUMN_SUMS_S = 4.0 * MICRO  # kernels/cuda/column_sums.cu: few blocks, several reads one after the other; read
SORT_TILES_S = 30.0 * MICRO  # kernels/cuda/sorted_tokens.cu: 78 steps of a bitonic sort with a barrier each; read
MERGE_TILE_S = 2.0 * MICRO  # for each other tile of 4,096 tokens: a binary search; read
SORT_TILE_ROWS = 4096
# kernels/cuda/embedding.cu: one block adds all rows of a token, sixteen of which are on their way at once. Read. A token of 5 % of
# a text is common: assumed.
HOT_TOKEN_SHARE, HOT_TOKEN_ROW_S = 0.05, 0.08 * MICRO
LOSS_SUM_READS_S = 0.7 * MICRO  # for each 8,192 losses, which one block reads; read

# ---- tokens and targets that kernels read from pinned memory of the host ----------------------------------------------------
# Mapped memory is not cached on the GPU: every read crosses PCIe. Only where the step's ops show no copy of a microbatch's
# tokens to the device.
PINNED_TARGET_S = 15 * NANO  # of a row of the cross-entropy, which all 32 warps of a block ask for; read: 0.5 to 8 ms for 64 K rows
PINNED_TOKEN_S = 0.7 * NANO  # of a row of the embedding: one word per block, latency hidden by other blocks; read
PINNED_FIRST_KEY_FACTOR = 7.0  # on the backward of attention with a document mask; read: 5 to 10
PCIE_BYTES = 55e9  # bytes/s of a copy from pinned memory; published for PCIe 5 x16

# ---- the end of a step ------------------------------------------------------------------------------------------------------
STEP_BOUNDARY_S = 200 * MICRO  # the vote, the update's launch, the first launches of the next step; assumed
HOST_SUM_S = 5 * NANO  # for each block of 4,096 gradients, whose squares the host adds (runtime/train/step.cc); read

# ---- how far to trust it ----------------------------------------------------------------------------------------------------
STEP_TOLERANCE, OP_TOLERANCE = 0.12, 0.30


def interpolated(points, size):
    """Of {size: value}, by the logarithm of the size; constant beyond the ends."""
    sizes = sorted(points)
    size = min(max(size, sizes[0]), sizes[-1])
    for low, high in zip(sizes, sizes[1:]):
        if size <= high:
            share = log2(size / low) / log2(high / low)
            return points[low] + share * (points[high] - points[low])
    return points[sizes[-1]]


def matmul_flops(smallest):
    """FLOP/s of a bf16 product whose smallest size this is."""
    slope = (MATMUL_FLOPS_LARGE - MATMUL_FLOPS_SMALL) / log2(MATMUL_SIZE_LARGE / MATMUL_SIZE_SMALL)
    rate = MATMUL_FLOPS_SMALL + slope * log2(smallest / MATMUL_SIZE_SMALL)
    return max(min(rate, MATMUL_FLOPS_LARGE), 0.25 * MATMUL_FLOPS_SMALL)
