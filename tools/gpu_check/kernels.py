"""Kernels at the shapes of real models: beside what the GPU copies and multiplies, and as Nsight Compute sees them."""
import csv
import io
import re

from . import predictions
from .machine import find_tool
from .results import Failure, table
from .training import limits_line


def bench_op(session, op, dtype, *words):
    return session.bench(f"{op}-{dtype}", "op", op, f"--dtype={dtype}", f"--sizes={session.sizes.bench}",
                         f"--milliseconds={session.sizes.op_milliseconds}", *words)


def op_rows(measured):
    """Of a table of all implementations on all shapes."""
    rows = []
    for op, shapes in measured["ops"].items():
        for shape in shapes:
            limit = shape["limit_microseconds"]
            rows += [[op, shape["shape"], each["name"], f"{each['microseconds']:.1f}", f"{limit:.1f}",
                      f"{limit / each['microseconds']:.0%}", shape["level"]] for each in shape["implementations"]]
    return rows


def all_ops(session, record):
    """One program for each op, so that what was measured is there when the time is over before the last one."""
    for dtype in session.sizes.dtypes:
        found = record[dtype] = {}
        rows = [[f"{dtype}: op", "shape", "implementation", "us", "limit us", "of limit", "fits"]]
        try:
            for op in session.sizes.ops:
                measured = found[op] = bench_op(session, op, dtype)
                rows += op_rows(measured)
                record.setdefault("found", []).extend(below_a_copy(measured, dtype))
        finally:
            if found:
                session.show(limits_line(next(iter(found.values()))["gpu"]), table(rows))


LEAST_OF_A_COPY = 0.7


def below_a_copy(measured, dtype):
    """A sentence for every op that only moves memory and is far from the rate of a copy."""
    gpu = measured["gpu"]
    for op, shapes in measured["ops"].items():
        for shape in shapes:
            moved_s = (shape["bytes_read"] + shape["bytes_written"]) / gpu["copied_bytes_per_sec"]
            best_us = min(each["microseconds"] for each in shape["implementations"])
            computes = shape["flops"] / gpu[f"{dtype}_flops_per_sec"] > moved_s
            if not computes and shape["level"] == "DRAM" and moved_s * 1e6 < LEAST_OF_A_COPY * best_us:
                yield f"{op} {dtype} {shape['shape']}: {moved_s * 1e6 / best_us:.0%} of the rate of a copy"


# TFLOP/s of our tensor-core kernels, unmasked, at 1K to 8K tokens, as measured on an H200; backward in terms of its five products.
PREDICTED_TFLOPS = {"attention_forward": (190, 360), "attention_backward": (165, 250)}
PREDICTED_UP_TO = 8192


def compare_attention(record, op, shape, figures):
    low, high = PREDICTED_TFLOPS[op]
    length = re.search(r"(\d+)x(\d+)", shape["shape"])
    if figures["name"] == "cuda_mma" and shape["use"].startswith("plain") and length and int(length[2]) <= PREDICTED_UP_TO:
        predictions.compare(record, f"{op} {shape['shape']}: TFLOP/s", shape["flops"] / figures["microseconds"] / 1e6, low, high)


def attention(session, record):
    """TFLOP/s of attention: heads of 64 and 128, 1K to 16K tokens, grouped and masked."""
    rows = [["attention, bf16", "shape", "implementation", "us", "TFLOP/s", "of limit"]]
    for op in ("attention_forward", "attention_backward"):
        measured = record[op] = bench_op(session, op, "bf16")
        for shape in measured["ops"][op]:
            rows += [[op, f"{shape['shape']} ({shape['use']})", each["name"], f"{each['microseconds']:.1f}",
                      f"{shape['flops'] / each['microseconds'] / 1e6:.0f}",
                      f"{shape['limit_microseconds'] / each['microseconds']:.0%}"] for each in shape["implementations"]]
            if not session.sizes.emulated:
                for each in shape["implementations"]:
                    compare_attention(record, op, shape, each)
        if op == "attention_forward":
            session.show(limits_line(measured["gpu"]))
    session.show(table(rows))


NCU_SECTIONS = ["SpeedOfLight", "WarpStateStats", "Occupancy", "MemoryWorkloadAnalysis"]
NCU_METRICS = {"Duration": "us", "DRAM Throughput": "DRAM %", "Compute (SM) Throughput": "SM %", "L2 Hit Rate": "L2 hit %",
               "Achieved Occupancy": "occupancy %", "Warp Cycles Per Issued Instruction": "cycles per issue",
               "Registers Per Thread": "registers"}
NCU_LAUNCHES = 12


def parse_ncu(output):
    """[{"kernel": name, metric: number}] of ncu --csv --page details, in the order of the launches."""
    begin = re.search(r'^"ID"', output, re.MULTILINE)
    if begin is None:
        raise Failure(f"ncu printed no table:\n    {' / '.join(output.strip().splitlines()[-4:])}")
    launches = {}
    for row in csv.DictReader(io.StringIO(output[begin.start():])):
        try:
            launch = launches.setdefault(row["ID"], {"kernel": row["Kernel Name"]})
            value = row["Metric Value"].replace(",", "")
            launch.setdefault(row["Metric Name"], float(value))
        except (KeyError, ValueError, TypeError, AttributeError):
            continue
    return list(launches.values())


def profile(session, record):
    """What Nsight Compute says about the kernels that take most of a step. It leaves the clocks alone."""
    ncu = find_tool("ncu")
    if ncu is None:
        raise Failure("ncu was not found; it comes with the CUDA toolkit")
    rows = [["kernel", *NCU_METRICS.values()]]
    for op, kernels, words in session.sizes.profiled:
        sections = [word for section in NCU_SECTIONS for word in ("--section", section)]
        name = " ".join([op, *(word.partition("=")[2] for word in words)])
        output = session.runner.run(f"ncu {name}", [
            ncu, "--clock-control", "none", "--csv", "--page", "details", "--launch-count", str(NCU_LAUNCHES), *sections,
            "--kernel-name-base", "function", "--kernel-name", f"regex:{kernels}",
            session.program("holdfast-bench"), "op", op, "--device=cuda", "--dtype=bf16", f"--sizes={session.sizes.bench}",
            "--milliseconds=1", *words])
        launches = record[name] = parse_ncu(output)
        for launch in unlike(launches):
            rows.append([f"{name}: {launch['kernel'][:60]}",
                         *(f"{launch[metric]:.1f}" if metric in launch else "" for metric in NCU_METRICS)])
    session.show(table(rows))


def unlike(launches):
    """The first launch of every kernel."""
    seen = set()
    return [launch for launch in launches if not (launch["kernel"] in seen or seen.add(launch["kernel"]))]
