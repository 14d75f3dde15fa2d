"""What is measured: models, shapes and filters. REAL is for a GPU, TOY for the emulator, where every thread takes its turn."""
import re
from dataclasses import dataclass, replace
from pathlib import Path


SHOWN = ("microbatches_per_lane", "recompute", "head_rows")  # settings beside the batch in a table


@dataclass(frozen=True)
class Model:
    """A run. `section` is [model] of its config, `batch` sequences of `length` tokens are a microbatch."""
    name: str
    section: dict
    batch: int
    length: int
    settings: tuple = ()
    token_range: int = 32000  # tokens of the data are below this: every preset knows them
    warmup: int = 5
    steps: int = 30
    asked: str = ""           # what the project asks for on one H200, tokens/s
    smaller: "Model | None" = None  # is taken where this does not fit into the memory of the GPU

    def shown(self):
        return f"{self.batch} x {self.length}" + "".join(f" {word.split('.', 1)[1]}" for word in self.settings
                                                         if any(key in word for key in SHOWN))


BF16 = ("--training.precision=bf16", "--parallel.lanes=1")


def accumulated(count):
    return (f"--training.microbatches_per_lane={count}",)


GPT2 = Model("gpt2-124m", {"preset": "gpt2-124m"}, 64, 1024, BF16, asked="520 K")
# Its weights, gradients and optimizer take 134.6 GiB; an H200 has 139 or 140.
LLAMA_8B = Model("llama-8b", {"preset": "llama-8b"}, 1, 8192, (*BF16, "--training.recompute=full", "--training.head_rows=1024"),
                 warmup=2, steps=8, asked="7.2 K")
REAL_MODELS = {
    "gpt2": GPT2,
    "gpt2-accumulated": replace(GPT2, name="gpt2-124m-x8", settings=BF16 + accumulated(8), warmup=2, steps=8),
    "gpt2-small": replace(GPT2, name="gpt2-124m-small", batch=4, asked=""),
    "gpt2-settled": replace(GPT2, name="gpt2-124m-settled", warmup=40, steps=120, asked=""),
    "gpt2-default": replace(GPT2, name="gpt2-124m-default", settings=("--training.precision=bf16",), warmup=2, steps=8, asked=""),
    "llama-1b": Model("llama-1b", {"preset": "llama-1b"}, 8, 1024, BF16 + accumulated(16), warmup=2, steps=6, asked="71.7 K"),
    "llama-8b": replace(LLAMA_8B, smaller=replace(LLAMA_8B, length=4096, asked="")),
    "gpt2-1558m": Model("gpt2-1558m", {"preset": "gpt2-1558m"}, 8, 1024, BF16 + accumulated(16), warmup=2, steps=5,
                        asked="51.5 K"),
}
# Beside the CPU: small batches, because the CPU computes them too.
REAL_PARITY = {
    "bf16": [Model("gpt2-124m", {"preset": "gpt2-124m"}, 2, 256, BF16, warmup=0, steps=20)],
    "fp32": [Model(name, {"preset": name}, 2, 256, ("--training.precision=fp32", "--parallel.lanes=1"), steps=10)
             for name in ("gpt2-124m", "llama-110m")],
}

TOY_GPT2 = {"style": "gpt2", "layers": 1, "heads": 1, "width": 64, "vocabulary": 256}
TOY_LLAMA = {"style": "llama", "layers": 1, "heads": 2, "kv_heads": 1, "width": 64, "feed_forward": 64, "vocabulary": 256}
TOY_TOO_LARGE = {**TOY_LLAMA, "heads": 8, "kv_heads": 4, "width": 1024, "vocabulary": 4_000_000}


def toy(name, section, settings=()):
    return Model(name, section, 1, 16, BF16 + settings, token_range=256, warmup=1, steps=2, asked="1 K")


TOY_MODELS = {
    "gpt2": toy("gpt2-toy", TOY_GPT2),
    "gpt2-accumulated": toy("gpt2-toy-x2", TOY_GPT2, accumulated(2)),
    "gpt2-small": toy("gpt2-toy-small", TOY_GPT2),
    "gpt2-settled": toy("gpt2-toy-settled", TOY_GPT2),
    "gpt2-default": replace(toy("gpt2-toy-default", TOY_GPT2), settings=("--training.precision=bf16",)),
    "llama-1b": toy("llama-toy", TOY_LLAMA),
    "llama-8b": replace(toy("llama-toy-recompute", TOY_TOO_LARGE),
                        smaller=toy("llama-toy-recompute", TOY_LLAMA, ("--training.recompute=full",))),
    "gpt2-1558m": toy("gpt2-toy-x2-again", TOY_GPT2, accumulated(2)),
}
TOY_PARITY = {"bf16": [toy("gpt2-toy", TOY_GPT2)],
              "fp32": [replace(toy("gpt2-toy", TOY_GPT2), settings=("--training.precision=fp32", "--parallel.lanes=1"))]}

# Tests that go first: every tensor-core kernel, the products, both norms, and what has the longest sums.
# Kernels that no GPU has run are left to their own items: one that hangs would end the first stage.
SMOKE = ["matmul.cublaslt", "attention_forward.cuda", "attention_forward.cuda_mma", "attention_backward.cuda",
         "attention_backward.cuda_mma", "layernorm_forward.cuda", "layernorm_backward.cuda", "rmsnorm_forward.cuda",
         "rmsnorm_backward.cuda", "cross_entropy.cuda", "embedding_backward.cuda", "gelu_forward.cuda", "square_sum.cuda",
         "adamw.cuda"]

# All but attention, which is an item of its own; what takes most of a step first.
FIRST_OPS = ("matmul", "layernorm_backward", "cross_entropy", "layernorm_forward", "gelu_forward", "add", "bias_gradient",
             "embedding_backward", "embedding_forward")
OP_LIST = (Path(__file__).resolve().parents[2] / "kernels/op.h").read_text()
OPS = FIRST_OPS + tuple(op for op in re.findall(r"^  X\((\w+), \w+, \w+\)", OP_LIST, re.MULTILINE)
                        if op not in FIRST_OPS and not op.startswith("attention"))
FAULTS = ("gpu_trap", "gpu_illegal_address", "gpu_endless")


@dataclass(frozen=True)
class Drill:
    """A run that something happens to. It is small: what counts is who is named, how soon, and the bits. The fault is in the second
    half of the steps, so that a run that continues from a snapshot does not come to it again."""
    model: Model
    steps: int
    fault_step: int
    snapshot_every: int
    lanes: int = 4
    patience_s: float = 150  # of one run
    floor: str = "5s"      # watchdog.floor: a hang is noticed no sooner
    ceiling: str = "60s"   # watchdog.ceiling
    ranks: tuple = (2, 4)
    growth_steps: int = 16  # more, in which a new rank may come
    growth_ms: int = 1000   # of each of them


REAL_DRILL = Drill(Model("drill", {"style": "gpt2", "layers": 6, "heads": 8, "width": 512, "vocabulary": 32000}, 4, 256,
                         ("--training.precision=bf16",)), steps=12, fault_step=9, snapshot_every=2)
TOY_DRILL = Drill(Model("drill", {"style": "gpt2", "layers": 2, "heads": 2, "width": 32, "vocabulary": 256}, 1, 16,
                        ("--training.precision=bf16",), token_range=256), steps=8, fault_step=7, snapshot_every=1, lanes=4,
                  patience_s=60, floor="2s", ceiling="15s", growth_steps=6, growth_ms=300)


@dataclass(frozen=True)
class Sizes:
    emulated: bool
    models: dict
    parity: dict               # by precision
    drill: Drill
    tokens: int                # of the data
    bench: str                 # --sizes of `holdfast bench op`
    op_milliseconds: int
    head_rows: tuple
    smoke: list
    smoke_program: str
    sanitizer_filter: str
    stall: Model               # whose snapshots and saves are timed
    stall_every: int
    dtypes: tuple = ("bf16", "fp32")
    ops: tuple = OPS
    # (op, its kernels as a regular expression, which of its shapes and implementations)
    profiled: tuple = (
        ("attention_forward", "attend", ("--implementation=cuda_mma", "--shape=gpt2-124m")),
        ("attention_backward", "key_gradients|query_gradients|deltas", ("--implementation=cuda_mma", "--shape=gpt2-124m")),
        ("attention_forward", "attend", ("--implementation=cuda_mma", "--shape=llama-8b")),
        ("attention_backward", "key_gradients|query_gradients|deltas", ("--implementation=cuda_mma", "--shape=llama-8b")),
        ("layernorm_backward", "norm_backward|column_sums", ("--implementation=cuda", "--shape=gpt2-124m")),
        ("gelu_forward", "gelu_forward", ("--implementation=cuda", "--shape=gpt2-124m")))
    peer: str = "real"         # size of torch_peer.py


REAL = Sizes(emulated=False, models=REAL_MODELS, parity=REAL_PARITY, drill=REAL_DRILL, tokens=2_000_000, bench="gpu",
             op_milliseconds=20, head_rows=(256, 2048, 8192), smoke=SMOKE, smoke_program="test_kernels_gpu",
             sanitizer_filter="attention_forward.cuda*:attention_backward.cuda*:layernorm_*.cuda:rmsnorm_*.cuda:cross_entropy.cuda:"
                              "embedding_*.cuda",
             stall=replace(GPT2, name="stall", batch=16, warmup=0), stall_every=40, peer="real")
TOY = Sizes(emulated=True, models=TOY_MODELS, parity=TOY_PARITY, drill=TOY_DRILL, tokens=20_000, bench="toy", op_milliseconds=1,
            head_rows=(8, 16), smoke=["adamw.cuda", "square_sum.cuda"], smoke_program="test_cuda_emulated",
            sanitizer_filter="square_sum.cuda", stall=replace(TOY_MODELS["gpt2"], name="stall"), stall_every=4,
            dtypes=("bf16",), ops=("gelu_forward",), profiled=(("gelu_forward", "gelu_forward", ("--implementation=cuda", "--shape=toy-gpt2")),), peer="toy")
