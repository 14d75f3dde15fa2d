"""The published figures, and what the model says of each.

A row is `calibrated` (it fixes one free number: the kernel efficiency of that system, or a failure rate), `predicted` (nothing of
it went in but its layout), `formula` (the same arithmetic by another way), or `outside` (the model cannot say it; the reason is
told). Predicted and formula rows must be right within TOLERANCE.
`plain` is what nobody would need a model for: no loss at all. Where that is within the tolerance, too, the row proves little.
"""
from dataclasses import dataclass, replace

from cost import A100_MOSAIC, H100, Layout, Model, calibrated_efficiency, ring_s, step
from failures import (HOUR_S, IN_PLACE, LLAMA3_EFFECTIVE, LLAMA3_PER_GPU_S, RESTART_EVERYTHING, RSC_PER_GPU_S,
                      mean_time_to_failure_s)

TOLERANCE = 0.05

LLAMA_8B = Model("Llama 8B", 32, 4096, 32, 8, 14336, 128256, 8192)
LLAMA_70B = Model("Llama 70B", 80, 8192, 64, 8, 28672, 128256, 8192)
LLAMA_405B = Model("Llama 405B", 126, 16384, 128, 8, 53248, 128256, 8192)
GPT_175B = Model("GPT 175B", 96, 12288, 96, 96, 49152, 131072, 4096, gated=False, tied=True)
MPT_1B = Model("MPT 1B", 24, 2048, 16, 16, 8192, 50368, 2048, gated=False, tied=True)
MPT_7B = Model("MPT 7B", 32, 4096, 32, 32, 16384, 50368, 2048, gated=False, tied=True)
MPT_760M = Model("MPT 760M", 24, 1536, 12, 12, 6144, 50368, 2048, gated=False, tied=True)
QWEN_05B = Model("Qwen 0.5B", 24, 896, 14, 2, 4864, 151936, 1024, tied=True)

LLAMA3_8K = Layout(data=64, tensor=8, pipeline=16, chunks=8, microbatches=32)
LLAMA3_16K = replace(LLAMA3_8K, data=128, microbatches=16)


@dataclass(frozen=True)
class Row:
    kind: str                      # calibrated, predicted, formula, outside
    what: str
    published: float
    model: float
    unit: str = ""
    plain: float = None
    note: str = ""

    @property
    def error(self):
        return None if self.model is None else self.model / self.published - 1

    @property
    def is_wrong(self):
        return self.kind in ("predicted", "formula") and abs(self.error) > TOLERANCE


def ratio_of(machine, model, small, large, efficiency, **options):
    """How much of its speed per GPU the larger layout keeps."""
    return step(machine, model, large, efficiency, **options).mfu / step(machine, model, small, efficiency, **options).mfu


def llama3_efficiency():
    return calibrated_efficiency(H100, LLAMA_405B, LLAMA3_8K, 0.43)


def llama3_rows():
    efficiency = llama3_efficiency()
    at_8k = step(H100, LLAMA_405B, LLAMA3_8K, efficiency)
    at_16k = step(H100, LLAMA_405B, LLAMA3_16K, efficiency)
    note = "data 64 -> 128, tensor 8, pipeline 16 with 8 chunks, microbatches 32 -> 16"
    return [Row("calibrated", "Llama 3 405B, 8,192 H100", 43.0, 100 * at_8k.mfu, "% MFU", None,
                f"fixes the kernel efficiency at {100 * efficiency:.1f} % of the peak"),
            Row("predicted", "Llama 3 405B, 16,384 H100", 41.0, 100 * at_16k.mfu, "% MFU", 43.0, note),
            Row("predicted", "Llama 3 405B, what the bubble alone costs from 8,192 to 16,384", 41 / 43,
                (1 + 15 / (8 * 32)) / (1 + 15 / (8 * 16)), "x", 1.0, "no free number at all")]


def torchtitan_rows():
    plain = Layout(data=8, tensor=8, pipeline=8, microbatches=8, microbatch_size=4, full_recompute=True, fully_sharded=True)
    efficiency = llama3_efficiency()
    interleaved = ratio_of(H100, LLAMA_405B, plain, replace(plain, chunks=2), efficiency)
    small = Layout(data=8, microbatch_size=2, fully_sharded=True)
    alone = calibrated_efficiency(H100, LLAMA_8B, small, 0.347)
    return [Row("predicted", "torchtitan 405B on 512 H100, interleaved over 1F1B", 1.28, interleaved, "x", 1.0,
                "its table does not say the microbatches: 8 = pipeline is its program's default, 2 chunks the fewest"),
            Row("calibrated", "torchtitan 8B, 8 H100 (500 W)", 34.7, 100 * step(H100, LLAMA_8B, small, alone).mfu, "% MFU", None,
                f"kernel efficiency {100 * alone:.1f} %"),
            Row("predicted", "torchtitan 8B, 8 -> 128 H100", 0.977,
                ratio_of(H100, LLAMA_8B, small, replace(small, data=128), alone), "x", 1.0, "FSDP, 2 sequences of 8,192")]


def mosaic_rows():
    """Rows of llm-foundry's table that differ in the number of GPUs alone."""
    def row(machine, model, microbatch, gpus, mfu, recompute):
        small, large = (Layout(data=n, microbatch_size=microbatch, full_recompute=recompute, fully_sharded=True) for n in gpus)
        efficiency = calibrated_efficiency(machine, model, small, mfu[0] / 100)
        kept = ratio_of(machine, model, small, large, efficiency)
        what = f"llm-foundry {model.name}, {gpus[0]} -> {gpus[1]} {machine.name}"
        return Row("predicted", what, mfu[1] / mfu[0], kept, "x", 1.0,
                   f"FSDP, {microbatch} sequences of 2,048; calibrated at {gpus[0]} GPUs: {mfu[0]} % MFU")
    return [row(H100, MPT_1B, 20, (16, 64), (42.36, 40.85), False),
            row(A100_MOSAIC, MPT_7B, 18, (32, 128), (51.55, 50.14), True),
            row(A100_MOSAIC, MPT_760M, 12, (16, 128), (51.9, 50.73), False)]


def llmq_rows():
    """ZeRO-1 inside a host; its note gives a range over four models."""
    alone = Layout(microbatches=4, microbatch_size=16)
    kept = ratio_of(H100, QWEN_05B, alone, replace(alone, data=8), 0.5)
    return [Row("predicted", "llmq, 1 -> 8 H100, middle of 0.966 to 1.01", 0.988, kept, "x", 1.0,
                "the smallest model; 64k tokens per GPU and step are assumed")]


def failure_rows():
    hours = lambda gpus, rate: mean_time_to_failure_s(gpus, rate) / HOUR_S
    effective = lambda recovery, gpus: 100 * recovery.effective_share(mean_time_to_failure_s(gpus), step_s=6.0)
    return [Row("calibrated", "Meta RSC, time to failure of 16,384 GPUs", 1.8, hours(16384, RSC_PER_GPU_S), "h"),
            Row("predicted", "Meta RSC, time to failure of 131,072 GPUs", 14 / 60, hours(131072, RSC_PER_GPU_S), "h", 1.8,
                "failures in proportion to the GPUs"),
            Row("calibrated", "Llama 3, time to unexpected interruption of 16,384 GPUs", 3.1, hours(16384, LLAMA3_PER_GPU_S), "h",
                None, "419 in 54 days"),
            Row("calibrated", "Llama 3, effective training time on 16,384 GPUs (published: more than that)",
                100 * LLAMA3_EFFECTIVE, effective(RESTART_EVERYTHING, 16384), "%", None,
                f"{RESTART_EVERYTHING.restart_s:.0f} s from failure to start, and {RESTART_EVERYTHING.save_s:.0f} s of "
                "standstill per save"),
            Row("outside", "ByteRobust, effective training time on 9,600 GPUs", 97.0, effective(IN_PLACE, 9600), "%", 100.0,
                f"another design than both here: restarting everything gives {effective(RESTART_EVERYTHING, 9600):.1f} %, this "
                "design's targets the number shown"),
            Row("outside", "Meta RSC, time to failure of 1,024 GPUs", 7.9, hours(1024, RSC_PER_GPU_S), "h", None,
                "measured, where the two large ones are themselves projections; one rate cannot give all three")]


def formula_rows():
    return [Row("formula", "reduce-scatter of 16 GB over 8 H100, by hand", 39e-3, ring_s(H100, 8, 16e9), "s", None,
                "16 GB x 7/8 / 363 GB/s"),
            Row("formula", "bandwidth part of 436 MB flat over 512 H100, by hand", 1.2e-3,
                ring_s(H100, 512, 436e6) - ring_s(H100, 512, 0), "s", None, "436 MB / (8 x 45 GB/s)"),
            Row("formula", "ZB-H1, bubble as a share of 1F1B's (published: a third)", 1 / 3, (1 + 1 - 1) / (1 + 1 + 1), "x", None,
                "(F + B - W) / (F + B + W) with all three equal")]


def outside_rows():
    gpt = lambda chunks: ratio_of(H100, GPT_175B, Layout(1, 8, 12, chunks, 1152), Layout(48, 8, 12, chunks, 24),
                                  llama3_efficiency(), hidden_tensor=0.5)
    return [Row("outside", "Megatron-Core 175B, 96 -> 4,608 H100, if 4 chunks", 0.89, gpt(4), "x", 1.0,
                f"pipeline and chunks are not published: tensor 8, pipeline 12 and 2 / 4 / 8 chunks give {gpt(2):.2f} / "
                f"{gpt(4):.2f} / {gpt(8):.2f}; choosing among them would be fitting"),
            Row("outside", "Megatron-Core 1.7B -> 462B, MFU 41 -> 47.5 %", 47.5 / 41, None, "x", None,
                "says how GEMMs of other widths run; one kernel efficiency per system does not know widths"),
            Row("outside", "MegaScale 175B, 12,288 A100", 55.2, None, "% MFU", None,
                "a single point of a changed model (parallel blocks, windowed attention): it could only calibrate"),
            Row("outside", "llm-foundry, 128 -> 512", 0.925, None, "x", None,
                "a range without model, batch or network; its table's rows up to 128 GPUs are above"),
            Row("outside", "asynchronous tensor parallelism, +9 to 10 %", 1.095, None, "x", None,
                "how much a kernel hides is an input here (hidden_tensor), not a result"),
            Row("outside", "waiting for the global gradient norm, 8 %", 0.08, None, "x", None,
                "a second pipeline drain; the schedule of that measurement is not published")]


def all_rows():
    return [*llama3_rows(), *torchtitan_rows(), *mosaic_rows(), *llmq_rows(), *failure_rows(), *formula_rows(), *outside_rows()]
