"""What each op's CUDA implementation launches: how many kernels, and what each of them moves, multiplies and waits for.

Read from kernels/cuda/*.cu; the docstring of each function names the file. A new op, or one whose implementation changes,
changes here. The shapes and the bytes that an op must move come from the program (holdfast plan --ops --json).
"""
from dataclasses import dataclass
from math import ceil

from . import rooflines as r

BYTES = {"fp32": 4, "bf16": 2}


@dataclass(frozen=True)
class Pass:
    """One kernel. It takes as long as the slowest of its limits, and then what it waits for."""
    bytes: float = 0.0
    flops: float = 0.0
    flops_rate: float = 1.0
    bytes_rate: float = 0.0  # 0: streaming
    instructions: float = 0.0
    waiting_s: float = 0.0

    def seconds(self, device):
        rate = self.bytes_rate or device.streaming
        return max(r.SHORTEST_KERNEL_S, self.flops / self.flops_rate, self.bytes / rate,
                   self.instructions / device.issue) + self.waiting_s


@dataclass(frozen=True)
class Call:
    """An op of the program's list, as the functions below see it."""
    op: str
    arguments: dict
    flops: float
    bytes_read: float
    bytes_written: float
    tokens_are_pinned: bool
    is_token_copy: bool = False

    def __getattr__(self, name):
        try:
            return self.arguments[name]
        except KeyError:
            raise AttributeError(name) from None

    @property
    def bytes_moved(self):
        return self.bytes_read + self.bytes_written


KERNELS = {}


def kernels_of(*names):
    def register(function):
        for name in names:
            KERNELS[name] = function
        return function
    return register


@kernels_of("matmul")
def matmul(call, device):
    """cublaslt_matmul.cc: one kernel, and one that adds the parts where the sum is cut. Times the derivative of GELU: in bf16 the
    product itself at its end, in fp32 a pass over its result."""
    m, n, k = call.m, call.n, call.k
    if min(m, n, k) == 0:
        return [Pass()]
    if call.dtype == "fp32":
        product = [Pass(call.bytes_moved, call.flops, r.MATMUL_FLOPS_FP32, waiting_s=r.MATMUL_RAMP_S)]
        return product + ([Pass(3 * 4 * m * n, instructions=r.GELU_SLOPE_INSTRUCTIONS * m * n)] if call.gelu_of else [])
    rate = r.matmul_flops(min(m, n, k)) * (r.WEIGHT_GRADIENT_SHARE if call.transpose_a else 1.0)
    tiles = ceil(m / r.MATMUL_TILE_M) * ceil(n / r.MATMUL_TILE_N)
    parts = max(1, min(ceil(device.processors / tiles), k // r.MATMUL_PART_K_MIN, r.MATMUL_WORKSPACE_BYTES // (4 * m * n)))
    if parts == 1:
        of_gelu_s = r.LIBRARY_GELU_SLOPE_INSTRUCTIONS * m * n / device.issue if call.gelu_of else 0.0
        return [Pass(call.bytes_moved, call.flops, rate, waiting_s=r.MATMUL_RAMP_S + of_gelu_s)]
    of_parts = parts * m * n * 4
    result = m * n * BYTES[call.dtype_c] * (2 if call.accumulate else 1)
    return [Pass(call.bytes_moved - result + of_parts, call.flops, rate, waiting_s=r.MATMUL_RAMP_S), Pass(of_parts + result)]


@kernels_of("bias_gradient")
def bias_gradient(call, device):
    """bias_gradient.cu: partial sums of groups of rows, then column_sums.cu."""
    return [Pass(call.bytes_read), Pass(waiting_s=r.COLUMN_SUMS_S - r.SHORTEST_KERNEL_S)]


@kernels_of("layernorm_backward", "rmsnorm_backward")
def norm_backward(call, device):
    """norm_backward.cu: one pass over the rows, then column_sums.cu."""
    return [Pass(call.bytes_moved), Pass(waiting_s=r.COLUMN_SUMS_S - r.SHORTEST_KERNEL_S)]


@kernels_of("layernorm_forward", "rmsnorm_forward", "add", "accumulate", "tree_sum", "cast", "square_sum", "adamw", "lion", "digest",
            "optimizer_digest", "cross_entropy_join")
def streaming(call, device):
    """norm_forward.cu, elementwise.cu, tree_sum.cu, square_sum.h, optimizer.cu, digest.cu: one kernel, every operand once."""
    return [Pass(call.bytes_moved)]


@kernels_of("residual_layernorm", "residual_rmsnorm")
def residual_norm(call, device):
    """tree_sum.cu, then norm_forward.cu, which reads the sum again."""
    of_norm = 2 * call.rows * call.width * BYTES[call.dtype]
    return [Pass(call.bytes_moved - of_norm / 2), Pass(of_norm)]


@kernels_of("fill_zero")
def fill_zero(call, device):
    """elementwise.cu: cudaMemsetAsync."""
    return [Pass(call.bytes_written)]


@kernels_of("copy_rows")
def copy_rows(call, device):
    """elementwise.cu: one kernel, every element once."""
    return [Pass(call.bytes_moved, bytes_rate=device.copying)]


@kernels_of("copy")
def copy(call, device):
    """elementwise.cu: cudaMemcpyAsync, from the host where it is a microbatch's tokens."""
    if call.is_token_copy:
        return [Pass(call.bytes_written, bytes_rate=r.PCIE_BYTES)]
    return [Pass(call.bytes_moved, bytes_rate=device.copying)]


@kernels_of("embedding_forward")
def embedding_forward(call, device):
    """embedding.cu: one kernel, whose blocks read their token first."""
    return [Pass(call.bytes_moved, waiting_s=call.rows * r.PINNED_TOKEN_S if call.tokens_are_pinned else 0.0)]


@kernels_of("embedding_backward")
def embedding_backward(call, device):
    """embedding.cu and sorted_tokens.cu: sort in tiles, merge, add to the table, add to the positions."""
    tiles = ceil(call.rows / r.SORT_TILE_ROWS)
    rows_bytes = call.rows * call.width * BYTES[call.dtype]
    serial = call.rows * r.HOT_TOKEN_SHARE * r.HOT_TOKEN_ROW_S
    table = Pass(call.bytes_moved)
    passes = [Pass(waiting_s=r.SORT_TILES_S)]
    if tiles > 1:
        passes.append(Pass(waiting_s=(tiles - 1) * r.MERGE_TILE_S))
    passes.append(Pass(call.bytes_moved, waiting_s=max(0.0, serial - table.seconds(device))))
    return passes + ([Pass(rows_bytes)] if call.positions_gradient else [])


@kernels_of("rotary")
def rotary(call, device):
    """rotary.cu: blocks of 128 threads for the pairs of a row, the last of which is not full."""
    threads = call.heads * call.head_size // 2 // (16 // BYTES[call.dtype])
    used = threads / (ceil(threads / 128) * 128)
    return [Pass(call.bytes_moved, bytes_rate=device.streaming * max(used, 0.6))]


def attention_rate(call, direction, rates=r.ATTENTION_FLOPS):
    """Of kernels by tensor cores where they take the call."""
    points = rates.get((direction, call.head_size)) if call.dtype == "bf16" else None
    return r.ATTENTION_FLOPS_GENERAL if points is None else r.interpolated(points, call.sequence_length)


@kernels_of("attention_forward")
def attention_forward(call, device):
    """attention_mma.cu; attention.cu for other head sizes and fp32."""
    return [Pass(call.bytes_moved, call.flops, attention_rate(call, "forward"))]


def attention_forward_wgmma(call, device):
    """sm_90a/attention_wgmma.cu. No GPU has run it."""
    return [Pass(call.bytes_moved, call.flops, attention_rate(call, "forward", r.ATTENTION_WGMMA_FLOPS))]


@kernels_of("attention_backward")
def attention_backward(call, device):
    """attention_mma_backward.cu: deltas, then the pass for keys and values, then the one for queries."""
    rate = attention_rate(call, "backward")
    out = call.batch * call.sequence_length * call.heads * call.head_size * BYTES[call.dtype]
    factor = r.PINNED_FIRST_KEY_FACTOR if call.first_key and call.tokens_are_pinned else 1.0
    keys = factor * call.flops * r.ATTENTION_KEY_PASS_SHARE
    return [Pass(2 * out), Pass(call.bytes_moved, keys, rate), Pass(call.bytes_moved, factor * call.flops - keys, rate)]


def query_sum_bytes(call, tile_keys):
    """Of the fp32 sums of gradients of queries that go from tile to tile of keys: written and read before each tile but a query's last."""
    elements = call.batch * call.sequence_length * call.heads * call.head_size
    return 2 * 4 * elements * (ceil(call.sequence_length / tile_keys) - 1) / 2


def attention_backward_mma5(call, device):
    """attention_mma5.cu: deltas, then one pass with 5 products for 7, whose sums go through the L2 cache.
    Beside its bytes and products nothing is counted: no GPU has run it."""
    deltas, keys, queries = attention_backward(call, device)
    sums = query_sum_bytes(call, r.ATTENTION_MMA5_KEYS[call.head_size])
    return [deltas, Pass(sums, (keys.flops + queries.flops) * r.ATTENTION_MMA5_PRODUCTS, keys.flops_rate, bytes_rate=r.L2_BYTES)]


def attention_backward_wgmma(call, device):
    """sm_90a/attention_wgmma_backward.cu: the passes of cuda_mma5. No GPU has run it."""
    deltas, keys, queries = attention_backward(call, device)
    rate = attention_rate(call, "backward", r.ATTENTION_WGMMA_FLOPS)
    return [deltas, Pass(query_sum_bytes(call, r.ATTENTION_WGMMA_KEYS), keys.flops + queries.flops, rate, bytes_rate=r.L2_BYTES)]


# Implementations that no run takes unless it is asked to: {(op, name): function}.
ASKED_FOR = {("attention_forward", "cuda_wgmma"): attention_forward_wgmma, ("attention_backward", "cuda_mma5"): attention_backward_mma5,
             ("attention_backward", "cuda_wgmma"): attention_backward_wgmma}


@kernels_of("gelu_forward")
def gelu_forward(call, device):
    """activation.cu: memory or instructions, whichever is more."""
    return [Pass(call.bytes_moved, instructions=r.GELU_FORWARD_INSTRUCTIONS * call.count)]


@kernels_of("swiglu_forward", "swiglu_backward")
def swiglu(call, device):
    """activation.cu: memory or instructions, whichever is more."""
    each = r.SWIGLU_FORWARD_INSTRUCTIONS if call.op == "swiglu_forward" else r.SWIGLU_BACKWARD_INSTRUCTIONS
    return [Pass(call.bytes_moved, instructions=each * call.rows * call.feed_forward)]


@kernels_of("cross_entropy", "cross_entropy_slice", "cross_entropy_gradient")
def cross_entropy(call, device):
    """cross_entropy.cu: a block per row; the second read of the logits comes from the L2 cache."""
    return [Pass(call.bytes_moved, waiting_s=call.rows * r.PINNED_TARGET_S if call.tokens_are_pinned else 0.0)]


@kernels_of("loss_sum")
def loss_sum(call, device):
    """cross_entropy.cu: one block."""
    return [Pass(waiting_s=call.count / 8192 * r.LOSS_SUM_READS_S)]
