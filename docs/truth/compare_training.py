#!/usr/bin/env python3
"""docs/truth/compare_training.py: does training here end where PyTorch's ends, from the same weights and data?

Trains preset llama-15m for 300 steps on the text of tools/corpus.py, with `holdfast train` and with PyTorch, in fp32 and in
bf16 (there: autocast), and writes losses.csv and curves.svg next to this script; docs/truth.md tells what they show.

  same weights   a run of one step with learning rate 0 saves what a seed starts from; the run starts from that checkpoint
                 (run.initialize_from), and PyTorch reads the same file
  same data      the run's ledger (data.ledger) says which samples each step used, and PyTorch reads those in that order
  same update    AdamW, warm-up and cosine, decay on matrices, clipping at a global norm of 1, in PyTorch's own code;
                 the learning rate of each step is computed here, not read from the run

Ends with exit code 1 if a final loss (mean of the last 20 steps) is more than 1 % off. What is already done (in runs/truth)
is not done again; --fresh starts over.
"""
import argparse
import csv
import json
import math
import shutil
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent / "tools/bench_peers"))
sys.dont_write_bytecode = True
import environment  # noqa: E402

WORK = environment.ROOT / "runs/truth"
PRESET, VOCABULARY = "llama-15m", 32000
STEPS, LENGTH, MICROBATCH, LANES = 300, 256, 4, 2
OPTIMIZER = {"learning_rate": 1e-3, "warmup_steps": 30, "final_fraction": 0.1, "beta1": 0.9, "beta2": 0.95, "epsilon": 1e-8,
             "weight_decay": 0.1, "gradient_clip": 1.0}
LAST = 20  # steps whose mean is the final loss
TOLERANCE = 0.01
PRECISIONS = ("fp32", "bf16")


def prepare(threads):
    """The tokens and the config, in WORK."""
    import holdfast
    import words
    shard = WORK / "train.bin"
    if not shard.exists():
        text = environment.ROOT / "data/corpus/train.txt"
        if not text.exists():
            environment.stop(f"{text} is not there; make it with: tools/corpus.py data/corpus")
        tokens = words.encode(text.read_bytes(), VOCABULARY)
        print(f"{text}: {len(tokens)} tokens, {len(set(tokens.tolist()))} different ones", flush=True)
        holdfast.write_shard(shard, tokens)
    holdfast.write_config(WORK / "run.toml", {
        "": {"threads": threads},
        "run": {"directory": "unset", "seed": 1},
        "model": {"preset": PRESET},
        "data": {"sources": [{"path": str(shard), "format": "llmc"}], "ledger": True},
        "training": {"steps": STEPS, "sequence_length": LENGTH, "microbatch_size": MICROBATCH},
        "parallel": {"lanes": LANES},
        "optimizer": {"schedule": "cosine", **OPTIMIZER},
    })


def train_with_holdfast(precision):
    """(losses, gradient norms) of a finished run."""
    import holdfast
    run, start = WORK / f"holdfast-{precision}", WORK / "start"
    common = [f"--run.directory={run}", f"--training.precision={precision}"]
    if not (start / "checkpoints/step-00000001/manifest.json").exists():
        holdfast.train(WORK / "run.toml", f"--run.directory={start}", "--training.steps=1", "--optimizer.learning_rate=0",
                       "--optimizer.warmup_steps=0", "--checkpoint.compression=none")
    holdfast.train(WORK / "run.toml", *common, f"--run.initialize_from={start}")
    steps = {event["step"]: event for event in holdfast.read_events(run, "step")}  # the last counts
    skipped = [str(i) for i in range(1, STEPS + 1) if steps[i]["loss"] is None or steps[i]["grad_norm"] is None]
    if skipped:
        sys.exit(f"compare_training: the run skipped step {', '.join(skipped)}, whose loss or gradient norm is not finite, so there "
                 f"is nothing to compare; {run}/events.jsonl says why (event verdict)")
    return [steps[i]["loss"] for i in range(1, STEPS + 1)], [steps[i]["grad_norm"] for i in range(1, STEPS + 1)]


def batches(precision):
    """The tokens of every step, (samples, LENGTH + 1), in the order of the run's ledger."""
    import holdfast
    import numpy
    tokens = holdfast.read_shard(WORK / "train.bin")
    lines = map(json.loads, (WORK / f"holdfast-{precision}/ledger-00000.jsonl").read_text().splitlines())
    samples = {line["step"]: [sample for _, sample, _ in line["samples"]] for line in lines}
    for step in range(1, STEPS + 1):
        yield numpy.stack([tokens[i * LENGTH:(i + 1) * LENGTH + 1] for i in samples[step]]).astype("int64")


def learning_rate(step):
    """Linear warm-up to the peak, then half a cosine down to final_fraction of it at the last step."""
    peak, warmup, fraction = (OPTIMIZER[key] for key in ("learning_rate", "warmup_steps", "final_fraction"))
    if step <= warmup:
        return peak * step / warmup
    share = (step - warmup) / (STEPS - warmup)
    return peak * (fraction + (1 - fraction) * 0.5 * (1 + math.cos(math.pi * share)))


def train_with_torch(precision, threads):
    """(losses, gradient norms)."""
    import checkpoint
    import torch
    import torch_model
    from cases import LLAMA_15M
    torch.set_num_threads(threads)
    model = torch_model.Transformer(LLAMA_15M, LENGTH, float_logits=True)
    weights = checkpoint.read_tensors(WORK / "start/checkpoints/step-00000001")
    model.load_state_dict({name: torch.from_numpy(value) for name, value in weights.items()}, strict=True)
    optimizer = torch_model.adamw(model, OPTIMIZER["learning_rate"], OPTIMIZER["weight_decay"],
                                  (OPTIMIZER["beta1"], OPTIMIZER["beta2"]), OPTIMIZER["epsilon"])
    losses, norms = [], []
    for step, batch in enumerate(batches(precision), 1):
        tokens = torch.from_numpy(batch)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step)
        loss, norm = torch_model.train_step(model, optimizer, tokens[:, :-1], tokens[:, 1:], precision == "bf16",
                                            OPTIMIZER["gradient_clip"])
        losses.append(loss)
        norms.append(norm)
        if step % 20 == 0:
            print(f"PyTorch {precision} step {step}/{STEPS} loss {loss:.4f}", flush=True)
    return losses, norms


def once(name, compute):
    """What compute() returns, kept in WORK."""
    path = WORK / f"{name}.json"
    if not path.exists():
        print(f"{name}: training ...", flush=True)
        path.write_text(json.dumps(compute()))
    return json.loads(path.read_text())


def mean(values):
    return sum(values) / len(values)


def report(precision, ours, theirs):
    """Prints the comparison; True if the final losses agree."""
    (our_losses, our_norms), (their_losses, their_norms) = ours, theirs
    differences = [abs(a - b) / b for a, b in zip(our_losses, their_losses)]
    worst = max(range(STEPS), key=differences.__getitem__)
    final = mean(our_losses[-LAST:]), mean(their_losses[-LAST:])
    off = final[0] / final[1] - 1
    print(f"{precision}: final loss (mean of {LAST} steps) {final[0]:.5f}, PyTorch {final[1]:.5f}: {off:+.4%}; largest difference "
          f"of a step {differences[worst]:.4%} (step {worst + 1}); step 1: loss {our_losses[0]:.7f} and {their_losses[0]:.7f}, "
          f"gradient norm {our_norms[0]:.6f} and {their_norms[0]:.6f}")
    return abs(off) <= TOLERANCE


def write_csv(results):
    with open(HERE / "losses.csv", "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["step"] + [f"{who}_{precision}" for precision in results for who in ("holdfast", "pytorch")])
        columns = [losses for pair in results.values() for losses, _ in pair]
        for step, row in enumerate(zip(*columns), 1):
            writer.writerow([step] + [f"{loss:.6f}" for loss in row])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--precision", choices=PRECISIONS, help="only this one (losses.csv and curves.svg need both)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--python", help="a Python with torch and numpy (default: made in .deps/peers)")
    parser.add_argument("--fresh", action="store_true", help="start over")
    arguments = parser.parse_args()
    environment.need_torch(arguments.python)
    environment.need_program()
    if arguments.fresh:
        shutil.rmtree(WORK, ignore_errors=True)
    prepare(arguments.threads)
    results = {}
    for precision in [arguments.precision] if arguments.precision else PRECISIONS:
        results[precision] = (once(f"losses-holdfast-{precision}", lambda: train_with_holdfast(precision)),
                              once(f"losses-pytorch-{precision}", lambda: train_with_torch(precision, arguments.threads)))
    agree = [report(precision, *pair) for precision, pair in results.items()]
    if len(results) == len(PRECISIONS):
        import curves
        write_csv(results)
        curves.write(HERE / "curves.svg", {precision: [losses for losses, _ in pair] for precision, pair in results.items()})
    return 0 if all(agree) else 1


if __name__ == "__main__":
    sys.exit(main())
