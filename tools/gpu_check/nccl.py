"""NCCL on one GPU: what one rank can show."""
from . import tests
from .results import Failure


def find(session, record):
    """Which NCCL programs get, and whether the build has it."""
    machine = session.machine
    record["library"], record["include"] = machine.nccl_library, machine.nccl_include
    code, output = session.runner.outcome("version", [session.program(), "--version"])
    line = next((line for line in output.splitlines() if "nccl" in line.lower()), "")
    if code == 0 and line:
        record["version_line"] = line.strip()
    place = f"NCCL of a Python: {machine.nccl_library}"
    record.setdefault("found", []).append(place if machine.nccl_library else "no Python brings NCCL; the system's is used, if any")


def one_rank(session, record):
    """The tests of real NCCL: one rank, made again 50 times, with memory and file descriptors watched. Those that need a second GPU
    are skipped where there is none."""
    find(session, record)
    skipped = tests.run_labelled(session, record, ["-R", "[Nn]ccl"], "nccl")
    if record["tests"] == len(skipped):
        raise Failure("no test of NCCL ran: the build found no nccl.h, or the program no libnccl.so.2")
    if skipped:
        record["found"].append(f"skipped: {', '.join(skipped)}")
    record["found"].append("This item has one rank of NCCL: nccl-ranks has more; NVLink takes two GPUs.")
