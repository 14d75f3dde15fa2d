"""GPT-2 and Llama style models in PyTorch, as its users write them. Parameters have Holdfast's names and shapes; only the
padding of the vocabulary is not there."""
import torch
import torch.nn.functional as F
from torch import nn


def norm(shape):
    kind = nn.LayerNorm if shape.style == "gpt2" else nn.RMSNorm
    return kind(shape.width, eps=shape.norm_epsilon)


class Attention(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.shape = shape
        self.qkv = nn.Linear(shape.width, (shape.heads + 2 * shape.kv_heads) * shape.head_size, bias=shape.style == "gpt2")
        self.output = nn.Linear(shape.width, shape.width, bias=shape.style == "gpt2")

    def forward(self, x, rotary):
        shape, (batch, length, width) = self.shape, x.shape
        sizes = [heads * shape.head_size for heads in (shape.heads, shape.kv_heads, shape.kv_heads)]
        q, k, v = (part.view(batch, length, -1, shape.head_size).transpose(1, 2) for part in self.qkv(x).split(sizes, dim=-1))
        if rotary is not None:
            q, k = rotate(q, rotary), rotate(k, rotary)
        if shape.kv_heads != shape.heads:
            k, v = (part.repeat_interleave(shape.heads // shape.kv_heads, dim=1) for part in (k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.output(y.transpose(1, 2).reshape(batch, length, width))


def rotary_table(shape, length):
    frequencies = shape.rope_theta ** (-torch.arange(0, shape.head_size, 2, dtype=torch.float64) / shape.head_size)
    angles = torch.outer(torch.arange(length, dtype=torch.float64), frequencies).repeat(1, 2)
    return torch.stack((angles.cos(), angles.sin())).float()


def rotate(x, rotary):
    """Pairs element i with i + head_size / 2, as Hugging Face's Llama."""
    first, second = x.chunk(2, dim=-1)
    cos, sin = rotary
    return (x * cos + torch.cat((-second, first), dim=-1) * sin).to(x.dtype)


class FeedForward(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.gated = shape.style == "llama"
        self.up = nn.Linear(shape.width, shape.feed_forward * (2 if self.gated else 1), bias=not self.gated)
        self.down = nn.Linear(shape.feed_forward, shape.width, bias=not self.gated)

    def forward(self, x):
        if not self.gated:
            return self.down(F.gelu(self.up(x), approximate="tanh"))
        gate, value = self.up(x).chunk(2, dim=-1)
        return self.down(F.silu(gate) * value)


class Layer(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.attention_norm, self.attention = norm(shape), Attention(shape)
        self.feed_forward_norm, self.feed_forward = norm(shape), FeedForward(shape)

    def forward(self, x, rotary):
        x = x + self.attention(self.attention_norm(x), rotary)
        return x + self.feed_forward(self.feed_forward_norm(x))


class Transformer(nn.Module):
    """forward(inputs, targets) is the mean cross-entropy. `float_logits`: under autocast, it is computed in fp32 from bf16
    logits, as most trainers do; without, it is a little faster and has few digits."""

    def __init__(self, shape, length, float_logits=False):
        super().__init__()
        self.shape, self.float_logits = shape, float_logits
        self.embedding = nn.ModuleDict({"token": nn.Embedding(shape.vocabulary, shape.width)})
        if shape.positions:
            self.embedding["position"] = nn.Embedding(shape.positions, shape.width)
        else:
            self.register_buffer("rotary", rotary_table(shape, length), persistent=False)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.final_norm = norm(shape)

    def initialize(self):
        """As GPT-2: with PyTorch's own defaults activations become denormal and everything five times slower."""
        for name, value in self.named_parameters():
            if value.dim() > 1:
                nn.init.normal_(value, std=0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(value)

    def forward(self, inputs, targets):
        x = self.embedding["token"](inputs)
        if self.shape.positions:
            x = x + self.embedding["position"].weight[: inputs.shape[1]]
        rotary = None if self.shape.positions else self.rotary
        for layer in self.layers:
            x = layer(x, rotary)
        logits = F.linear(self.final_norm(x), self.embedding["token"].weight).flatten(0, 1)
        return F.cross_entropy(logits.float() if self.float_logits else logits, targets.flatten())


def adamw(model, learning_rate, weight_decay, betas=(0.9, 0.95), epsilon=1e-8):
    """Decay on matrices only."""
    matrices = [value for value in model.parameters() if value.dim() > 1]
    vectors = [value for value in model.parameters() if value.dim() == 1]
    groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=learning_rate, betas=betas, eps=epsilon, fused=True)


def train_step(model, optimizer, inputs, targets, bf16, clip=1.0):
    """(loss, gradient norm before clipping); `model` may be compiled."""
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        loss = model(inputs, targets)
    loss.backward()
    gradient_norm = torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss.item(), gradient_norm.item()
