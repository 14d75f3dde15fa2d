"""Holdfast for Python: the program that the wheel brings, and doors to what a run has written.

    import holdfast
    for event in holdfast.read_events("runs/a"):     # dicts, as docs/events.md describes them; the oldest first
        ...
    weights = holdfast.read_checkpoint("runs/a")     # {name of transformers: numpy array}
    print(holdfast.read_status("runs/a")["step"])

The package needs nothing but Python; read_checkpoint() needs numpy. Training itself is started by the command `holdfast`.
"""
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

__all__ = ["Error", "main", "program", "read_checkpoint", "read_events", "read_status"]


class Error(Exception):
    """What the program said when it refused; `code` is its exit code (docs/errors.md)."""

    def __init__(self, sentence, code):
        super().__init__(sentence)
        self.code = code


def program():
    """The path of the program `holdfast`: $HOLDFAST, else the one of this package."""
    return os.environ.get("HOLDFAST") or str(Path(__file__).resolve().parent / "program/lib/holdfast/bin/holdfast")


def main():
    """The command `holdfast` of the wheel: becomes the program."""
    words = [program(), *sys.argv[1:]]
    try:
        os.execv(words[0], words)
    except OSError as error:
        sys.exit(f"holdfast: {words[0]} cannot be started: {error.strerror}")


def _said_by(*words):
    done = subprocess.run([program(), *map(str, words)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sentence = done.stderr.strip() or f"holdfast {words[0]} ended with {done.returncode}"
        raise Error(sentence.removeprefix("holdfast: "), done.returncode)
    return done.stdout


def read_events(run, kind=None):
    """The events of a run directory as dicts, the oldest first; with `kind`, those of one kind. Of a run that goes on, those so far."""
    lines = _said_by("events", run, "--json", *(["--kind", kind] if kind else [])).splitlines()
    return [json.loads(line) for line in lines]


def read_status(run):
    """How a run stands, as `holdfast status --json` says."""
    return json.loads(_said_by("status", run, "--json"))


def read_checkpoint(checkpoint, precision="fp32"):
    """The weights of a checkpoint, or of the newest whole one of a run directory, as numpy arrays by the names that transformers
    has for them. `precision`: fp32, every bit; or bf16, rounded to nearest and returned as float32."""
    import numpy

    with tempfile.TemporaryDirectory(prefix="holdfast-") as place:
        folder = Path(place) / "weights"
        _said_by("export", checkpoint, folder, "--precision", precision)
        weights = {}
        for file in sorted(folder.glob("*.safetensors")):
            weights.update(_tensors_of(file, numpy))
        return weights


def _tensors_of(file, numpy):
    """Of a safetensors file: eight bytes with the length of a header in JSON, the header, the tensors."""
    content = file.read_bytes()
    length = int.from_bytes(content[:8], "little")
    tensors = {}
    for name, tensor in json.loads(content[8:8 + length]).items():
        if name == "__metadata__":
            continue
        begin, end = (8 + length + offset for offset in tensor["data_offsets"])
        if tensor["dtype"] == "BF16":
            words = numpy.frombuffer(content[begin:end], "<u2").astype("<u4") << 16
            values = words.view("<f4")
        else:
            values = numpy.frombuffer(content[begin:end], {"F32": "<f4", "F16": "<f2"}[tensor["dtype"]]).copy()
        tensors[name] = values.reshape(tensor["shape"])
    return tensors


if __name__ == "__main__":
    main()
