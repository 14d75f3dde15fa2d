"""The runs that are predicted, and what others have published for the same or a similar one."""
from dataclasses import dataclass


@dataclass(frozen=True)
class Published:
    who: str
    hardware: str
    tokens_per_sec: float
    mfu: float  # by the formula of page.py; 0: not published
    source: str
    note: str = ""


@dataclass(frozen=True)
class Case:
    name: str
    preset: str
    batch: str
    settings: tuple
    published: tuple = ()

    def all_settings(self):
        return [f"--model.preset={self.preset}", *self.settings]


def batch(size, length=1024, microbatches=1):
    return (f"--training.microbatch_size={size}", f"--training.sequence_length={length}",
            f"--training.microbatches_per_lane={microbatches}")


LLMC_124M = Published("llm.c", "8 x H100", 468e3, 0.380, "modded-nanogpt records/2024-10-13_llmc: 140 ms for 0.5 M tokens")
NANOGPT_124M = Published("nanoGPT, torch.compile", "H100", 379e3, 0.328, "modded-nanogpt PR #464")
LLMC_1558M = Published("llm.c", "8 x H100", 46.8e3, 0.465, "llm.c scripts/run_gpt2_1558M.sh: 2.80 s for 1.05 M tokens")
HF_1B = Published("Hugging Face, cuDNN attention", "H200, 12 x 1024", 55.3e3, 0.0, "ml-engineering: 421 TFLOP/s by its own count")
LLMQ_1_5B = Published("llmq", "H100", 58.9e3, 0.567, "llmq benchmarks/H100x1.md", "Qwen2.5-1.5B: compare the MFU")
HF_8B = Published("Hugging Face, DeepSpeed, FlashAttention 3", "8 x H200", 8.95e3, 0.47, "ml-engineering")
LLMQ_7B = Published("llmq", "H100", 13.86e3, 0.603, "llmq benchmarks/H100x1.md", "Qwen2.5-7B: compare the MFU")

CASES = [
    Case("gpt2-124m", "gpt2-124m", "64 x 1024", batch(64), (LLMC_124M, NANOGPT_124M)),
    Case("gpt2-1558m", "gpt2-1558m", "8 x 1024", batch(8), (LLMC_1558M,)),
    Case("gpt2-1558m-16", "gpt2-1558m", "16 of 8 x 1024", batch(8, microbatches=16), (LLMC_1558M,)),
    Case("llama-1b", "llama-1b", "8 x 1024", batch(8), (HF_1B, LLMQ_1_5B)),
    Case("llama-1b-16", "llama-1b", "16 of 8 x 1024", batch(8, microbatches=16), (HF_1B, LLMQ_1_5B)),
    # With the rows that the program takes by itself, 1 GiB of logits, it would not fit.
    Case("llama-8b", "llama-8b", "1 x 8192, recompute full", (*batch(1, 8192), "--training.recompute=full",
                                                             "--training.head_rows=1024"), (HF_8B, LLMQ_7B)),
]
