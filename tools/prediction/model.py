"""The time of a training step on one GPU: the sum of what its ops take, of the gaps between kernels and of the step's end.

    from prediction.model import predict  # with tools/ in sys.path
    predict("build/release/bin/holdfast", ["--model.preset=gpt2-124m", "--training.microbatch_size=64"], "H200")
"""
from dataclasses import dataclass

from . import rooflines as r
from .kernels import ASKED_FOR, KERNELS, Call
from .program import planned_step

TOKEN_BYTES = 4


class UnknownOp(Exception):
    """The program launches an op that kernels.py does not have."""


@dataclass
class Sum:
    """Of all ops of one kind; of a step."""
    calls: int = 0
    launches: int = 0
    flops: float = 0.0
    bytes: float = 0.0
    seconds: float = 0.0
    limit_s: float = 0.0

    def add(self, other):
        for name in vars(self):
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def as_dict(self):
        return {"calls": self.calls, "ms": 1e3 * self.seconds, "limit_ms": 1e3 * self.limit_s, "launches": self.launches,
                "tflop": self.flops / 1e12, "gb": self.bytes / 1e9}


def is_token_copy(step, op):
    """Whether it brings the tokens, targets and first keys of a microbatch to the device, together or one by one."""
    array = TOKEN_BYTES * step["microbatch_rows"]
    return op["op"] == "copy" and op["calls"] % step["microbatches"] == 0 and op["bytes_written"] in (array, 2 * array, 3 * array)


def kind_of(step, op):
    """What a table calls the op: products by their part of the model, all others by their name."""
    if op["op"] != "matmul":
        return op["op"].replace("_", " ")
    arguments = op["arguments"]
    sizes = (arguments["m"], arguments["n"], arguments["k"])
    part = "head" if step["padded_vocabulary"] in sizes else "layers"
    what = "weight gradient" if arguments["transpose_a"] else "forward" if arguments["transpose_b"] else "input gradient"
    return f"matmul, {part}, {what}"


def sum_of(op, device, tokens_are_pinned, token_copy, kernels):
    if op["op"] not in KERNELS:
        raise UnknownOp(f"the program launches {op['op']} ({op['shape']}), which tools/prediction/kernels.py does not know")
    call = Call(op["op"], op["arguments"], op["flops"], op["bytes_read"], op["bytes_written"], tokens_are_pinned, token_copy)
    passes = kernels[op["op"]](call, device)
    calls = op["calls"]
    return Sum(calls=calls, launches=calls * len(passes), flops=calls * call.flops, bytes=calls * call.bytes_moved,
               seconds=calls * sum(each.seconds(device) for each in passes),
               limit_s=calls * max(call.flops / device.peak_flops, call.bytes_moved / device.memory_limit))


def asked_for(settings):
    """The functions of kernels.py, with those of the implementations that settings name."""
    kernels = dict(KERNELS)
    for (op, name), function in ASKED_FOR.items():
        if f"--kernels.{op}={name}" in settings:
            kernels[op] = function
    return kernels


def predict_step(step, device, kernels):
    """Of an object of `holdfast plan --ops --json`."""
    copies = [is_token_copy(step, op) for op in step["ops"]]
    kinds, by_op, ops, total = {}, {}, [], Sum()
    for op, token_copy in zip(step["ops"], copies):
        result = sum_of(op, device, not any(copies), token_copy, kernels)
        kinds.setdefault(kind_of(step, op), Sum()).add(result)
        by_op.setdefault(op["op"], Sum()).add(result)
        total.add(result)
        ops.append({"op": op["op"], "shape": op["shape"], **result.as_dict()})
    gap = r.LAUNCH_GAP_GRAPH_S if step["cuda_graphs"] else r.LAUNCH_GAP_S
    gaps_s = total.launches * gap
    end_s = r.STEP_BOUNDARY_S + step["gradient_blocks"] * r.HOST_SUM_S
    seconds = total.seconds + gaps_s + end_s
    return {
        "device": device.name,
        "preset": step["preset"],
        "tokens": step["tokens"],
        "microbatches": step["microbatches"],
        "tokens_are_pinned": not any(copies),
        "head_rows": max((op["arguments"]["rows"] for op in step["ops"] if op["op"] == "cross_entropy"), default=0),
        "launches": total.launches,
        "memory_bytes": step["device_bytes"],
        "fits": step["device_bytes"] <= device.memory_bytes,
        "step_ms": 1e3 * seconds,
        "low_ms": 1e3 * seconds * (1 - r.STEP_TOLERANCE),
        "high_ms": 1e3 * seconds * (1 + r.STEP_TOLERANCE),
        "limit_ms": 1e3 * total.limit_s,
        "gaps_ms": 1e3 * gaps_s,
        "end_ms": 1e3 * end_s,
        "tokens_per_sec": step["tokens"] / seconds,
        "mfu": step["flops_per_token"] * step["tokens"] / seconds / device.peak_flops,
        "kinds": {name: result.as_dict() for name, result in by_op.items()},
        "parts": {name: result.as_dict() for name, result in kinds.items()},
        "ops": ops,
    }


def predict(program, settings, device="H200"):
    """What a step takes on one GPU, as a dictionary.

    step_ms, tokens_per_sec, mfu; low_ms and high_ms: a measured step outside of them says that the prediction is wrong. fits:
    whether memory_bytes, which the run plans without the workspace of its kernels, is in the GPU.
    kinds: {name of an op: {calls, ms, limit_ms, launches, tflop, gb}}, where a single op is wrong outside of +-30 %; parts: the
    same with the matrix products of the layers and of the head apart; ops: the same for each shape. limit_ms is what the op
    as it is launched takes at the data sheet's rates. `settings`: ["--section.key=value", ...] over a run of one lane in bf16
    with sequences of 1,024 tokens; --kernels.OP=NAME of one of ASKED_FOR in kernels.py predicts that implementation. Errors: ProgramError with the program's sentence, UnknownOp.
    """
    return predict_step(planned_step(program, settings), r.DEVICES[device], asked_for(settings))
