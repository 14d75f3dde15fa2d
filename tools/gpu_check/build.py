"""Makes the programs for the GPU of this machine: unpacks what the build needs, configures, and builds what the items use."""
import os
import re
import time

from . import predictions, source
from .machine import PACKAGES, ROOT
from .results import Failure

BUNDLE = ROOT / ".deps/bundle.tar.zst"
FIRST_TARGETS = ["holdfast_cuda", "test_kernels_gpu", "holdfast", "holdfast-bench"]  # nvcc takes longest for one file, so it begins
PREDICTED_FOR_PROCESSORS, PREDICTED_S = 16, 90
LATER_TARGETS = ["test_train_gpu", "test_nccl_gpu"]  # nothing that is measured waits for them


def unpack(session, record):
    """From the bundle that came with the tree, once. Without a bundle tools/bootstrap installs packages, which takes a network."""
    if BUNDLE.exists() and not PACKAGES.is_dir():
        session.runner.run("unpack", ["bash", "tools/bootstrap", "--from-bundle", BUNDLE, "--into-deps"])
        session.runner.environment = session.machine.environment()
        session.results.document["commit"] = source.commit()  # which came in the bundle
        record.setdefault("found", []).append(f"unpacked {BUNDLE.name}")
    elif not (ROOT / ".deps/mpi").exists():
        session.runner.run("bootstrap", ["bash", "tools/bootstrap"])
    if not (ROOT / ".deps/mpi/bin/ompi_info").exists():
        raise Failure("there is no Open MPI in .deps; make a bundle where there is network (tools/bootstrap --bundle FILE), and "
                      "copy it to .deps/bundle.tar.zst")


def configure_words(session):
    """Warnings of a compiler that this was not built with before are no reason to lose the time of a GPU: -w."""
    machine = session.machine
    flags = "-w"
    words = ["cmake", "--preset", "cuda", "-B", session.build, f"-DCMAKE_CUDA_ARCHITECTURES={machine.architecture()}",
             f"-DCMAKE_CUDA_COMPILER={machine.nvcc}", "-DCMAKE_CUDA_FLAGS=-w"]
    if PACKAGES.is_dir():
        words.append(f"-DCMAKE_PREFIX_PATH={PACKAGES}")
    if machine.nccl_include:
        words.append(f"-DHOLDFAST_NCCL_INCLUDE={machine.nccl_include}")
    if machine.toolkit_lacks_cublas() and machine.cublas_include:
        words += [f"-DCUDA_cublasLt_LIBRARY={machine.cublas_library}"]
        flags += f" -isystem {machine.cublas_include}"
    return [*words, f"-DCMAKE_CXX_FLAGS={flags}"]


def compile_targets(session, name, targets):
    return session.runner.run(name, ["cmake", "--build", session.build, "-j", str(os.cpu_count()), "--target", *targets])


def spilling(output):
    """Kernels whose registers the assembler spilled to memory."""
    found, name = [], ""
    for line in output.splitlines():
        if match := re.search(r"Compiling entry function '(\w+)'", line):
            name = match[1]
        elif match := re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", line):
            if match[1] != "0" or match[2] != "0":
                found.append(name)
    return sorted(set(found))


def build(session, record):
    if session.machine.nvcc is None:
        raise Failure("there is a GPU, but nvcc was not found; install the CUDA toolkit, or put nvcc in the PATH")
    unpack(session, record)
    record["architecture"] = session.machine.architecture()
    session.runner.run("configure", configure_words(session))
    begun = time.monotonic()
    output = compile_targets(session, "compile", FIRST_TARGETS)
    record["compile_s"] = round(time.monotonic() - begun, 1)
    if os.cpu_count() >= PREDICTED_FOR_PROCESSORS and not session.sizes.emulated:
        predictions.compare(record, "s of compiling", record["compile_s"], 0, PREDICTED_S)
    record["spilling_kernels"] = spilling(output)
    if record["spilling_kernels"]:
        record.setdefault("found", []).append(f"registers are spilled by {', '.join(record['spilling_kernels'])}")
    for name in ("holdfast", "holdfast-bench", session.sizes.smoke_program):
        if not session.program(name).exists():
            raise Failure(f"{session.program(name)} was not built")


def build_tests(session, record):
    """What only the tests need, after everything that is measured."""
    compile_targets(session, "compile-tests", LATER_TARGETS)
