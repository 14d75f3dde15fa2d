#!/usr/bin/env python3
"""Makes the golden files of this folder: what PyTorch computes for tiny models, for tests/model and tests/train.

    python -m venv /tmp/venv && /tmp/venv/bin/pip install torch numpy
    /tmp/venv/bin/python tests/golden/make_goldens.py                        # writes next to this script
    /tmp/venv/bin/python tests/golden/make_goldens.py --output-directory D   # writes into D
    ... --check-transformers                                                 # needs `pip install transformers` too

Everything follows from seeds. It is computed in float64, so that a golden is the true value and not one library's
rounding; the script fails if PyTorch's own float32 is not within 1e-5 of it. The update is torch.optim.AdamW's.

A golden file is one line of JSON and then the tensors, raw and little-endian. The line holds the model, the optimizer,
the loss and the gradient norm (before clipping) of every step, and for each tensor its name, dtype ("float32", "int32"),
shape and offset in bytes after the line. Tensors:
    inputs, targets    (steps, batch, sequence_length): step i trains on [i]; a negative target is not counted
    logits             (batch * sequence_length, vocabulary) of [0] with the initial weights
    initial/NAME       weights before the first step. Each is a bfloat16, so that a bf16 run starts from the same model
    gradient/NAME      of the loss of [0] with the initial weights, not clipped
    final/NAME         weights after the last step
The loss is the sum over counted tokens divided by batch * sequence_length. Matrices are (outputs, inputs); the rows of
attention.qkv are the query heads, the key heads, the value heads; the rows of a SwiGLU's feed_forward.up are gate, then
up. Rotary embeddings pair element i with i + head_size / 2. Vocabulary padding is not in the file: it is zero.
"""

import argparse
import json
import math
import pathlib

import numpy
import torch
import torch.nn.functional as F

RELATIVE_ERROR_MAX = 1e-5  # of PyTorch's float32

OPTIMIZER = {"learning_rate": 3e-4, "warmup_steps": 3, "final_fraction": 0.1, "beta1": 0.9, "beta2": 0.95,
             "epsilon": 1e-8, "weight_decay": 0.1, "steps": 10}

# gradient_clip: below every gradient norm for the first, between them for the others.
MODELS = {
    "gpt2": {"style": "gpt2", "layers": 2, "heads": 4, "kv_heads": 4, "width": 64, "feed_forward": 256,
             "vocabulary": 97, "positions": 32, "head": "tied", "norm_epsilon": 1e-5, "batch": 2,
             "sequence_length": 24, "gradient_clip": 1.0, "seed": 1},
    "llama": {"style": "llama", "layers": 2, "heads": 6, "kv_heads": 2, "width": 72, "feed_forward": 160,
              "vocabulary": 97, "positions": 0, "head": "untied", "norm_epsilon": 1e-5, "rope_theta": 10000.0,
              "batch": 2, "sequence_length": 24, "gradient_clip": 4.2, "seed": 2},
    # Every target counts in the two above; here every fifth does not.
    "llama_tied": {"style": "llama", "layers": 1, "heads": 2, "kv_heads": 2, "width": 32, "feed_forward": 48,
                   "vocabulary": 64, "positions": 0, "head": "tied", "norm_epsilon": 1e-6, "rope_theta": 500000.0,
                   "batch": 3, "sequence_length": 17, "gradient_clip": 3.5, "seed": 3, "ignore_every": 5},
    # Of the eight frequencies of a head, some are kept, one is divided in part and the others in full.
    "llama3": {"style": "llama", "layers": 2, "heads": 4, "kv_heads": 2, "width": 64, "feed_forward": 96,
               "vocabulary": 97, "positions": 0, "head": "tied", "norm_epsilon": 1e-5, "rope_theta": 500.0,
               "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                                "original_max_position_embeddings": 40},
               "batch": 2, "sequence_length": 48, "gradient_clip": 8.0, "seed": 4},
    "qwen2": {"style": "qwen2", "layers": 2, "heads": 6, "kv_heads": 2, "width": 72, "feed_forward": 96,
              "vocabulary": 97, "positions": 0, "head": "tied", "norm_epsilon": 1e-6, "rope_theta": 10000.0,
              "rope_scaling": {"rope_type": "linear", "factor": 2.5},
              "batch": 2, "sequence_length": 24, "gradient_clip": 11.5, "seed": 5},
    "qwen3": {"style": "qwen3", "layers": 2, "heads": 4, "kv_heads": 2, "head_size": 24, "width": 56,
              "feed_forward": 96, "vocabulary": 97, "positions": 0, "head": "untied", "norm_epsilon": 1e-6,
              "rope_theta": 1000000.0, "batch": 2, "sequence_length": 24, "gradient_clip": 4.2, "seed": 6},
}


def head_size_of(model):
    return model.get("head_size", model["width"] // model["heads"])


def parameter_shapes(model):
    """Shapes by name, in forward order."""
    gpt2 = model["style"] == "gpt2"
    width, feed_forward = model["width"], model["feed_forward"]
    head_size = head_size_of(model)
    shapes = {"embedding.token.weight": (model["vocabulary"], width)}

    def linear(name, outputs, inputs, bias=gpt2):
        shapes[name + ".weight"] = (outputs, inputs)
        if bias:
            shapes[name + ".bias"] = (outputs,)

    def norm(name):
        shapes[name + ".weight"] = (width,)
        if gpt2:
            shapes[name + ".bias"] = (width,)

    if model["positions"]:
        shapes["embedding.position.weight"] = (model["positions"], width)
    for layer in range(model["layers"]):
        prefix = f"layers.{layer}."
        norm(prefix + "attention_norm")
        linear(prefix + "attention.qkv", (model["heads"] + 2 * model["kv_heads"]) * head_size, width,
               bias=model["style"] in ("gpt2", "qwen2"))
        if model["style"] == "qwen3":
            shapes[prefix + "attention.query_norm.weight"] = shapes[prefix + "attention.key_norm.weight"] = (head_size,)
        linear(prefix + "attention.output", width, model["heads"] * head_size)
        norm(prefix + "feed_forward_norm")
        linear(prefix + "feed_forward.up", feed_forward if gpt2 else 2 * feed_forward, width)
        linear(prefix + "feed_forward.down", width, feed_forward)
    norm("final_norm")
    if model["head"] == "untied":
        shapes["head.weight"] = (model["vocabulary"], width)
    return shapes


def initial_weights(model):
    """Larger than a real start, so that softmax, norms and activations are far from their linear range."""
    generator = numpy.random.default_rng(model["seed"])
    weights = {}
    for name, shape in parameter_shapes(model).items():
        values = generator.standard_normal(shape)
        if len(shape) > 1:
            values *= 0.3 if name.startswith("embedding") else 1.0 / math.sqrt(shape[1])
        elif "norm" in name and name.endswith(".weight"):
            values = 1.0 + 0.1 * values
        else:
            values *= 0.1
        weights[name] = torch.from_numpy(values).bfloat16().double()
    return weights


def token_batches(model):
    generator = numpy.random.default_rng(model["seed"] + 1000)
    shape = (OPTIMIZER["steps"], model["batch"], model["sequence_length"] + 1)
    tokens = generator.integers(0, model["vocabulary"], shape)
    inputs, targets = tokens[..., :-1].copy(), tokens[..., 1:].copy()
    if "ignore_every" in model:
        targets.reshape(-1)[::model["ignore_every"]] = -1
    return torch.from_numpy(inputs), torch.from_numpy(targets)


def norm(weights, name, x, model):
    weight = weights[name + ".weight"]
    if model["style"] == "gpt2":
        return F.layer_norm(x, weight.shape, weight, weights[name + ".bias"], model["norm_epsilon"])
    return F.rms_norm(x, weight.shape, weight, model["norm_epsilon"])


def linear(weights, name, x):
    return F.linear(x, weights[name + ".weight"], weights.get(name + ".bias"))


def scaled(frequencies, scaling):
    """As "Extending the RoPE" of the Llama 3.1 release has it, frequency by frequency."""
    if scaling is None:
        return frequencies
    if scaling["rope_type"] == "linear":
        return frequencies / scaling["factor"]
    result = []
    for frequency in frequencies.tolist():
        wave = 2 * math.pi / frequency
        longest = scaling["original_max_position_embeddings"] / scaling["low_freq_factor"]
        shortest = scaling["original_max_position_embeddings"] / scaling["high_freq_factor"]
        if wave > longest:
            frequency /= scaling["factor"]
        elif wave >= shortest:
            smooth = (scaling["original_max_position_embeddings"] / wave - scaling["low_freq_factor"]) / (
                scaling["high_freq_factor"] - scaling["low_freq_factor"])
            frequency = (1 - smooth) * frequency / scaling["factor"] + smooth * frequency
        result.append(frequency)
    return torch.tensor(result, dtype=torch.float64)


def rotate(x, model):
    """x_BHTD; the convention of Hugging Face's Llama: rotate_half."""
    length, head_size = x.shape[-2], x.shape[-1]
    frequencies = model["rope_theta"] ** (-torch.arange(0, head_size, 2, dtype=torch.float64) / head_size)
    frequencies = scaled(frequencies, model.get("rope_scaling"))
    angles = torch.outer(torch.arange(length, dtype=torch.float64), frequencies)
    angles = torch.cat((angles, angles), dim=-1)
    first, second = x.chunk(2, dim=-1)
    return x * angles.cos().to(x.dtype) + torch.cat((-second, first), dim=-1) * angles.sin().to(x.dtype)


def attention(weights, name, x, model):
    batch, length, width = x.shape
    heads, kv_heads, head_size = model["heads"], model["kv_heads"], head_size_of(model)
    qkv = linear(weights, name + ".qkv", x)
    q, k, v = qkv.split((heads * head_size, kv_heads * head_size, kv_heads * head_size), dim=-1)
    q, k, v = (part.view(batch, length, -1, head_size).transpose(1, 2) for part in (q, k, v))
    if model["style"] == "qwen3":
        q, k = norm(weights, name + ".query_norm", q, model), norm(weights, name + ".key_norm", k, model)
    if not model["positions"]:
        q, k = rotate(q, model), rotate(k, model)
    k, v = (part.repeat_interleave(heads // kv_heads, dim=1) for part in (k, v))
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return linear(weights, name + ".output", out.transpose(1, 2).reshape(batch, length, heads * head_size))


def feed_forward(weights, name, x, model):
    up = linear(weights, name + ".up", x)
    if model["style"] == "gpt2":
        active = F.gelu(up, approximate="tanh")
    else:
        gate, value = up.chunk(2, dim=-1)
        active = F.silu(gate) * value
    return linear(weights, name + ".down", active)


def logits_of(model, weights, inputs):
    x = F.embedding(inputs, weights["embedding.token.weight"])
    if model["positions"]:
        x = x + weights["embedding.position.weight"][: inputs.shape[1]]
    for layer in range(model["layers"]):
        prefix = f"layers.{layer}."
        x = x + attention(weights, prefix + "attention", norm(weights, prefix + "attention_norm", x, model), model)
        normed = norm(weights, prefix + "feed_forward_norm", x, model)
        x = x + feed_forward(weights, prefix + "feed_forward", normed, model)
    head = weights["head.weight" if model["head"] == "untied" else "embedding.token.weight"]
    return F.linear(norm(weights, "final_norm", x, model), head)


def loss_of(model, weights, inputs, targets):
    logits = logits_of(model, weights, inputs).flatten(0, 1)
    return F.cross_entropy(logits, targets.flatten(), ignore_index=-1, reduction="sum") / targets.numel()


def learning_rate_at(step):
    """Linear warm-up to the peak, then half a cosine down to final_fraction of it at the last step. From step 1."""
    peak, warmup = OPTIMIZER["learning_rate"], OPTIMIZER["warmup_steps"]
    if step <= warmup:
        return peak * step / warmup
    lowest = peak * OPTIMIZER["final_fraction"]
    share = (step - warmup) / (OPTIMIZER["steps"] - warmup)
    return lowest + (peak - lowest) * 0.5 * (1.0 + math.cos(math.pi * share))


def compute(model, dtype):
    """Everything a golden file holds, computed in `dtype`."""
    weights = {name: value.to(dtype).requires_grad_() for name, value in initial_weights(model).items()}
    inputs, targets = token_batches(model)
    tensors = {"inputs": inputs, "targets": targets}
    tensors["logits"] = logits_of(model, weights, inputs[0]).flatten(0, 1).detach()
    for name, value in weights.items():
        tensors["initial/" + name] = value.detach().clone()
    decayed = [value for value in weights.values() if value.dim() > 1]
    others = [value for value in weights.values() if value.dim() == 1]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": OPTIMIZER["weight_decay"]}, {"params": others, "weight_decay": 0.0}],
        betas=(OPTIMIZER["beta1"], OPTIMIZER["beta2"]), eps=OPTIMIZER["epsilon"])
    losses, norms = [], []
    for step in range(1, OPTIMIZER["steps"] + 1):
        loss = loss_of(model, weights, inputs[step - 1], targets[step - 1])
        optimizer.zero_grad()
        loss.backward()
        if step == 1:
            tensors |= {"gradient/" + name: value.grad.clone() for name, value in weights.items()}
        losses.append(loss.item())
        norms.append(math.sqrt(sum(value.grad.double().square().sum().item() for value in weights.values())))
        # Not torch.nn.utils.clip_grad_norm_, which adds 1e-6 to the norm.
        for value in weights.values():
            value.grad *= min(1.0, model["gradient_clip"] / norms[-1])
        for group in optimizer.param_groups:
            group["lr"] = learning_rate_at(step)
        optimizer.step()
    tensors |= {"final/" + name: value.detach().clone() for name, value in weights.items()}
    return tensors, losses, norms


def relative_error(value, truth):
    difference = (value.double() - truth.double()).abs().max().item()
    return difference / max(truth.double().abs().max().item(), 1e-30)


def without_key_rows(model, name, value):
    """A key's bias adds the same to every score of a query, so its gradient is zero and AdamW scales up rounding noise."""
    if model["style"] != "gpt2" or not name.endswith("attention.qkv.bias"):
        return value
    width = model["width"]
    return torch.cat((value[:width], value[2 * width:]))


def check_float32(name, model, tensors, losses, norms):
    """Fails unless PyTorch's float32 finds the same values."""
    single, single_losses, single_norms = compute(model, torch.float32)
    errors = {key: relative_error(without_key_rows(model, key, single[key]), without_key_rows(model, key, value))
              for key, value in tensors.items()}
    errors["losses"] = relative_error(torch.tensor(single_losses), torch.tensor(losses))
    errors["gradient norms"] = relative_error(torch.tensor(single_norms), torch.tensor(norms))
    for kind in ("logits", "gradient/", "final/", "losses", "gradient norms"):
        key = max((key for key in errors if key.startswith(kind)), key=errors.get)
        print(f"{name}: PyTorch float32 against float64, {kind.strip('/')}: {errors[key]:.1e} ({key})")
    assert max(errors.values()) <= RELATIVE_ERROR_MAX, errors


def check_transformers(name, model, tensors):
    """The same weights in Hugging Face's modules give the same logits."""
    import transformers

    weights = initial_weights(model)
    head_size = head_size_of(model)
    common = {"vocab_size": model["vocabulary"], "tie_word_embeddings": model["head"] == "tied", "bos_token_id": 0,
              "eos_token_id": 0}
    state = {}
    if model["style"] == "gpt2":
        module = transformers.GPT2LMHeadModel(transformers.GPT2Config(
            n_positions=model["positions"], n_embd=model["width"], n_layer=model["layers"], n_head=model["heads"],
            layer_norm_epsilon=model["norm_epsilon"], **common))
        names = {"embedding.token": "wte", "embedding.position": "wpe", "final_norm": "ln_f", "attention_norm": "ln_1",
                 "attention.qkv": "attn.c_attn", "attention.output": "attn.c_proj", "feed_forward_norm": "ln_2",
                 "feed_forward.up": "mlp.c_fc", "feed_forward.down": "mlp.c_proj"}
        for key, value in weights.items():
            part, kind = key.rsplit(".", 1)
            prefix = "transformer."
            if part.startswith("layers."):
                _, layer, part = part.split(".", 2)
                prefix += f"h.{layer}."
                value = value.t() if value.dim() > 1 else value  # Conv1D is (inputs, outputs)
            state[f"{prefix}{names[part]}.{kind}"] = value
        state["lm_head.weight"] = weights["embedding.token.weight"]
    else:
        module_class, config_class = {
            "llama": (transformers.LlamaForCausalLM, transformers.LlamaConfig),
            "qwen2": (transformers.Qwen2ForCausalLM, transformers.Qwen2Config),
            "qwen3": (transformers.Qwen3ForCausalLM, transformers.Qwen3Config)}[model["style"]]
        rope = model.get("rope_scaling", {"rope_type": "default"})
        module = module_class(config_class(
            hidden_size=model["width"], intermediate_size=model["feed_forward"], num_hidden_layers=model["layers"],
            num_attention_heads=model["heads"], num_key_value_heads=model["kv_heads"],
            rms_norm_eps=model["norm_epsilon"], rope_theta=model["rope_theta"], head_dim=head_size,
            max_position_embeddings=512, rope_parameters=rope | {"rope_theta": model["rope_theta"]}, **common))
        state["model.embed_tokens.weight"] = weights["embedding.token.weight"]
        state["model.norm.weight"] = weights["final_norm.weight"]
        state["lm_head.weight"] = weights.get("head.weight", weights["embedding.token.weight"])
        for layer in range(model["layers"]):
            ours, theirs = f"layers.{layer}.", f"model.layers.{layer}."
            sizes = [heads * head_size for heads in (model["heads"], model["kv_heads"], model["kv_heads"])]
            for kind in ("weight", "bias") if model["style"] == "qwen2" else ("weight",):
                for part, value in zip("qkv", weights[f"{ours}attention.qkv.{kind}"].split(sizes)):
                    state[f"{theirs}self_attn.{part}_proj.{kind}"] = value
            if model["style"] == "qwen3":
                state[theirs + "self_attn.q_norm.weight"] = weights[ours + "attention.query_norm.weight"]
                state[theirs + "self_attn.k_norm.weight"] = weights[ours + "attention.key_norm.weight"]
            state[theirs + "self_attn.o_proj.weight"] = weights[ours + "attention.output.weight"]
            gate, up = weights[ours + "feed_forward.up.weight"].chunk(2)
            state[theirs + "mlp.gate_proj.weight"], state[theirs + "mlp.up_proj.weight"] = gate, up
            state[theirs + "mlp.down_proj.weight"] = weights[ours + "feed_forward.down.weight"]
            state[theirs + "input_layernorm.weight"] = weights[ours + "attention_norm.weight"]
            state[theirs + "post_attention_layernorm.weight"] = weights[ours + "feed_forward_norm.weight"]
    module = module.eval()
    module.load_state_dict({key: value.float() for key, value in state.items()}, strict=True)
    with torch.no_grad():
        logits = module(tensors["inputs"][0]).logits.flatten(0, 1)
    error = relative_error(logits, tensors["logits"])
    print(f"{name}: Hugging Face transformers' logits, float32: {error:.1e}")
    assert error <= RELATIVE_ERROR_MAX


def write(path, model, tensors, losses, norms):
    entries, data = [], b""
    for name, value in tensors.items():
        dtype = "float32" if value.is_floating_point() else "int32"
        raw = value.numpy().astype("<f4" if dtype == "float32" else "<i4").tobytes()
        entries.append({"name": name, "dtype": dtype, "shape": list(value.shape), "offset_bytes": len(data)})
        data += raw
    optimizer = OPTIMIZER | {"gradient_clip": model["gradient_clip"]}
    header = {"model": model, "optimizer": optimizer, "torch": torch.__version__, "losses": losses,
              "gradient_norms": norms, "tensors": entries}
    path.write_bytes(json.dumps(header).encode() + b"\n" + data)
    print(f"wrote {path}, {path.stat().st_size} bytes, gradient norms {min(norms):.2f} to {max(norms):.2f}")


def main():
    parser = argparse.ArgumentParser(description="Makes the golden files of tests/golden.")
    parser.add_argument("--output-directory", type=pathlib.Path, default=pathlib.Path(__file__).parent)
    parser.add_argument("--check-transformers", action="store_true", help="compare with Hugging Face's modules too")
    arguments = parser.parse_args()
    for name, model in MODELS.items():
        tensors, losses, norms = compute(model, torch.float64)
        check_float32(name, model, tensors, losses, norms)
        if arguments.check_transformers:
            check_transformers(name, model, tensors)
        write(arguments.output_directory / f"{name}.golden", model, tensors, losses, norms)


if __name__ == "__main__":
    main()
