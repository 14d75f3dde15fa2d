#!/usr/bin/env python3
"""bench lanes: two ranks of one thread each, against two processes of one thread that know nothing of each other.

Both compute the same number of tokens a step. The ratio of their tokens per second is what the exchange of gradients and
parameters costs; the target is at least 95 %. A round is one short start of either, because the speed of a shared machine
changes within seconds, and every other round starts the two processes first; the ratio is the median of the rounds' ratios.
The first steps do not count: those of ranks are slower than the rest. The defaults take two to three minutes on two processors.
"""
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from _common import HOLDFAST, MPIRUN, events, fail, parser, positive, write_config, write_json, write_tokens

RANKS = 2
WARM_UP_STEPS = 3
VOCABULARY = {"llama-15m": 32000, "llama-110m": 32000, "gpt2-124m": 50257}
WIDTH = {"llama-15m": 288, "llama-110m": 768, "gpt2-124m": 768}
TARGET = 0.95


def run_all(commands):
    """Starts the commands together and waits for all."""
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
               for command in commands]
    for process in running:
        output, _ = process.communicate()
        if process.returncode != 0:
            fail(f"{' '.join(process.args)} ended with exit code {process.returncode}: {output}")


def tokens_per_sec(run):
    steps = [event for event in events(run) if event["event"] == "step"][WARM_UP_STEPS:]
    return statistics.median(event["tokens_per_sec"] for event in steps)


def gradient_bytes(preset, parameters):
    """Of a rank and step by the formula of a ring reduce-scatter: its gradients, in fp32, but for the part it owns. The head
    shares the embedding's weights and has gradients of its own; both are padded to a multiple of 64 rows. It is the mean over
    the ranks: they own whole blocks of 4,096 elements, so that the bytes of one rank differ by some thousandths."""
    vocabulary = VOCABULARY[preset]
    padded = (vocabulary + 63) // 64 * 64
    elements = parameters + (2 * padded - vocabulary) * WIDTH[preset]
    return 4 * elements * (RANKS - 1) // RANKS


class Bench:
    def __init__(self, folder, options):
        self.folder = folder
        self.options = options
        self.runs = 0
        write_tokens(folder / "tokens.bin", 1 << 20, VOCABULARY[options.preset])

    def config(self):
        """A run directory of its own, and its config."""
        self.runs += 1
        run = self.folder / f"run-{self.runs}"
        config = self.folder / f"run-{self.runs}.toml"
        write_config(config, run, self.folder / "tokens.bin", self.options.preset, steps=WARM_UP_STEPS + self.options.steps,
                     sequence_length=self.options.sequence_length, microbatch_size=self.options.microbatch_size,
                     precision=self.options.precision)
        config.write_text(f"threads = 1\n{config.read_text()}")
        return run, str(config)

    def together(self):
        """The run directory of two ranks."""
        run, config = self.config()
        run_all([[MPIRUN, "-np", str(RANKS), HOLDFAST, "train", config, f"--parallel.lanes={RANKS}"]])
        return run

    def apart(self):
        """Tokens per second of two processes, added."""
        pairs = [self.config() for _ in range(RANKS)]
        run_all([[HOLDFAST, "train", config, "--parallel.lanes=1"] for _, config in pairs])
        return sum(tokens_per_sec(run) for run, _ in pairs)

    def round(self, number):
        """The run directory of two ranks, and tokens per second of two processes next to it in time."""
        print(f"  round {number + 1} of {self.options.rounds}:", end=" ", flush=True)
        if number % 2 == 0:
            run, apart = self.together(), self.apart()
        else:
            apart, run = self.apart(), self.together()
        one = tokens_per_sec(run)
        print(f"{RANKS} ranks {one:.0f} tokens/s, {RANKS} processes {apart:.0f} tokens/s, ratio {100 * one / apart:.1f} %",
              flush=True)
        return run, apart


def main():
    arguments = parser(__doc__)
    arguments.add_argument("--preset", choices=VOCABULARY, default="llama-15m")
    arguments.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    arguments.add_argument("--sequence-length", type=positive, default=256)
    arguments.add_argument("--microbatch-size", type=positive, default=4)
    arguments.add_argument("--steps", type=positive, default=5, help="measured in each run")
    arguments.add_argument("--rounds", type=positive, default=7)
    options = arguments.parse_args()
    print(f"{options.preset}, {options.precision}, {options.microbatch_size}x{options.sequence_length} tokens a rank and step, "
          f"{RANKS} ranks of 1 thread", flush=True)
    together, apart = [], []
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as name:
        bench = Bench(Path(name), options)
        for number in range(options.rounds):
            run, two_processes = bench.round(number)
            together.append(tokens_per_sec(run))
            apart.append(two_processes)
        start, finish = [next(event for event in events(run) if event["event"] == kind) for kind in ("start", "finish")]
    steps = WARM_UP_STEPS + options.steps
    ratio = statistics.median(one / other for one, other in zip(together, apart))
    sent = finish["gradient_bytes_sent"] / steps
    formula = gradient_bytes(options.preset, start["parameters"])
    hidden = finish["gradient_bytes_sent_during_backward"] / finish["gradient_bytes_sent"]
    exposed = finish["gradient_exposed_ms"] / steps
    print(f"  median of {options.rounds}: {RANKS} ranks of one run {statistics.median(together):.0f} tokens/s, {RANKS} processes "
          f"{statistics.median(apart):.0f} tokens/s, ratio {100 * ratio:.1f} % (target: at least {100 * TARGET:.0f} %)\n"
          f"  gradients sent {sent:.0f} bytes a rank and step; by the formula {formula} ({100 * sent / formula:.2f} %)\n"
          f"  sent during backward {100 * hidden:.1f} % of these bytes; {exposed:.1f} ms of a step pass in the exchange after "
          f"backward")
    write_json(options.json, "lanes",
               {"preset": options.preset, "precision": options.precision, "sequence_length": options.sequence_length,
                "microbatch_size": options.microbatch_size, "ranks": RANKS, "together_tokens_per_sec": together,
                "apart_tokens_per_sec": apart, "ratio": ratio, "gradient_bytes_per_step": sent,
                "gradient_bytes_by_formula": formula, "bytes_hidden_share": hidden, "exposed_ms_per_step": exposed})
    return 0


if __name__ == "__main__":
    sys.exit(main())
