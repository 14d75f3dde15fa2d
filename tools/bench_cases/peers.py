#!/usr/bin/env python3
"""tools/bench peers: Holdfast against PyTorch (eager and compiled; fp32 and bf16 autocast) and llm.c (fp32), on this machine,
in one go: forward, backward, clipping and AdamW of the same model on fresh random batches.

In every round each program does a few steps, one program after the other, so that what else happens on the machine meets all
of them; a figure is the median over the rounds, a ratio the median of the rounds' ratios. Every program is a process of its
own that lives through all rounds and sleeps in between. Peak memory is the most that was resident, PyTorch's without what
its compiler needed.
"""
import argparse
import dataclasses
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from statistics import median

PARTS = Path(__file__).resolve().parent.parent / "bench_peers"
sys.path.insert(0, str(PARTS))
sys.dont_write_bytecode = True
import environment  # noqa: E402
from cases import CASES, PRECISIONS  # noqa: E402

WARMUP_STEPS = 3  # of a process that was just started
RANDOM_TOKENS = 400_000


def start_holdfast(case, precision, threads):
    import holdfast
    import numpy
    shard, config = environment.WORK / f"random-{case.shape.vocabulary}.bin", environment.WORK / "run.toml"
    if not shard.exists():
        holdfast.write_shard(shard, numpy.random.default_rng(1).integers(0, case.shape.vocabulary, RANDOM_TOKENS))
    holdfast.write_config(config, {
        "": {"threads": threads},
        "run": {"directory": "unset", "resume": "never"},
        "model": case.model_section(),
        "data": {"sources": [{"path": str(shard), "format": "llmc"}]},
        "training": {"steps": 100_000, "sequence_length": case.length, "microbatch_size": case.batch, "precision": precision},
        "parallel": {"lanes": 1},
        "optimizer": {"learning_rate": 1e-4},
        "watchdog": {"floor": "1d", "ceiling": "1d"},  # the process sleeps between rounds
    })
    return holdfast.Training(config, environment.WORK / "run", WARMUP_STEPS)


def start_llmc(folder, threads):
    import llmc
    llmc.prepare(environment.WORK / "llmc")
    return llmc.Training(folder, environment.WORK / "llmc", threads)


class PyTorch:
    """A process with one model (torch_worker.py) that does steps when it is asked to."""

    def __init__(self, case, precision, threads, name):
        self.name = name
        arguments = {"shape": dataclasses.asdict(case.shape), "batch": case.batch, "length": case.length, "precision": precision,
                     "compile": name == "pytorch-compiled", "threads": threads}
        self.log = environment.WORK / f"{self.name}.log"
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(PARTS / "torch_worker.py"), json.dumps(arguments)], stdin=subprocess.PIPE, stderr=log,
                stdout=subprocess.PIPE, text=True, env={**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(environment.WORK / "inductor")})
        self.ask(WARMUP_STEPS)

    def ask(self, steps):
        try:
            self.process.stdin.write(f"{steps}\n")
            self.process.stdin.flush()
            return json.loads(self.process.stdout.readline())
        except (BrokenPipeError, json.JSONDecodeError):
            environment.stop(f"{self.name} ended; the end of {self.log}:\n{self.log.read_text()[-2000:]}")

    def measure(self, steps):
        answer = self.ask(1 + steps)  # as with the others, the first after the sleep is not counted
        return answer["step_ms"][1:], answer["peak_memory_mib"]

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def measure_case(case, precision, arguments):
    """{program: {"step_ms": [[...] per round], "peak_memory_mib": x}}"""
    programs = {}
    try:
        programs["holdfast"] = start_holdfast(case, precision, arguments.threads)
        for name in ("pytorch-eager", "pytorch-compiled"):
            programs[name] = PyTorch(case, precision, arguments.threads, name)
        if case.llmc and arguments.llmc and precision == "fp32":
            programs["llm.c"] = start_llmc(arguments.llmc, arguments.threads)
        results = {name: {"step_ms": [], "peak_memory_mib": 0.0} for name in programs}
        for index in range(arguments.rounds):
            for name in list(programs) if index % 2 == 0 else reversed(programs):
                durations_ms, memory_mib = programs[name].measure(arguments.steps)
                results[name]["step_ms"].append(durations_ms)
                results[name]["peak_memory_mib"] = max(results[name]["peak_memory_mib"], memory_mib)
            latest = ", ".join(f"{name} {median(result['step_ms'][-1]):.0f}" for name, result in results.items())
            print(f"{case.name} {precision} round {index + 1}/{arguments.rounds}: {latest} ms", flush=True)
    finally:
        for program in programs.values():
            program.close()
    return results


def summarise(case, precision, measured):
    """Adds medians and ratios to the figures of a case; a peer's target is there where the issue names one."""
    full_width = environment.has_full_width_avx512()
    rounds = {name: [median(steps) for steps in result["step_ms"]] for name, result in measured.items()}
    fastest = min((name for name in measured if name.startswith("pytorch")), key=lambda name: median(rounds[name]))
    rows = []
    for name, result in measured.items():
        step_ms = median(rounds[name])
        row = {"case": case.name, "precision": precision, "program": name, "step_ms": step_ms, "rounds_ms": rounds[name],
               "all_steps_ms": result["step_ms"], "tokens_per_s": 1000 * case.tokens / step_ms,
               "peak_memory_mib": result["peak_memory_mib"]}
        if name != "holdfast":
            row["ratio"] = median(theirs / ours for theirs, ours in zip(rounds[name], rounds["holdfast"]))
            target = case.targets.get((precision, "pytorch" if name == fastest else name))
            row["target"] = target[0 if full_width else 1] if target else None
        rows.append(row)
    return rows


def llmc_against_bf16(case, rows):
    """llm.c has fp32 only: the bf16 target compares our bf16 step with its fp32 step of the same go."""
    steps = {(row["precision"], row["program"]): row["step_ms"] for row in rows if row["case"] == case.name}
    ours, theirs, targets = steps.get(("bf16", "holdfast")), steps.get(("fp32", "llm.c")), case.targets.get(("bf16", "llm.c"))
    if not (ours and theirs and targets):
        return []
    target = targets[0 if environment.has_full_width_avx512() else 1]
    return [{"case": case.name, "precision": "bf16", "program": "llm.c (fp32)", "step_ms": theirs,
             "tokens_per_s": 1000 * case.tokens / theirs, "ratio": theirs / ours, "target": target}]


def print_table(rows):
    """As Markdown, for docs/measurements_archive.md."""
    print("\n| case | | program | step ms (of the rounds) | tokens/s | Holdfast is faster by | target | peak MiB |\n"
          "|---|---|---|---|---|---|---|---|")
    for row in rows:
        spread = f" ({min(row['rounds_ms']):.0f} to {max(row['rounds_ms']):.0f})" if "rounds_ms" in row else ""
        ratio = f"{row['ratio']:.2f}" if "ratio" in row else ""
        verdict = f"{row['target']} {'met' if row['ratio'] >= row['target'] else '**missed**'}" if row.get("target") else ""
        memory = f"{row['peak_memory_mib']:.0f}" if "peak_memory_mib" in row else ""
        print(f"| {row['case']} | {row['precision']} | {row['program']} | {row['step_ms']:.0f}{spread} | {row['tokens_per_s']:.0f} | "
              f"{ratio} | {verdict} | {memory} |")


def parse_arguments():
    parser = argparse.ArgumentParser(prog="tools/bench peers", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [case.name for case in CASES]
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"some of {', '.join(names)} (default: all)")
    parser.add_argument("--precision", choices=PRECISIONS, action="append", help="only this one")
    parser.add_argument("--llmc", metavar="FOLDER", help="a folder of llm.c with train_gpt2 built; without it, llm.c is left out")
    parser.add_argument("--json", metavar="FILE", help="write every figure")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=3, help="counted steps of a program in a round")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--python", help="a Python with torch and numpy (default: made in .deps/peers)")
    arguments = parser.parse_args()
    for name in set(arguments.cases) - set(names):
        parser.error(f"unknown case '{name}'; the cases are {', '.join(names)}")
    return arguments, [case for case in CASES if not arguments.cases or case.name in arguments.cases]


def main():
    arguments, cases = parse_arguments()
    environment.need_torch(arguments.python)
    environment.need_program()
    if arguments.llmc:
        import llmc
        llmc.program_of(arguments.llmc)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("tools/bench peers: asked to end"))  # through every close()
    environment.WORK.mkdir(parents=True, exist_ok=True)
    print(f"machine: {environment.machine()}; {arguments.threads} threads, {arguments.rounds} rounds of {arguments.steps} steps",
          flush=True)
    rows = []
    for case in cases:
        for precision in arguments.precision or PRECISIONS:
            rows += summarise(case, precision, measure_case(case, precision, arguments))
        rows += llmc_against_bf16(case, rows)
        if arguments.json:  # after every case, so that a long go that is stopped leaves what it found
            document = {"case": "peers", "arguments": sys.argv[1:], "machine": environment.machine(), "result": {"rows": rows}}
            Path(arguments.json).write_text(json.dumps(document, indent=1) + "\n")
    print_table(rows)


if __name__ == "__main__":
    main()
