"""PyTorch's asynchronous checkpoints of one model, for tools/bench_cases/saving.py: trains, saves every few steps by
torch.distributed.checkpoint.async_save (or not at all), and prints one JSON line with what it took.

    torch_saving.py '{"shape": {...}, "batch": 1, "length": 1024, "precision": "fp32", "threads": 2, "every": 10, "saves": 2,
                      "saving": true, "folder": "/where/to"}'
"""
import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict

from cases import Shape
from torch_model import Transformer, adamw, train_step


class Saves:
    """One under way at most, as async_save wants it."""

    def __init__(self, folder):
        self.folder, self.pending = Path(folder), None
        self.stall_ms, self.durable_ms = [], []

    def begin(self, step, model, optimizer):
        begin = time.perf_counter()
        self.finish()
        weights, moments = get_state_dict(model, optimizer)
        self.pending = dcp.async_save({"model": weights, "optimizer": moments}, checkpoint_id=self.folder / f"step-{step}")
        self.stall_ms.append(1000 * (time.perf_counter() - begin))
        self.pending.add_done_callback(lambda _: self.durable_ms.append(1000 * (time.perf_counter() - begin)))

    def finish(self):
        if self.pending is not None:
            self.pending.result()
        self.pending = None

    def bytes(self):
        latest = max(self.folder.iterdir(), key=os.path.getmtime)
        return sum(path.stat().st_size for path in latest.rglob("*") if path.is_file())


def main():
    case = json.loads(sys.argv[1])
    torch.set_num_threads(case["threads"])
    torch.manual_seed(1)
    Path(case["folder"]).mkdir(parents=True)
    dist.init_process_group("gloo", init_method=f"file://{case['folder']}/rendezvous", rank=0, world_size=1)
    shape, size = Shape(**case["shape"]), (case["batch"], case["length"])
    model = Transformer(shape, case["length"])
    model.initialize()
    optimizer = adamw(model, 1e-4, 0.1)
    saves = Saves(f"{case['folder']}/saves")
    last = case["every"] * (1 + case["saves"])
    begin = end = 0.0
    for step in range(1, last + 1):
        inputs, targets = (torch.randint(shape.vocabulary, size) for _ in range(2))
        train_step(model, optimizer, inputs, targets, case["precision"] == "bf16")
        end = time.perf_counter()
        if step == case["every"]:
            begin = end
        if case["saving"] and step % case["every"] == 0 and step < last:
            saves.begin(step, model, optimizer)
    saves.finish()
    result = {"step_ms": 1000 * (end - begin) / (last - case["every"])}
    if case["saving"]:
        result |= {"stall_ms": saves.stall_ms, "durable_ms": saves.durable_ms, "bytes": saves.bytes()}
    print(json.dumps(result), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
