"""PyTorch on the same GPU in the same minutes, if a Python here has it. It never makes an item fail: what goes wrong is a sentence
in its results."""
import json
from pathlib import Path

from . import predictions
from .results import Failure, table

PEER = Path(__file__).resolve().parent / "torch_peer.py"


def ask(session, record, case):
    """The objects that torch_peer.py printed, a line each; what it printed before it failed counts."""
    python = session.machine.torch_python
    if python is None:
        record["found"] = ["no PyTorch in this Python"]
        return []
    name = f"torch-{case}"
    words = [python, PEER, case, f"--size={session.sizes.peer}", *(["--device=cpu"] if session.sizes.emulated else [])]
    # PyTorch brings its own CUDA libraries; those that our programs are led to may be of another release.
    environment = {"TORCHINDUCTOR_CACHE_DIR": str(session.work / "inductor"), "TRITON_CACHE_DIR": str(session.work / "triton"),
                   "LD_LIBRARY_PATH": ""}
    reason = None
    try:
        code, output = session.runner.outcome(name, words, more_environment=environment)
        if code != 0:
            reason = f"PyTorch's part ended with exit code {code}: {' / '.join(output.strip().splitlines()[-2:])}"
    except Failure as failure:
        reason, output = f"PyTorch's part: {failure}", session.runner.log_of(name).read_text(errors="replace")
    found = []
    for line in output.splitlines():
        if line.startswith("{"):
            try:
                found.append(json.loads(line))
            except ValueError:
                continue
    record["peer"] = found
    record.setdefault("found", []).extend(f"{each['what']}: {each['failed']}" for each in found if "failed" in each)
    if reason:
        record["found"].append(reason)
    return [each for each in found if "failed" not in each]


def gpt2(session, record):
    """GPT-2 124M as PyTorch's users train it."""
    rows = [["GPT-2 124M", "tokens/s", "ms/step", "ours is faster by"]]
    ours = session.results.items.get("gpt2", {}).get("tokens_per_sec")
    for each in ask(session, record, "gpt2"):
        if "tokens_per_sec" in each:
            rows.append([each["what"], f"{each['tokens_per_sec']:.0f}", f"{each['step_ms']:.1f}",
                         f"{ours / each['tokens_per_sec']:.2f}" if ours else ""])
        if ours and each["what"] == "torch.compile" and not session.sizes.emulated:
            predictions.compare(record, "our tokens/s over those of torch.compile", ours / each["tokens_per_sec"], 1.0, 2.0)
    if len(rows) > 1:
        session.show(table(rows))


def attention(session, record):
    """Scaled dot-product attention, forward and backward, by every backend that PyTorch has here."""
    rows = [["PyTorch attention", "forward us", "TFLOP/s", "backward us", "TFLOP/s"]]
    for each in ask(session, record, "attention"):
        if "forward_us" in each:
            rows.append([each["what"], f"{each['forward_us']:.1f}", f"{each['flops'] / each['forward_us'] / 1e6:.0f}",
                         f"{each['backward_us']:.1f}", f"{2.5 * each['flops'] / each['backward_us'] / 1e6:.0f}"])
    if len(rows) > 1:
        session.show(table(rows))


def products(session, record):
    """torch.mm, which is cuBLAS with PyTorch's own choice of algorithm, at the shapes of our products."""
    rows = [["torch.mm, bf16", "us", "TFLOP/s"]]
    for each in ask(session, record, "products"):
        if "us" in each:
            rows.append([each["what"], f"{each['us']:.1f}", f"{each['flops'] / each['us'] / 1e6:.0f}"])
    if len(rows) > 1:
        session.show(table(rows))
