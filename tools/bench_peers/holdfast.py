"""Our side: token shards, configs, `holdfast train`, and what it leaves behind."""
import json
import shutil
import signal
import subprocess
import time
from pathlib import Path

import numpy

from environment import PROGRAM, stop

SHARD_MAGIC = 20240520  # llm.c's token shard of uint16 tokens
WAIT_S = 600            # no case takes longer for a few steps


def write_shard(path, tokens):
    header = numpy.zeros(256, dtype="<i4")
    header[:3] = SHARD_MAGIC, 1, len(tokens)
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "wb") as file:
        file.write(header.tobytes())
        file.write(numpy.asarray(tokens, dtype="<u2").tobytes())


def read_shard(path):
    return numpy.fromfile(path, dtype="<u2", offset=1024)


def toml_value(value):
    if isinstance(value, list):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {toml_value(inner)}" for key, inner in value.items()) + "}"
    return json.dumps(value)


def write_config(path, sections):
    """sections: {"run": {...}, ...}; keys of the section "" come first."""
    lines = [f"{key} = {toml_value(value)}" for key, value in sections.get("", {}).items()]
    for section, values in sections.items():
        if section:
            lines += [f"[{section}]", *(f"{key} = {toml_value(value)}" for key, value in values.items())]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")


def read_events(run_directory, kind):
    """The whole lines of that kind so far."""
    path = Path(run_directory) / "events.jsonl"
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return [event for event in map(json.loads, lines) if event["event"] == kind]


def peak_memory_mib(pid):
    """The most that the process ever had resident."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    return 0.0


def train(config, *overrides):
    """Runs to the end; a failure is told with the program's own words."""
    result = subprocess.run([str(PROGRAM), "train", str(config), *overrides], capture_output=True, text=True)
    if result.returncode != 0:
        stop(f"holdfast train {config} ended with {result.returncode}: {result.stderr.strip()}")


class Training:
    """A training process that sleeps (SIGSTOP) between calls of measure()."""

    def __init__(self, config, run_directory, warmup):
        self.config, self.run = config, run_directory
        shutil.rmtree(run_directory, ignore_errors=True)
        self.process = subprocess.Popen([str(PROGRAM), "train", str(config), f"--run.directory={run_directory}"],
                                        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        try:
            self.wait_for(warmup)
        except BaseException:
            self.close()
            raise

    def wait_for(self, count):
        """The first `count` steps, when they are done; the process is then put to sleep."""
        deadline = time.monotonic() + WAIT_S
        while len(steps := read_events(self.run, "step")) < count:
            if self.process.poll() is not None:
                stop(f"holdfast train {self.config} ended with {self.process.returncode}: {self.process.stderr.read().strip()}")
            if time.monotonic() > deadline:
                stop(f"holdfast train {self.config} did {len(steps)} steps of {count} in {WAIT_S} s; look at {self.run}.")
            time.sleep(0.02)
        self.process.send_signal(signal.SIGSTOP)
        return steps

    def measure(self, count):
        """(milliseconds of `count` steps, each from the end of the one before to its own end, so that everything between two
        steps is in it; peak memory in MiB). The step that the sleep cut in two is not counted."""
        cut = len(read_events(self.run, "step")) + 1
        self.process.send_signal(signal.SIGCONT)
        steps = self.wait_for(cut + count)
        ends_ms = [step["time_us"] / 1000 for step in steps[cut - 1:cut + count]]
        return [after - before for before, after in zip(ends_ms, ends_ms[1:])], peak_memory_mib(self.process.pid)

    def close(self):
        """Ends it without the save that a polite end would make."""
        self.process.kill()
        self.process.wait()
        self.process.stderr.close()
