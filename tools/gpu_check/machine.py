"""The machine: its GPU, the tools of the CUDA toolkit, a Python with PyTorch or NCCL, and the environment that programs get."""
import contextlib
import json
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
PACKAGES = ROOT / ".deps/packages/usr"  # unpacked by tools/bootstrap --from-bundle FILE --into-deps
PACKAGED_LIBRARIES = PACKAGES / "lib/x86_64-linux-gnu"
CUDA_TOOLS = "/usr/local/cuda/bin"
SMI_S = 60  # without a persistence daemon the driver takes a while to start

FACTS = ["name", "compute_cap", "driver_version", "memory.total", "power.limit", "clocks.max.sm", "clocks.max.memory", "uuid",
         "pci.bus_id", "vbios_version", "persistence_mode", "ecc.mode.current"]

# What the packages of a Python bring that the CUDA toolkit of the machine may lack.
ASK_PYTHON = """
import importlib.util, json, pathlib
found = {"torch": importlib.util.find_spec("torch") is not None, "include": {}, "lib": {}}
try:
    places = list(importlib.util.find_spec("nvidia").submodule_search_locations)
except (ImportError, AttributeError, TypeError):
    places = []
for what, header, library in (("nccl", "nccl.h", "libnccl.so.2"), ("cublas", "cublasLt.h", "libcublasLt.so.*")):
    for place in places:
        for path in sorted(pathlib.Path(place).glob("*/include/" + header)):
            found["include"].setdefault(what, str(path.parent))
        for path in sorted(pathlib.Path(place).glob("*/lib/" + library)):
            found["lib"].setdefault(what, str(path))
print(json.dumps(found))
"""


class NoGpu(Exception):
    """There is nothing that this could run on; the text says why."""


def find_tool(name):
    """A program of the CUDA toolkit: in the PATH or where the toolkit lies."""
    found = shutil.which(name) or shutil.which(name, path=CUDA_TOOLS)
    return Path(found) if found else None


def find_smi():
    smi = shutil.which("nvidia-smi")
    if smi is None:
        raise NoGpu("there is no GPU here: nvidia-smi, which comes with NVIDIA's driver, was not found")
    return smi


def query_gpus(smi):
    """[(name, compute capability)]"""
    try:
        listing = subprocess.run([smi, "--query-gpu=name,compute_cap", "--format=csv,noheader"], capture_output=True, text=True,
                                 check=False, timeout=SMI_S)
    except subprocess.TimeoutExpired as error:
        raise NoGpu(f"there is no GPU that works here: nvidia-smi did not answer within {SMI_S} s") from error
    lines = [line for line in listing.stdout.splitlines() if "," in line]
    if listing.returncode != 0 or not lines:
        raise NoGpu(f"there is no GPU here: nvidia-smi says: {(listing.stdout + listing.stderr).strip() or 'nothing'}")
    return [tuple(part.strip() for part in line.rsplit(",", 1)) for line in lines]


def query_facts(smi):
    """{field: text} of the first GPU. A field that this driver does not know is left out, one by one."""
    facts = {}
    for field in FACTS:
        try:
            done = subprocess.run([smi, f"--query-gpu={field}", "--format=csv,noheader", "--id=0"], capture_output=True, text=True,
                                  check=False, timeout=SMI_S)
        except subprocess.TimeoutExpired:
            break
        if done.returncode == 0 and done.stdout.strip():
            facts[field] = done.stdout.strip().splitlines()[0]
    return facts


def pythons():
    """Interpreters that may have PyTorch or NCCL, the likeliest first."""
    named = [os.environ.get("HOLDFAST_PEERS_PYTHON"), shutil.which("python3"), sys.executable, ROOT / ".deps/peers/bin/python"]
    found = []
    for each in named:
        if each and os.access(each, os.X_OK) and str(each) not in found:
            found.append(str(each))
    return found


def ask_python(python):
    """What ASK_PYTHON prints, or {} when that Python does not work."""
    try:
        done = subprocess.run([python, "-c", ASK_PYTHON], capture_output=True, text=True, check=False, timeout=60)
        return json.loads(done.stdout) if done.returncode == 0 else {}
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return {}


class Machine:
    """Raises NoGpu where there is no GPU. `emulator`: the module that stands for the GPU in a rehearsal, else None."""

    def __init__(self, emulator=None, nccl=None):
        self.smi = find_smi()
        gpus = query_gpus(self.smi)
        self.gpu_names = [name for name, _ in gpus]
        self.gpu, self.capability = gpus[0]
        self.emulator = emulator
        self.nvcc = find_tool("nvcc")
        self.torch_python = None
        self.nccl_include = self.cublas_include = self.cublas_library = None
        self.nccl_library = str(nccl / "libnccl.so.2") if nccl else None
        for python in pythons():
            answer = ask_python(python)
            if answer.get("torch") and self.torch_python is None:
                self.torch_python = python
            include, lib = answer.get("include", {}), answer.get("lib", {})
            self.nccl_include = self.nccl_include or include.get("nccl")
            self.nccl_library = self.nccl_library or lib.get("nccl")
            self.cublas_include = self.cublas_include or include.get("cublas")
            self.cublas_library = self.cublas_library or lib.get("cublas")

    def architecture(self):
        """For CMAKE_CUDA_ARCHITECTURES. wgmma and setmaxnreg of compute capability 9.0 exist in its "a" target only."""
        return {"9.0": "90a"}.get(self.capability, self.capability.replace(".", ""))

    def toolkit_lacks_cublas(self):
        """Whether the toolkit has no cublasLt.h: then that of a Python is used."""
        if self.nvcc is None:
            return False
        include = self.nvcc.resolve().parent.parent
        return not any((include / place / "cublasLt.h").exists() for place in ("include", "targets/x86_64-linux/include"))

    def environment(self):
        """For everything that is started: programs and libraries of .deps, nvcc, and the NCCL of a Python are found."""
        paths = [os.environ.get("PATH", ""), str(PACKAGES / "bin"), *([str(self.nvcc.parent)] if self.nvcc else [])]
        libraries = [str(PACKAGED_LIBRARIES)] if PACKAGED_LIBRARIES.is_dir() else []
        if self.nccl_library:
            libraries.append(str(Path(self.nccl_library).parent))
        if self.cublas_library and self.toolkit_lacks_cublas():
            libraries.append(str(Path(self.cublas_library).parent))
        if os.environ.get("LD_LIBRARY_PATH"):
            libraries.append(os.environ["LD_LIBRARY_PATH"])
        values = {**os.environ, "PATH": ":".join(paths), "PYTHONDONTWRITEBYTECODE": "1", "OMPI_ALLOW_RUN_AS_ROOT": "1",
                  "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        if not values.get("HOME"):
            values["HOME"] = home_of_user()
        if libraries:
            values["LD_LIBRARY_PATH"] = ":".join(libraries)
        if self.emulator:
            values["HOLDFAST_CUDA_MODULE"] = str(self.emulator)
            values["EMULATED_GPU_COMPUTE"] = self.capability.replace(".", "")
        return values

    def facts(self):
        found = query_facts(self.smi)
        return {"gpus": self.gpu_names,
                "gpu": {"name": self.gpu, "capability": self.capability, "driver": found.get("driver_version", "unknown"),
                        "facts": found},
                "machine": {"processors": os.cpu_count(), "kernel": os.uname().release, "host_memory_gib": host_memory_gib(),
                            "python": sys.version.split()[0], "python_with_torch": self.torch_python,
                            "nvcc": str(self.nvcc) if self.nvcc else None, "nccl": self.nccl_library,
                            "nccl_include": self.nccl_include}}


def home_of_user():
    """Where Open MPI may look for settings, which name libraries to load: nobody else may be able to put some there."""
    with contextlib.suppress(KeyError, OSError):
        home = pwd.getpwuid(os.geteuid()).pw_dir
        if os.stat(home).st_uid == os.geteuid():
            return home
    return tempfile.mkdtemp(prefix="holdfast-home-")


def host_memory_gib():
    return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
