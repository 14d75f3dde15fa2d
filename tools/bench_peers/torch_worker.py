"""One PyTorch model in a process of its own, for tools/bench_cases/peers.py: every line on standard input is a number of
steps to do, every line on standard output a JSON object with what they took. Between the lines it sleeps.

    torch_worker.py '{"shape": {...}, "batch": 4, "length": 64, "precision": "fp32", "compile": false, "threads": 2}'
"""
import json
import sys
import time
from pathlib import Path

import torch

from cases import Shape
from holdfast import peak_memory_mib
from torch_model import Transformer, adamw, train_step


def main():
    case = json.loads(sys.argv[1])
    torch.set_num_threads(case["threads"])
    torch.manual_seed(1)
    shape, size = Shape(**case["shape"]), (case["batch"], case["length"])
    model = Transformer(shape, case["length"])
    model.initialize()
    optimizer = adamw(model, 1e-4, 0.1)
    stepped = torch.compile(model, dynamic=False) if case["compile"] else model
    for line in sys.stdin:
        Path("/proc/self/clear_refs").write_text("5")  # peak memory counts from here: not the compiler's
        durations_ms, loss = [], 0.0
        for _ in range(int(line)):
            inputs, targets = (torch.randint(shape.vocabulary, size) for _ in range(2))
            begin = time.perf_counter()
            loss, _ = train_step(stepped, optimizer, inputs, targets, case["precision"] == "bf16")
            durations_ms.append(1000 * (time.perf_counter() - begin))
        print(json.dumps({"step_ms": durations_ms, "peak_memory_mib": peak_memory_mib("self"), "loss": loss}), flush=True)


if __name__ == "__main__":
    main()
