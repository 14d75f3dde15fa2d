"""Where the peers live: a Python with PyTorch of its own, the holdfast program, and a place for files."""
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
PROGRAM = Path(os.environ.get("HOLDFAST") or ROOT / "build/release/bin/holdfast").resolve()
WORK = ROOT / "runs/peers"  # random weights and tokens, runs; may be removed at any time
VENV = ROOT / ".deps/peers"
PACKAGES = ["torch==2.15.0", "numpy==2.4.6", "setuptools==84.2.1"]  # setuptools: torch.compile needs it


def stop(sentence):
    sys.exit(f"{Path(sys.argv[0]).name}: {sentence}")


def make_torch_environment():
    """A virtual environment with PyTorch from PyPI in .deps/peers: about 5 GB, made once."""
    python = VENV / "bin/python"
    if (VENV / "complete").exists():
        return python
    print(f"installing {', '.join(PACKAGES)} from PyPI into {VENV}: once, and about 5 GB ...", flush=True)
    commands = [["/usr/bin/python3", "-m", "venv", "--clear", VENV],
                [python, "-m", "pip", "install", "--disable-pip-version-check", *PACKAGES]]
    for command in commands:
        if subprocess.run(list(map(str, command))).returncode != 0:
            stop(f"'{' '.join(map(str, command))}' failed; if it was the network, repeat this command. A Python that has "
                 "torch and numpy can be named with --python or HOLDFAST_PEERS_PYTHON instead.")
    (VENV / "complete").touch()
    return python


def need_torch(python):
    """Returns if this interpreter has PyTorch; else starts the script again with one that has: `python`, the one that
    HOLDFAST_PEERS_PYTHON names, or that of .deps/peers."""
    named = python or os.environ.get("HOLDFAST_PEERS_PYTHON")
    if named is None and importlib.util.find_spec("torch") and importlib.util.find_spec("numpy"):
        return
    chosen = Path(named) if named else make_torch_environment()
    if Path(sys.executable) == chosen.absolute():
        if importlib.util.find_spec("torch") and importlib.util.find_spec("numpy"):
            return
        stop(f"{chosen} has no torch or no numpy; install them there, or leave --python and HOLDFAST_PEERS_PYTHON out.")
    if not os.access(chosen, os.X_OK):
        stop(f"{chosen} is not a program; name a Python that has torch and numpy, or leave it out.")
    os.execv(chosen.absolute(), [str(chosen.absolute()), *sys.argv])


def need_program():
    if not PROGRAM.exists():
        stop(f"{PROGRAM} is not there; build it with: cmake --preset release && cmake --build --preset release --target holdfast")


def machine():
    """What the processors are, in one line."""
    fields = {}
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        key, _, value = line.partition(":")
        fields.setdefault(key.strip(), value.strip())
    features = [name for name in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if name in fields.get("flags", "").split()]
    return f"{os.cpu_count()} processors, {fields.get('model name', 'unknown')} ({', '.join(features) or 'no AVX2'})"


def has_full_width_avx512():
    """Zen 4 (AMD, family 25) computes 512-bit instructions in two halves."""
    text = Path("/proc/cpuinfo").read_text()
    return " avx512f " in text and not ("AuthenticAMD" in text and "cpu family\t: 25" in text)
