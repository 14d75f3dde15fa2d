"""llm.c (karpathy/llm.c), from a folder that the user names and that holds train_gpt2, built by `make train_gpt2`: random
weights and tokens where the program looks for them, and the times it prints. Nothing of it is kept here. The program's batch
is 4 x 64 tokens and its model GPT-2 124M in fp32."""
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import numpy

from environment import stop
from holdfast import peak_memory_mib, write_shard

MODEL_MAGIC, MODEL_VERSION = 20240326, 3
POSITIONS, VOCABULARY, LAYERS, HEADS, WIDTH, PADDED_VOCABULARY = 1024, 50257, 12, 12, 768, 50304
STEPS_BEFORE_IT_GENERATES = 20  # text, for a minute
FOLDER_OF_TOKENS = "dev/data/tinyshakespeare"


def program_of(folder):
    program = Path(folder).resolve() / "train_gpt2"
    if not os.access(program, os.X_OK):
        stop(f"{program} is not there; build it with: make -C {folder} train_gpt2")
    return program


def write_model(path):
    """Random weights: all matrices normal with deviation 0.02, norms 1, biases 0."""
    generator = numpy.random.default_rng(1)
    header = numpy.zeros(256, dtype="<i4")
    header[:8] = MODEL_MAGIC, MODEL_VERSION, POSITIONS, VOCABULARY, LAYERS, HEADS, WIDTH, PADDED_VOCABULARY
    with open(path, "wb") as file:
        def matrix(elements):
            file.write((generator.standard_normal(elements, dtype=numpy.float32) * numpy.float32(0.02)).tobytes())

        def constant(elements, value):
            file.write(numpy.full(elements, value, dtype=numpy.float32).tobytes())

        file.write(header.tobytes())
        matrix(PADDED_VOCABULARY * WIDTH)
        matrix(POSITIONS * WIDTH)
        constant(LAYERS * WIDTH, 1)  # norm before attention
        constant(LAYERS * WIDTH, 0)
        for outputs, inputs in ((3 * WIDTH, WIDTH), (WIDTH, WIDTH)):  # qkv, output
            matrix(LAYERS * outputs * inputs)
            constant(LAYERS * outputs, 0)
        constant(LAYERS * WIDTH, 1)  # norm before feed-forward
        constant(LAYERS * WIDTH, 0)
        for outputs, inputs in ((4 * WIDTH, WIDTH), (WIDTH, 4 * WIDTH)):  # up, down
            matrix(LAYERS * outputs * inputs)
            constant(LAYERS * outputs, 0)
        constant(WIDTH, 1)
        constant(WIDTH, 0)


def prepare(work):
    """A folder in which the program finds its files."""
    if not (work / "gpt2_124M.bin").exists():
        print("writing random weights for llm.c ...", flush=True)
        shutil.rmtree(work, ignore_errors=True)
        (work / FOLDER_OF_TOKENS).mkdir(parents=True)
        generator = numpy.random.default_rng(2)
        for split in ("train", "val"):
            write_shard(work / FOLDER_OF_TOKENS / f"tiny_shakespeare_{split}.bin", generator.integers(0, VOCABULARY, 200_000))
        write_model(work / "unfinished.bin")
        (work / "unfinished.bin").rename(work / "gpt2_124M.bin")


class Training:
    """The program, asleep (SIGSTOP) between calls of measure()."""

    def __init__(self, folder, work, threads):
        self.program, self.work = program_of(folder), work
        self.environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        self.process = None
        self.start()

    def start(self):
        self.close()
        self.process = subprocess.Popen(["stdbuf", "-oL", str(self.program)], cwd=self.work, env=self.environment,
                                        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.steps_left = STEPS_BEFORE_IT_GENERATES
        self.wait_for(1)

    def wait_for(self, count):
        """Milliseconds of the next `count` steps, when they are done; the program is then put to sleep."""
        durations_ms, said = [], []
        for line in self.process.stdout:
            said.append(line)
            if match := re.match(r"step \d+: train loss [\d.]+ \(took ([\d.]+) ms\)", line):
                durations_ms.append(float(match.group(1)))
            if len(durations_ms) == count:
                self.process.send_signal(signal.SIGSTOP)
                self.steps_left -= count
                return durations_ms
        stop(f"{self.program} ended: {''.join(said[-3:]).strip()}")

    def measure(self, count):
        """(milliseconds of `count` steps, peak memory in MiB); the step that the sleep cut in two is not counted."""
        if self.steps_left < count + 1:
            self.start()
        self.process.send_signal(signal.SIGCONT)
        return self.wait_for(count + 1)[1:], peak_memory_mib(self.process.pid)

    def close(self):
        if self.process:
            self.process.kill()
            self.process.wait()
            self.process.stdout.close()
