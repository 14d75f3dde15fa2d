"""Models of other programs, written and read without any of holdfast's code: safetensors and llm.c files, and what
transformers' GPT2LMHeadModel and LlamaForCausalLM compute (and the classes of Qwen2, Qwen3 and Mistral), in plain Python and
double precision. Tiny models only."""
import json
import math
import random
import struct
from pathlib import Path

SIZES = {"F32": 4, "BF16": 2, "F16": 2, "U8": 1}


def bf16_bits(value):
    """fp32 rounded to nearest even, as bits."""
    bits = struct.unpack("<I", struct.pack("<f", value))[0]
    return (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16


def pack(kind, values):
    if kind == "F32":
        return struct.pack(f"<{len(values)}f", *values)
    if kind == "F16":
        return struct.pack(f"<{len(values)}e", *values)
    if kind == "BF16":
        return struct.pack(f"<{len(values)}H", *map(bf16_bits, values))
    return bytes(values)


def unpack(kind, data):
    if kind == "F32":
        return list(struct.unpack(f"<{len(data) // 4}f", data))
    if kind == "F16":
        return list(struct.unpack(f"<{len(data) // 2}e", data))
    bits = struct.unpack(f"<{len(data) // 2}H", data)
    return list(struct.unpack(f"<{len(bits)}f", struct.pack(f"<{len(bits)}I", *(b << 16 for b in bits))))


def product(shape):
    return math.prod(shape)


class Tensor:
    def __init__(self, shape, values, kind="F32"):
        self.shape, self.values, self.kind = list(shape), values, kind

    def __eq__(self, other):
        return self.shape == other.shape and pack("F32", self.values) == pack("F32", other.values)

    def rows(self):
        width = self.shape[1]
        return [self.values[i * width:(i + 1) * width] for i in range(self.shape[0])]


def safetensors_bytes(tensors, metadata=None):
    """As the format's description says: length, header, tensors in the order given."""
    header, data = ({"__metadata__": metadata} if metadata else {}), b""
    for name, tensor in tensors.items():
        packed = pack(tensor.kind, tensor.values)
        header[name] = {"dtype": tensor.kind, "shape": tensor.shape, "data_offsets": [len(data), len(data) + len(packed)]}
        data += packed
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def read_safetensors(path):
    """({name: Tensor}, metadata); every rule of the format is checked."""
    content = Path(path).read_bytes()
    length = struct.unpack_from("<Q", content)[0]
    header = json.loads(content[8:8 + length], object_pairs_hook=no_twice)
    assert (8 + length) % 8 == 0, "tensors begin at a multiple of 8"
    metadata, data, next_byte, tensors = header.pop("__metadata__", None), content[8 + length:], 0, {}
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        begin, end = entry["data_offsets"]
        assert begin == next_byte and end - begin == product(entry["shape"]) * SIZES[entry["dtype"]], name
        tensors[name] = Tensor(entry["shape"], unpack(entry["dtype"], data[begin:end]), entry["dtype"])
        next_byte = end
    assert next_byte == len(data), "a hole at the end"
    return tensors, metadata


def no_twice(pairs):
    assert len({name for name, _ in pairs}) == len(pairs), "a name stands there twice"
    return dict(pairs)


def read_folder(folder):
    """({name: Tensor}, config.json) of model.safetensors or of an index and its files."""
    folder, tensors = Path(folder), {}
    index = folder / "model.safetensors.index.json"
    if index.exists():
        weight_map = json.loads(index.read_text())["weight_map"]
        for file in sorted(set(weight_map.values())):
            of_file, metadata = read_safetensors(folder / file)
            assert metadata == {"format": "pt"}
            assert set(of_file) == {name for name, place in weight_map.items() if place == file}
            tensors.update(of_file)
    else:
        tensors, metadata = read_safetensors(folder / "model.safetensors")
        assert metadata == {"format": "pt"}, "transformers refuses other files"
    return tensors, json.loads((folder / "config.json").read_text())


def random_tensor(generator, shape, deviation=0.2, mean=0.0):
    values = [generator.gauss(mean, deviation) for _ in range(product(shape))]
    return Tensor(shape, unpack("F32", pack("F32", values)))


def random_gpt2(layers=2, heads=2, width=8, vocabulary=70, positions=16):
    """(tensors of a GPT2LMHeadModel, config.json)."""
    draw, tensors = random.Random(5), {}

    def add(name, *shape, **more):
        tensors[f"transformer.{name}"] = random_tensor(draw, shape, **more)

    def add_norm(name):
        add(f"{name}.weight", width, mean=1.0)
        add(f"{name}.bias", width)

    add("wte.weight", vocabulary, width)
    add("wpe.weight", positions, width)
    for layer in range(layers):
        add_norm(f"h.{layer}.ln_1")
        add_norm(f"h.{layer}.ln_2")
        for name, rows, columns in (("attn.c_attn", width, 3 * width), ("attn.c_proj", width, width),
                                    ("mlp.c_fc", width, 4 * width), ("mlp.c_proj", 4 * width, width)):
            add(f"h.{layer}.{name}.weight", rows, columns)
            add(f"h.{layer}.{name}.bias", columns)
    add_norm("ln_f")
    config = {"model_type": "gpt2", "n_layer": layers, "n_head": heads, "n_embd": width, "n_positions": positions,
              "vocab_size": vocabulary, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5}
    return tensors, config


def random_llama(layers=2, heads=4, kv_heads=2, width=16, feed_forward=24, vocabulary=70, tied=False, kind="llama", head=None, **more):
    """(tensors of a LlamaForCausalLM, or of the class of another `kind`, config.json with what `more` says)."""
    draw, tensors, head = random.Random(6), {}, head or width // heads

    def add(name, *shape, **more):
        tensors[name] = random_tensor(draw, shape, **more)

    add("model.embed_tokens.weight", vocabulary, width, deviation=1.0)
    for layer in range(layers):
        prefix = f"model.layers.{layer}"
        for name, rows, columns in (("self_attn.q_proj", heads * head, width), ("self_attn.k_proj", kv_heads * head, width),
                                    ("self_attn.v_proj", kv_heads * head, width), ("self_attn.o_proj", width, heads * head),
                                    ("mlp.gate_proj", feed_forward, width), ("mlp.up_proj", feed_forward, width),
                                    ("mlp.down_proj", width, feed_forward)):
            add(f"{prefix}.{name}.weight", rows, columns)
            if kind == "qwen2" and name[-6:] in ("q_proj", "k_proj", "v_proj"):
                add(f"{prefix}.{name}.bias", rows)
        if kind == "qwen3":
            add(f"{prefix}.self_attn.q_norm.weight", head, mean=1.0)
            add(f"{prefix}.self_attn.k_norm.weight", head, mean=1.0)
        add(f"{prefix}.input_layernorm.weight", width, mean=1.0)
        add(f"{prefix}.post_attention_layernorm.weight", width, mean=1.0)
    add("model.norm.weight", width, mean=1.0)
    if not tied:
        add("lm_head.weight", vocabulary, width)
    config = {"model_type": kind, "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": kv_heads,
              "hidden_size": width, "intermediate_size": feed_forward, "vocab_size": vocabulary, "rms_norm_eps": 1e-6,
              "max_position_embeddings": 64, "rope_theta": 500.0, "hidden_act": "silu", "tie_word_embeddings": tied}
    if head != width // heads or kind == "qwen3":
        config["head_dim"] = head
    if kind == "mistral":
        config["sliding_window"] = None
    return tensors, config | more


def frequencies_of(config, head):
    """Of the pairs of a head, as transformers' modeling_rope_utils.py has them."""
    plain = [config["rope_theta"] ** (-2 * i / head) for i in range(head // 2)]
    scaling = config.get("rope_scaling")
    if scaling is None:
        return plain
    factor = scaling["factor"]
    if scaling["rope_type"] == "linear":
        return [frequency / factor for frequency in plain]
    low, high, old = scaling["low_freq_factor"], scaling["high_freq_factor"], scaling["original_max_position_embeddings"]
    scaled = []
    for frequency in plain:
        wave = 2 * math.pi / frequency
        smooth = (old / wave - low) / (high - low)
        if wave > old / low:
            frequency /= factor
        elif wave >= old / high:
            frequency = (1 - smooth) * frequency / factor + smooth * frequency
        scaled.append(frequency)
    return scaled


def dot(a, b):
    return math.sumprod(a, b) if hasattr(math, "sumprod") else sum(map(lambda x, y: x * y, a, b))


def linear(rows, x, bias=None):
    """rows: [out][in]."""
    y = [dot(row, x) for row in rows]
    return y if bias is None else [a + b for a, b in zip(y, bias)]


def attention(queries, keys, values, heads, kv_heads, window=None):
    """Causal, of the last `window` tokens; lists by position of all heads' values."""
    head = len(queries[0]) // heads
    outputs = []
    for t, query in enumerate(queries):
        output, seen = [], range(max(0, t + 1 - window) if window else 0, t + 1)
        for h in range(heads):
            group = h // (heads // kv_heads) * head
            q = query[h * head:(h + 1) * head]
            scores = [dot(q, keys[s][group:group + head]) / math.sqrt(head) for s in seen]
            top = max(scores)
            weights = [math.exp(score - top) for score in scores]
            total = sum(weights)
            output += [sum(weight * values[s][group + i] for s, weight in zip(seen, weights)) / total for i in range(head)]
        outputs.append(output)
    return outputs


def add(a, b):
    return [x + y for x, y in zip(a, b)]


def gpt2_logits(tensors, config, tokens):
    width, heads, epsilon = config["n_embd"], config["n_head"], config["layer_norm_epsilon"]
    weights = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}

    def norm(name, x):
        mean = sum(x) / width
        scale = 1 / math.sqrt(sum((value - mean) ** 2 for value in x) / width + epsilon)
        return [(value - mean) * scale * w + b for value, w, b in zip(x, weights[f"{name}.weight"].values, weights[f"{name}.bias"].values)]

    def conv1d(name, xs):  # stored [in, out]
        rows = list(zip(*weights[f"{name}.weight"].rows()))
        return [linear(rows, x, weights[f"{name}.bias"].values) for x in xs]

    def gelu(x):
        return 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x ** 3)))

    embedding, positions = weights["wte.weight"].rows(), weights["wpe.weight"].rows()
    xs = [add(embedding[token], positions[t]) for t, token in enumerate(tokens)]
    for layer in range(config["n_layer"]):
        qkv = conv1d(f"h.{layer}.attn.c_attn", [norm(f"h.{layer}.ln_1", x) for x in xs])
        mixed = attention([y[:width] for y in qkv], [y[width:2 * width] for y in qkv], [y[2 * width:] for y in qkv], heads, heads)
        xs = [add(x, y) for x, y in zip(xs, conv1d(f"h.{layer}.attn.c_proj", mixed))]
        hidden = conv1d(f"h.{layer}.mlp.c_fc", [norm(f"h.{layer}.ln_2", x) for x in xs])
        xs = [add(x, y) for x, y in zip(xs, conv1d(f"h.{layer}.mlp.c_proj", [[gelu(v) for v in h] for h in hidden]))]
    head = weights["lm_head.weight"].rows() if "lm_head.weight" in weights else embedding
    return [linear(head, norm("ln_f", x)) for x in xs]


def window_of(config):
    """The sliding window of all layers, as MistralConfig and Qwen2Config have it; None without one."""
    if config["model_type"] == "mistral":
        return config["sliding_window"]
    is_used = config.get("use_sliding_window", False) and config["max_window_layers"] == 0
    return config["sliding_window"] if is_used else None


def llama_logits(tensors, config, tokens):
    heads, kv_heads, epsilon = config["num_attention_heads"], config["num_key_value_heads"], config["rms_norm_eps"]
    head = config.get("head_dim") or config["hidden_size"] // heads
    frequencies = frequencies_of(config, head)
    rows = {name: tensor.rows() for name, tensor in tensors.items() if len(tensor.shape) == 2}

    def norm(name, x):
        scale = 1 / math.sqrt(sum(value * value for value in x) / len(x) + epsilon)
        return [value * scale * w for value, w in zip(x, tensors[f"{name}.weight"].values)]

    def rotate(x, position):
        """Pairs element i of a head with i + head / 2."""
        result = []
        for begin in range(0, len(x), head):
            first, second = x[begin:begin + head // 2], x[begin + head // 2:begin + head]
            angles = [position * frequency for frequency in frequencies]
            result += [a * math.cos(w) - b * math.sin(w) for a, b, w in zip(first, second, angles)]
            result += [b * math.cos(w) + a * math.sin(w) for a, b, w in zip(first, second, angles)]
        return result

    def silu(x):
        return x / (1 + math.exp(-x))

    def projected(name, x):
        """One of queries, keys and values, with what Qwen2 adds to it and what Qwen3 does to each head."""
        bias = tensors.get(f"{name}_proj.bias")
        y = linear(rows[f"{name}_proj.weight"], x, bias and bias.values)
        if f"{name}_norm.weight" in tensors:
            y = [value for begin in range(0, len(y), head) for value in norm(f"{name}_norm", y[begin:begin + head])]
        return y

    embedding = rows["model.embed_tokens.weight"]
    xs = [embedding[token] for token in tokens]
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}"
        inputs = [norm(f"{prefix}.input_layernorm", x) for x in xs]
        q, k, v = ([projected(f"{prefix}.self_attn.{part}", x) for x in inputs] for part in "qkv")
        mixed = attention([rotate(y, t) for t, y in enumerate(q)], [rotate(y, t) for t, y in enumerate(k)], v, heads, kv_heads,
                          window_of(config))
        xs = [add(x, linear(rows[f"{prefix}.self_attn.o_proj.weight"], y)) for x, y in zip(xs, mixed)]
        for t, x in enumerate(xs):
            y = norm(f"{prefix}.post_attention_layernorm", x)
            gate, up = (linear(rows[f"{prefix}.mlp.{part}_proj.weight"], y) for part in ("gate", "up"))
            hidden = [silu(a) * b for a, b in zip(gate, up)]
            xs[t] = add(x, linear(rows[f"{prefix}.mlp.down_proj.weight"], hidden))
    output = rows["lm_head.weight"] if "lm_head.weight" in rows else embedding
    return [linear(output, norm("model.norm", x)) for x in xs]


def logits_of(tensors, config, tokens):
    return (gpt2_logits if config["model_type"] == "gpt2" else llama_logits)(tensors, config, tokens)


def likeliest(tensors, config, tokens, count):
    """The tokens and `count` more, each the likeliest after those before it."""
    tokens = list(tokens)
    for _ in range(count):
        last = list(logits_of(tensors, config, tokens))[-1]
        tokens.append(max(range(len(last)), key=last.__getitem__))
    return tokens


def mean_loss(tensors, config, tokens, length, counts=None):
    """Of the consecutive windows of `length` tokens, as `holdfast evaluate` takes them; `counts`: which tokens are targets, else all."""
    losses = []
    for begin in range(0, (len(tokens) - 1) // length * length, length):
        for t, logits in enumerate(logits_of(tensors, config, tokens[begin:begin + length])):
            if counts and not counts[begin + t + 1]:
                continue
            top = max(logits)
            losses.append(top + math.log(sum(math.exp(x - top) for x in logits)) - logits[tokens[begin + t + 1]])
    return sum(losses) / len(losses)


def write_folder(folder, tensors, config):
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(safetensors_bytes(tensors, {"format": "pt"}))
    return folder


def token_shard(path, tokens):
    """An llm.c token file."""
    path.write_bytes(struct.pack("<3i", 20240520, 1, len(tokens)).ljust(1024, b"\0") + struct.pack(f"<{len(tokens)}H", *tokens))
    return path
