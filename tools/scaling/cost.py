"""How long a step takes: arithmetic, tensor traffic, bubble, data traffic, stragglers. Pure functions; seconds and bytes.

Collectives cost what NCCL's own tuning table says (nccl, src/graph/tuning.cc, protocol Simple):
    ring of n ranks on h hosts: base + (n - h) * hop_nvlink + (h - 1) * hop_network + bytes * (n - 1) / n / bandwidth
A pipeline of p stages with v chunks each and m microbatches idles for (p - 1) / (v * m) of its work.
"""
from dataclasses import dataclass


@dataclass(frozen=True)
class Machine:
    name: str
    peak_flops: float              # bf16, dense
    nvlink_bandwidth: float        # of a ring inside a host, bytes/s
    network_bandwidth: float       # of one GPU's share of its host's network, bytes/s
    memory_bytes: float
    gpus_per_host: int = 8
    base_s: float = 8.4e-6
    hop_nvlink_s: float = 3.4e-6
    hop_network_s: float = 14e-6
    message_s: float = 1e-6        # to issue one of many independent messages; assumed, nobody measured it


H100 = Machine("H100", 989.4e12, 363e9, 45e9, 80e9)
# 1600 Gb/s per host; 0.9 of the link as for the H100.
A100_MOSAIC = Machine("A100", 312e12, 230e9, 22.5e9, 40e9)


@dataclass(frozen=True)
class Model:
    name: str
    layers: int
    width: int
    heads: int
    kv_heads: int
    feed_forward: int
    vocabulary: int
    sequence_length: int
    gated: bool = True             # SwiGLU: three matrices in the feed-forward, not two
    tied: bool = False

    @property
    def layer_weights(self):
        head = self.width // self.heads
        attention = self.width * (2 * self.width + 2 * self.kv_heads * head)
        return attention + (3 if self.gated else 2) * self.width * self.feed_forward

    @property
    def weights(self):
        return self.layers * self.layer_weights + (1 if self.tied else 2) * self.vocabulary * self.width

    @property
    def flops_per_token(self):
        """6 per matmul weight, the head in and the embedding's table out, and causal attention once."""
        matmul = self.layers * self.layer_weights + self.vocabulary * self.width
        return 6 * matmul + 6 * self.layers * self.width * self.sequence_length


@dataclass(frozen=True)
class Layout:
    data: int = 1
    tensor: int = 1
    pipeline: int = 1
    chunks: int = 1                # of a stage; more than one: interleaved 1F1B
    microbatches: int = 1          # of a pipeline in a step
    microbatch_size: int = 1       # sequences
    lanes_per_rank: int = 1        # each is reduced by itself: a wave
    full_recompute: bool = False
    fully_sharded: bool = False    # weights gathered layer by layer and again in backward (FSDP), else ZeRO-1

    @property
    def gpus(self):
        return self.data * self.tensor * self.pipeline

    def tokens(self, model):
        return self.data * self.microbatches * self.microbatch_size * model.sequence_length


def ring_s(machine, ranks, bytes_, stride=1):
    """Reduce-scatter or all-gather of `bytes_` over `ranks` GPUs that are `stride` apart."""
    if ranks == 1:
        return 0.0
    per_host = max(1, min(ranks, machine.gpus_per_host // stride))
    hosts = -(-ranks // per_host)
    bandwidth = machine.nvlink_bandwidth
    if hosts > 1:  # every rank of the group on a host brings its own network card
        bandwidth = min(bandwidth, per_host * machine.network_bandwidth)
    hops = (ranks - hosts) * machine.hop_nvlink_s + (hosts - 1) * machine.hop_network_s
    return machine.base_s + hops + bytes_ * (ranks - 1) / ranks / bandwidth


def exchange_s(machine, ranks, bytes_, stride=1):
    """What the lanes use: every rank sends every owner its part, and owners add in lane order. Independent messages, so
    no chain of hops, but ranks - 1 of them."""
    if ranks == 1:
        return 0.0
    per_host = max(1, min(ranks, machine.gpus_per_host // stride))
    inside = (per_host - 1) / ranks * bytes_ / machine.nvlink_bandwidth
    outside = (ranks - per_host) / ranks * bytes_ / machine.network_bandwidth
    hop = machine.hop_nvlink_s if ranks == per_host else machine.hop_network_s
    return machine.base_s + hop + (ranks - 1) * machine.message_s + max(inside, outside)


def blocks_s(machine, ranks, bytes_, buckets, block):
    """The same with parallel.lane_block: lanes are summed inside hosts, in blocks of so many neighbours, and the sums of one
    bucket travel between hosts in the exchange in which the next one travels inside them
    (parallel/data/lane_exchange.h). The first has nothing beside it inside, and the last nothing between."""
    if ranks <= block:
        return buckets * exchange_s(machine, ranks, bytes_)
    inside = exchange_s(machine, block, bytes_)
    between = exchange_s(machine, ranks // block, bytes_ / block, block)
    return inside + (buckets - 1) * max(inside, between) + between


@dataclass(frozen=True)
class Step:
    compute_s: float
    tensor_s: float                # exposed
    bubble_s: float
    data_s: float                  # exposed
    straggler_s: float
    mfu: float

    @property
    def seconds(self):
        return self.compute_s + self.tensor_s + self.bubble_s + self.data_s + self.straggler_s


def tensor_traffic_s(machine, model, layout):
    """Of one microbatch on one stage: two all-gathers and two reduce-scatters of activations per layer and direction."""
    if layout.tensor == 1:
        return 0.0
    bytes_ = 2 * layout.microbatch_size * model.sequence_length * model.width
    collectives = 12 if layout.full_recompute else 8
    return collectives * model.layers / layout.pipeline * ring_s(machine, layout.tensor, bytes_)


def sharded_data_s(machine, model, layout, microbatch_s, reduction):
    """FSDP: per microbatch each layer is gathered twice and reduced once, behind the arithmetic of its neighbour; the
    first gathering and the last reduction have nobody to hide behind."""
    layer_bytes = 2 * model.layer_weights / layout.tensor
    gather = reduction(machine, layout.data, layer_bytes, layout.tensor)
    scatter = reduction(machine, layout.data, 2 * layer_bytes, layout.tensor)
    layer_s = microbatch_s / (model.layers / layout.pipeline)
    forward = max(0.0, gather - layer_s / 3)
    backward = max(0.0, gather + scatter - layer_s * 2 / 3)
    hidden = model.layers / layout.pipeline * (forward + backward) * layout.microbatches
    return hidden + gather + scatter


def owned_data_s(machine, model, layout, microbatch_s, reduction):
    """ZeRO-1 as the lanes do it: fp32 gradients go to their owners behind the backward pass of the lane's last microbatch, or
    behind the next lane; updated bf16 weights come back behind the first forward pass. Two buckets per layer; the last
    gradients and the first weights have nobody to hide behind."""
    weights = model.weights / (layout.tensor * layout.pipeline)
    buckets = max(1, round(2 * model.layers / layout.pipeline))
    scatter = reduction(machine, layout.data, 4 * weights / buckets, layout.tensor)
    gather = reduction(machine, layout.data, 2 * weights / buckets, layout.tensor)
    lane_s = microbatch_s * layout.microbatches / layout.lanes_per_rank
    earlier = (layout.lanes_per_rank - 1) * max(0.0, buckets * scatter - lane_s)
    last = max(scatter, buckets * scatter - microbatch_s * 2 / 3)
    weights_back = max(gather, buckets * gather - microbatch_s / 3)
    return earlier + last + weights_back


def step(machine, model, layout, kernel_efficiency, hidden_tensor=0.0, straggler=0.01, reduction=ring_s):
    """`kernel_efficiency`: share of the peak that one GPU reaches alone, with its own memory traffic. `hidden_tensor`: share
    of the tensor traffic behind arithmetic."""
    flops = model.flops_per_token * layout.tokens(model)
    work = 4 / 3 if layout.full_recompute else 1.0
    compute = flops * work / layout.gpus / (machine.peak_flops * kernel_efficiency)
    tensor = layout.microbatches * tensor_traffic_s(machine, model, layout) * (1 - hidden_tensor)
    drains = layout.lanes_per_rank if layout.chunks > 1 else 1  # between lanes: runtime/rank/rank_layout.cc says why
    bubble = drains * (compute + tensor) * (layout.pipeline - 1) / (layout.chunks * layout.microbatches)
    microbatch = (compute + tensor) / layout.microbatches
    exposed = sharded_data_s if layout.fully_sharded else owned_data_s
    data = exposed(machine, model, layout, microbatch, reduction) if layout.data > 1 else 0.0
    late = straggler * (compute + tensor) if layout.gpus > machine.gpus_per_host else 0.0
    seconds = compute + tensor + bubble + data + late
    return Step(compute, tensor, bubble, data, late, flops / (seconds * layout.gpus * machine.peak_flops))


def calibrated_efficiency(machine, model, layout, mfu, **options):
    """The kernel efficiency at which step() has this MFU."""
    low, high = 0.01, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if step(machine, model, layout, middle, **options).mfu < mfu:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def memory_bytes(model, layout):
    """Of the rank that has most: bf16 weights, fp32 gradients of a lane, the owned share of accumulator, master and two
    moments in fp32, and activations of as many microbatches as 1F1B keeps on the first stage. Activations: 34 bytes per
    token and width for each layer (Korthikanti et al. 2022, flash attention, sequence parallel), or its input alone."""
    weights = model.weights / (layout.tensor * layout.pipeline)
    owned = (16 if layout.lanes_per_rank > 1 else 12) / layout.data
    kept = min(layout.microbatches, layout.pipeline) * (1 + (layout.pipeline - 1) / (layout.pipeline * layout.chunks)
                                                        if layout.chunks > 1 else 1)
    token_bytes = (2 if layout.full_recompute else 34) * model.width / layout.tensor
    rows = layout.microbatch_size * model.sequence_length
    activations = kept * rows * token_bytes * model.layers / layout.pipeline
    return weights * (6 + owned) + activations
