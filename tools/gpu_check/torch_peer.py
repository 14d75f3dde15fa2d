#!/usr/bin/env python3
"""tools/gpu_check/torch_peer.py CASE [--size real|toy] [--device cuda|cpu]: one comparison with PyTorch, for gpu-check.

CASE is gpt2 (training GPT-2 124M: bf16 autocast, fused AdamW, torch.compile, 64 x 1024 tokens), attention (scaled dot-product
attention, forward and backward) or products (torch.mm). Prints a JSON object on a line of its own for every finding, as soon as it
is known; what fails is a finding with the reason.
"""
import argparse
import json
import sys
import time
from pathlib import Path
from statistics import median

import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "bench_peers"))
from cases import GPT2_124M, Shape  # noqa: E402
from torch_model import Transformer, adamw  # noqa: E402

TOY_SHAPE = Shape("gpt2", 1, 1, 1, 64, 256, 256, positions=16)
STEPS, WARMUP = 12, 4
# (name, heads, heads of keys, head size, batch, tokens): that of GPT-2 124M, and the table of `holdfast bench op --sizes=gpu`.
TABLE_WIDTH, TABLE_TOKENS = 2048, 16384
ATTENTION = [("gpt2-124m", 12, 12, 64, 64, 1024)] + [
    ("plain" if groups == 1 else "grouped", TABLE_WIDTH // size, TABLE_WIDTH // size // groups, size, TABLE_TOKENS // length, length)
    for size in (64, 128) for length in (1024, 2048, 4096, 8192, 16384) for groups in (1, 4)]
TOY_ATTENTION = [("plain", 2, 2, 64, 1, 32), ("grouped", 2, 1, 64, 1, 32)]
# (name, rows, outputs, inputs)
PRODUCTS = [("124M attention in", 65536, 2304, 768), ("124M feed-forward up", 65536, 3072, 768), ("124M head", 8192, 50304, 768),
            ("1558M feed-forward up", 8192, 6400, 1600), ("1B feed-forward up", 8192, 16384, 2048),
            ("8B attention in", 8192, 6144, 4096), ("8B feed-forward up", 8192, 28672, 4096),
            ("8B feed-forward down", 8192, 4096, 14336),
            ("8192 cubed", 8192, 8192, 8192)]
TOY_PRODUCTS = [("toy", 64, 64, 64)]
LAUNCHES = 20


def say(what, **figures):
    print(json.dumps({"what": what, **figures}), flush=True)


def synchronize(device):
    if device == "cuda":
        torch.cuda.synchronize()


def microseconds(device, function):
    """Of one call, on a stream that always has work."""
    for _ in range(3):
        function()
    synchronize(device)
    begin = time.perf_counter()
    for _ in range(LAUNCHES):
        function()
    synchronize(device)
    return (time.perf_counter() - begin) / LAUNCHES * 1e6


def train(device, size, compiled):
    shape, batch, length = (TOY_SHAPE, 1, 16) if size == "toy" else (GPT2_124M, 64, 1024)
    torch.manual_seed(1)
    torch.set_float32_matmul_precision("high")
    model = Transformer(shape, length)
    model.initialize()
    model.to(device)
    optimizer = adamw(model, 1e-4, 0.1)
    stepped = torch.compile(model, dynamic=False) if compiled else model
    inputs, targets = (torch.randint(shape.vocabulary, (batch, length), device=device) for _ in range(2))
    times = []
    for _ in range(3 if size == "toy" else WARMUP + STEPS):
        synchronize(device)
        begin = time.perf_counter()
        with torch.autocast(device, torch.bfloat16):
            loss = stepped(inputs, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        synchronize(device)
        times.append(1000 * (time.perf_counter() - begin))
    step_ms = median(times[-STEPS:])
    memory = torch.cuda.max_memory_allocated() if device == "cuda" else 0
    return {"step_ms": step_ms, "tokens_per_sec": batch * length / step_ms * 1000, "loss": loss.item(), "memory_bytes": memory}


def gpt2(device, size):
    for name, compiled in (("torch.compile", True), ("eager", False)):
        attempt(name, lambda compiled=compiled: train(device, size, compiled))


def backends():
    from torch.nn.attention import SDPBackend
    found = [("flash", SDPBackend.FLASH_ATTENTION)]
    if hasattr(SDPBackend, "CUDNN_ATTENTION"):
        found.append(("cudnn", SDPBackend.CUDNN_ATTENTION))
    return found


def time_attention(device, backend, case):
    from torch.nn.attention import sdpa_kernel
    _, heads, kv_heads, size, batch, length = case
    dtype = torch.bfloat16
    q = torch.randn(batch, heads, length, size, device=device, dtype=dtype, requires_grad=True)
    k, v = (torch.randn(batch, kv_heads, length, size, device=device, dtype=dtype, requires_grad=True) for _ in range(2))
    gradient = torch.randn_like(q)
    grouped = {"enable_gqa": True} if heads != kv_heads else {}
    with sdpa_kernel(backend):
        def forward():
            return F.scaled_dot_product_attention(q, k, v, is_causal=True, **grouped)
        result = forward()
        forward_us = microseconds(device, forward)
        backward_us = microseconds(device, lambda: torch.autograd.grad(result, (q, k, v), gradient, retain_graph=True))
    return {"forward_us": forward_us, "backward_us": backward_us, "flops": 2 * batch * heads * length * length * size}


def attention(device, size):
    cases = TOY_ATTENTION if size == "toy" else ATTENTION
    for case in cases:
        for name, backend in backends():
            what, heads, kv_heads, head_size, batch, length = case
            attempt(f"{name}: {what} {batch}x{length} {heads}/{kv_heads} heads of {head_size}",
                    lambda backend=backend, case=case: time_attention(device, backend, case))


def time_product(device, rows, outputs, inputs):
    left = torch.randn(rows, inputs, device=device, dtype=torch.bfloat16)
    right = torch.randn(inputs, outputs, device=device, dtype=torch.bfloat16)
    return {"us": microseconds(device, lambda: torch.mm(left, right)), "flops": 2 * rows * outputs * inputs}


def products(device, size):
    for name, rows, outputs, inputs in TOY_PRODUCTS if size == "toy" else PRODUCTS:
        attempt(f"{name} {rows} x {outputs} x {inputs}",
                lambda shape=(rows, outputs, inputs): time_product(device, *shape))


def attempt(what, function):
    try:
        say(what, **function())
    except Exception as error:  # a backend that cannot is a finding
        say(what, failed=f"{type(error).__name__}: {str(error).splitlines()[0][:300] if str(error) else ''}")
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case", choices=["gpt2", "attention", "products"])
    parser.add_argument("--size", choices=["real", "toy"], default="real")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    arguments = parser.parse_args()
    if arguments.device == "cuda" and not torch.cuda.is_available():
        say("PyTorch", failed=f"torch {torch.__version__} sees no GPU")
        return 0
    say("versions", torch=torch.__version__, cuda=torch.version.cuda, cudnn=torch.backends.cudnn.version())
    {"gpt2": gpt2, "attention": attention, "products": products}[arguments.case](arguments.device, arguments.size)
    return 0


if __name__ == "__main__":
    sys.exit(main())
