"""The command line of tools/gpu-check, and the loop over its items."""
import argparse
import signal
import sys
import time
from datetime import datetime, timezone
from pathlib import Path

from . import rehearsal, source, stages
from .budget import Budget
from .machine import ROOT, Machine, NoGpu
from .results import Failure, Results
from .session import Session
from .sizes import REAL
from .telemetry import Telemetry

DESCRIPTION = """tools/gpu-check: what a machine with a GPU can show about this tree, the most valuable first.

Stage 1 builds for the GPU that it finds, runs a dozen kernel tests, measures training of GPT-2 124M and Llama 1B (tokens/s, ms of
every op beside its limit), compares bits, and runs PyTorch beside it. Stage 2 runs all tests with the label gpu, NCCL and faults.
Stage 3 measures attention and all kernels at real shapes, large models, profiles and sanitizers. --list shows every item.

FOLDER gets gpu-check.json (every figure), gpu-check.txt (tables, and which predictions were wrong) and the packed logs. All three
are replaced after every item, so that a call that is cut off has reported what it found. An item that fails or takes too long does not
keep the next from running; what the budget leaves no time for is recorded as "not run: budget".

The machine needs NVIDIA's driver, the CUDA toolkit, g++, cmake and python3, and neither network, git nor root where the tree came
with its bundle: tools/bootstrap --bundle .deps/bundle.tar.zst, where there is network.

MFU is the model's FLOP per token (6 per weight of a matrix product, plus 6 x layers x attention width x tokens for causal
attention, as runtime/model/spec.h has it) x tokens/s, over the dense bf16 peak in NVIDIA's data sheet.

Exit code 0 when every item passed, 1 when one did not or was not run, 2 when there is no GPU."""


class Interrupted(BaseException):
    """SIGINT or SIGTERM. Not an Exception: no item may take it for a failure of its own."""


def interrupt(number, _frame):
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.SIG_IGN)  # what there is, is written now
    raise Interrupted(signal.Signals(number).name)


def parse(words):
    parser = argparse.ArgumentParser(prog="tools/gpu-check", description=DESCRIPTION,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stage", action="append", type=int, choices=sorted(stages.STAGE_TITLES),
                        help="only this stage; may be given several times (default: all, in order)")
    parser.add_argument("--only", action="append", metavar="ITEM", choices=[item.name for item in stages.ITEMS],
                        help="only this item; may be given several times")
    parser.add_argument("--budget", type=float, metavar="SECONDS", help="of the whole call (default: those of the stages)")
    parser.add_argument("--out", type=Path, metavar="FOLDER", default=ROOT / "build/gpu-check", help="default: build/gpu-check")
    parser.add_argument("--build", type=Path, metavar="FOLDER", help="folder of the build (default: build/cuda)")
    parser.add_argument("--nccl", type=Path, metavar="FOLDER", help="of the libnccl.so.2 that programs get (default: that of a Python)")
    parser.add_argument("--rehearse", action="store_true",
                        help="runs all of it on the emulator at toy sizes, where there is no GPU; needs a build with its tests in "
                             "--build (default: build/release)")
    parser.add_argument("--list", action="store_true", help="shows the stages and their items, and ends")
    return parser.parse_args(words)


def facts_of(machine, arguments, words):
    return {"command": ["tools/gpu-check", *words], "commit": source.commit(), "source": source.digest(),
            "date": datetime.now(timezone.utc).isoformat(timespec="seconds"), "rehearsal": arguments.rehearse,
            "budget_s": arguments.budget, **machine.facts(), "notes": []}


def run_item(session, item, record, deadline):
    """Fills the record. Interrupted goes through, with what was found so far in the record."""
    session.item, session.record = item.name, record
    session.runner.deadline = time.monotonic() + max(0.0, deadline)
    begun, moment = time.monotonic(), time.time()
    try:
        item.run(session, record)
        record["state"] = "passed"
    except Failure as failure:
        record.update(state="failed", reason=str(failure))
    except Interrupted as signal_name:
        session.runner.end_started()
        record.update(state="interrupted", reason=f"interrupted by {signal_name}")
        raise
    except Exception as error:  # a bug of gpu-check must not cost the items after it
        record.update(state="failed", reason=f"gpu-check itself: {type(error).__name__}: {error}")
    finally:
        session.end_item()
        record["seconds"] = round(time.monotonic() - begun, 1)
        record["telemetry"] = session.telemetry.summary_since(moment)


def run_items(session, items, budget):
    """All items, each beside its deadline. Results are written after every one."""
    results, stage = session.results, None
    for item in items:
        results.begin(item, "not run: waiting")
    build_failed = False
    for item in items:
        if item.stage != stage:
            stage = item.stage
            budget.begin_stage(stages.stage_deadline_s(stage))
        deadline = budget.grant(item)
        if build_failed or deadline is None:
            results.items[item.name]["state"] = "not run: the build failed" if build_failed else f"not run: {budget.reason()}"
            continue
        record = results.begin(item)
        print(f"== {item.name}: {item.asks}", flush=True)
        results.write()
        run_item(session, item, record, deadline - budget.now())
        print("\n".join([f"   {record['state']} ({record['seconds']} s)" + (f": {record['reason']}" if "reason" in record else ""),
                         *(f"   {line}" for line in record.get("found", []))]), flush=True)
        results.write()
        build_failed = build_failed or (item.name == "build" and record["state"] != "passed")


def finish(session):
    """The last results, and what the call ends with."""
    results = session.results
    session.telemetry.end()
    session.end_item()
    session.remove_work()
    for record in results.items.values():
        if record["state"] == "not run: waiting":
            record["state"] = "not run: interrupted"
    results.write()
    states = [record["state"].split(":")[0] for record in results.items.values()]
    known = ("passed", "failed", "interrupted", "not run")
    counts = ", ".join(f"{states.count(state)} {state}" for state in known if state in states)
    print(f"gpu-check: {counts}; {results.folder / 'gpu-check.txt'}", flush=True)
    return 0 if set(states) <= {"passed"} else 1


def check(arguments, machine, sizes, build, words):
    out = arguments.out.resolve()
    results = Results(out, build / "gpu-check", facts_of(machine, arguments, words))
    telemetry = Telemetry(machine.smi, machine.environment())
    session = Session(machine, sizes, results, telemetry, build)
    if not telemetry.works:
        results.document["notes"].append("nvidia-smi does not tell clocks, power and memory here")
    print(f"gpu-check: {machine.gpu}; results go to {out}", flush=True)
    signal.signal(signal.SIGINT, interrupt)
    signal.signal(signal.SIGTERM, interrupt)
    try:
        telemetry.begin()
        run_items(session, stages.chosen(arguments.stage, arguments.only), Budget(arguments.budget))
    except Interrupted as name:
        results.document["notes"].append(f"interrupted by {name}")
    return finish(session)


def main(words):
    arguments = parse(words)
    if arguments.list:
        print(stages.listing())
        return 0
    if arguments.rehearse:
        with rehearsal.Scene(arguments.build or ROOT / "build/release") as scene:
            return check(arguments, scene.machine, scene.sizes, scene.build, words)
    try:
        machine = Machine(nccl=arguments.nccl)
    except NoGpu as reason:
        print(f"gpu-check: {reason}", file=sys.stderr)
        return 2
    return check(arguments, machine, REAL, (arguments.build or ROOT / "build/cuda").resolve(), words)
