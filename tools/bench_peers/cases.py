"""What is compared: models, batches, and how many times faster than its peers Holdfast means to be."""
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Shape:
    """Of a model; its head shares the embedding's weights."""
    style: str  # "gpt2" or "llama"
    layers: int
    heads: int
    kv_heads: int
    width: int
    feed_forward: int
    vocabulary: int
    positions: int = 0  # rows of the learned position table of gpt2
    rope_theta: float = 10000.0
    norm_epsilon: float = 1e-5

    @property
    def head_size(self):
        return self.width // self.heads


GPT2_124M = Shape("gpt2", 12, 12, 12, 768, 3072, 50257, positions=1024)
LLAMA_15M = Shape("llama", 6, 6, 6, 288, 768, 32000)
LLAMA_GROUPED = Shape("llama", 12, 12, 4, 768, 2048, 32000)  # SwiGLU, three queries a key


@dataclass(frozen=True)
class Case:
    name: str
    shape: Shape
    batch: int
    length: int
    preset: str = ""  # of Holdfast, if it has one of that shape
    llmc: bool = False  # llm.c can do it
    # (precision, peer): (target with full-width AVX-512, target without)
    targets: dict = field(default_factory=dict)

    @property
    def tokens(self):
        return self.batch * self.length

    def model_section(self):
        if self.preset:
            return {"preset": self.preset}
        shape = self.shape
        return {"style": shape.style, "layers": shape.layers, "heads": shape.heads, "kv_heads": shape.kv_heads,
                "width": shape.width, "feed_forward": shape.feed_forward, "vocabulary": shape.vocabulary, "head": "tied",
                "rope_theta": shape.rope_theta, "norm_epsilon": shape.norm_epsilon}


PYTORCH = {("fp32", "pytorch"): (1.3, 1.3), ("bf16", "pytorch"): (1.6, 1.6)}
SHORT = {**PYTORCH, ("fp32", "llm.c"): (4.5, 3.6), ("bf16", "llm.c"): (6.5, 5.5)}

CASES = [
    Case("gpt2-124m-b4-t64", GPT2_124M, 4, 64, preset="gpt2-124m", llmc=True, targets=SHORT),
    Case("gpt2-124m-b1-t1024", GPT2_124M, 1, 1024, preset="gpt2-124m", targets=PYTORCH),
    Case("gpt2-124m-b3-t100", GPT2_124M, 3, 100, preset="gpt2-124m", targets=SHORT),
    Case("llama-grouped-b4-t64", LLAMA_GROUPED, 4, 64, targets=SHORT),
    Case("llama-grouped-b1-t1024", LLAMA_GROUPED, 1, 1024, targets=PYTORCH),
    Case("llama-15m-b8-t256", LLAMA_15M, 8, 256, preset="llama-15m", targets=PYTORCH),
]
PRECISIONS = ("fp32", "bf16")
