#!/usr/bin/env python3
"""docs/truth/compare_export.py: does transformers compute the same with an exported model, and holdfast with one of its?

For GPT-2, Llama, Qwen2, Qwen3 and Mistral, tied and untied, with and without grouped queries, in one file and in several:
  out   a few steps of `holdfast train`, `holdfast export`, AutoModelForCausalLM.from_pretrained(folder): no key missing or left
        over; the loss on a text is that of `holdfast evaluate`, and the likeliest tokens are those of `holdfast sample`
  in    a random model of transformers, save_pretrained(folder), `holdfast import`: the same loss, and `holdfast export` gives
        back every tensor bit by bit
  steps ten steps of AdamW on one sequence from a random model of transformers: the losses are those of torch.optim.AdamW, and so are
        the weights that are exported

Needs a Python with torch and transformers (4 or 5); without, it says so and ends with 77. Exit code 1 when something differs.
tests/system/checkpoints_test.py holds the same to a plain Python forward everywhere.
"""
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
PROGRAM = Path(os.environ.get("HOLDFAST") or ROOT / "build/release/bin/holdfast").resolve()
LENGTH, TOLERANCE, SAMPLED, STEPS = 32, 2e-5, 24, 10
SHAPE = {style: [f"--model.style={style}", "--model.layers=2", "--model.heads=4", "--model.width=64"]
         for style in ("llama", "gpt2", "qwen2", "qwen3", "mistral")}
MODELS = {
    "gpt2": ("gpt2", []),
    "gpt2, untied": ("gpt2", ["--model.head=untied"]),
    "llama": ("llama", []),
    "llama, tied, grouped queries": ("llama", ["--model.head=tied", "--model.kv_heads=2", "--model.rope_theta=500000"]),
    "llama 3, tied": ("llama", ["--model.head=tied", "--model.kv_heads=2", "--model.rope_scaling=llama3", "--model.rope_factor=8",
                               "--model.rope_original_positions=24"]),
    "qwen2": ("qwen2", ["--model.kv_heads=2", "--model.rope_scaling=linear", "--model.rope_factor=2"]),
    "qwen3, wide heads": ("qwen3", ["--model.kv_heads=2", "--model.head_size=24", "--model.head=tied"]),
    "mistral": ("mistral", ["--model.kv_heads=2"]),
    "mistral, window": ("mistral", ["--model.kv_heads=2", "--model.attention_window=7"]),
    "qwen2, window": ("qwen2", ["--model.kv_heads=2", "--model.attention_window=11"]),
    "llama, several files": ("llama", ["--model.width=256", "--model.kv_heads=1"]),
}


def skip(reason):
    print(f"compare_export.py: skipped: {reason}")
    sys.exit(77)


try:
    import torch
    import transformers
except ImportError as error:
    skip(f"{error}; it needs a Python with torch and transformers")
if not PROGRAM.exists():
    skip(f"{PROGRAM} is not there; build it with: cmake --build --preset release --target holdfast")


def holdfast(*words):
    done = subprocess.run([str(PROGRAM), *map(str, words)], capture_output=True, text=True, timeout=300, check=False)
    if done.returncode != 0:
        sys.exit(f"holdfast {' '.join(map(str, words))}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def loss_here(path, data):
    output = holdfast("evaluate", path, "--data", data, "--sequence-length", LENGTH, "--device=cpu")
    return float(re.fullmatch(r"loss (\S+)\n", output).group(1))


def loss_there(model, text):
    windows = [text[i:i + LENGTH + 1] for i in range(0, (len(text) - 1) // LENGTH * LENGTH, LENGTH)]
    tokens = torch.tensor([list(window) for window in windows])
    with torch.no_grad():
        logits = model(tokens[:, :-1]).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1).double(), tokens[:, 1:].flatten()).item()


def likeliest(model, prompt):
    tokens = list(prompt)
    with torch.no_grad():
        for _ in range(SAMPLED):
            tokens.append(int(model(torch.tensor([tokens])).logits[0, -1].argmax()))
    return bytes(tokens)


def load(folder):
    """With every weight from the files, or an error."""
    model, report = transformers.AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    unused = {key: list(report[key]) for key in ("missing_keys", "unexpected_keys", "mismatched_keys") if report[key]}
    if unused:
        sys.exit(f"{folder}: transformers says {unused}")
    return model.float().eval()


def compare(name, here, there):
    same = abs(here - there) <= TOLERANCE
    print(f"{name:45} holdfast {here:.6f}  transformers {there:.6f}  {'' if same else 'DIFFERENT'}")
    return same


def plain(what, name):
    return "-".join([what, *re.findall(r"\w+", name)])


def goes_out(work, name, style, words, text_file):
    run, folder = work / plain("run", name), work / plain("folder", name)
    config = work / "run.toml"
    config.write_text(f'[run]\ndirectory = "unset"\n[data]\nsources = [{{ path = "{text_file}" }}]\n[training]\nsteps = 20\n'
                      f"sequence_length = {2 * LENGTH}\nmicrobatch_size = 4\n[parallel]\nlanes = 1\ntensor_lanes = 1\n"
                      "[optimizer]\nlearning_rate = 3e-3\nwarmup_steps = 2\n")
    shape = {word.split("=")[0]: word for word in [*SHAPE[style], *words]}
    holdfast("train", config, f"--run.directory={run}", *shape.values())
    holdfast("export", run, folder, *(["--file-mib=1"] if "several" in name else []))
    if "several" in name and not (folder / "model.safetensors.index.json").exists():
        sys.exit(f"{folder} is one file")
    model, text = load(folder), text_file.read_bytes()
    same = compare(f"out: {name}", loss_here(run, text_file), loss_there(model, text))
    prompt = b"The step "
    sampled = holdfast("sample", run, "--prompt", prompt.decode(), "--tokens", SAMPLED, "--temperature=0", "--device=cpu")
    expected = likeliest(model, prompt).decode(errors="replace")
    # The program ends the text with a line end, and leaves out a character that is not whole yet.
    sampled, expected = sampled.rstrip("\n"), expected.rstrip("\ufffd\n")
    if sampled != expected:
        print(f"out: {name}: sampled {sampled!r}, transformers {expected!r}  DIFFERENT")
    return same and sampled == expected


def comes_in(work, name, config, text_file):
    torch.manual_seed(1)
    folder, imported, back = (work / plain(what, name) for what in ("theirs", "imported", "back"))
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():  # norms and biases that start as ones and zeros would hide a mistake
        for value in model.parameters():
            value.add_(torch.randn_like(value) * 0.05)
    model.save_pretrained(folder)
    holdfast("import", folder, imported)
    same = compare(f"in:  {name}", loss_here(imported, text_file), loss_there(model, text_file.read_bytes()))
    holdfast("export", imported, back)
    again = load(back).state_dict()
    for key, value in model.state_dict().items():
        if not torch.equal(again[key], value):
            print(f"in:  {name}: {key} came back DIFFERENT")
            same = False
    return same


def trains_on(work, name, config, text_file):
    """One sequence, so that its place in the order of the data is no matter; weights may differ by what rounding makes of AdamW's ratio."""
    torch.manual_seed(2)
    folder, imported, run, back = (work / plain(what, name) for what in ("before", "start", "tuned", "after"))
    model = transformers.AutoModelForCausalLM.from_config(config).train()
    model.save_pretrained(folder)
    sequence = work / plain("sequence", name)
    sequence.write_bytes(text_file.read_bytes()[:LENGTH + 1])
    text = holdfast("import", folder, imported)
    for key, value in (("directory", f'"{run}"'), ("sources", f'[{{ path = "{sequence}" }}]'), ("steps", STEPS)):
        text = re.sub(rf"^# {key} = .*$", f"{key} = {value}", text, flags=re.MULTILINE)
    toml = work / plain("tune", name)
    toml.write_text(re.sub(r"^sequence_length = .*$", f"sequence_length = {LENGTH}", text, flags=re.MULTILINE))
    holdfast("train", toml, "--training.microbatch_size=1", "--parallel.lanes=1", "--optimizer.schedule=constant",
             "--optimizer.learning_rate=1e-3", "--optimizer.weight_decay=0.1", "--optimizer.gradient_clip=0", "--device=cpu",
             "--log.every_steps=1")
    here = [event["loss"] for event in map(json.loads, (run / "events.jsonl").read_text().splitlines()) if event["event"] == "step"]
    tokens = torch.tensor([list(sequence.read_bytes())])
    matrices = [value for value in model.parameters() if value.dim() > 1]
    vectors = [value for value in model.parameters() if value.dim() == 1]
    optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}], lr=1e-3,
                                  betas=(0.9, 0.95), eps=1e-8)
    there = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(tokens[:, :-1]).logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        there.append(loss.item())
        optimizer.step()
    holdfast("export", run, back)
    after, start = load(back).state_dict(), load(folder).state_dict()
    moved = max((after[key] - value).abs().max().item() for key, value in start.items())
    apart = max(((after[key] - value).abs().mean() / moved).item() for key, value in model.state_dict().items())
    worst = max(abs(a / b - 1) for a, b in zip(here, there, strict=True))
    same = worst <= 1e-6 and apart <= 1e-4
    print(f"{f'steps: {name}':45} losses differ by {worst:.1e}, weights by {apart:.1e} of the way{'' if same else '  DIFFERENT'}")
    return same


def configs():
    llama = {"vocab_size": 256, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2, "num_attention_heads": 4,
             "max_position_embeddings": 64}
    gpt2 = {"vocab_size": 256, "n_embd": 48, "n_layer": 2, "n_head": 4, "n_positions": 64}
    return {"gpt2": transformers.GPT2Config(**gpt2),
            "llama": transformers.LlamaConfig(**llama, num_key_value_heads=4),
            "llama, tied, grouped queries": transformers.LlamaConfig(**llama, num_key_value_heads=2, tie_word_embeddings=True),
            "llama 3": transformers.LlamaConfig(**llama, num_key_value_heads=2, tie_word_embeddings=True, rope_parameters={
                "rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                "original_max_position_embeddings": 24}),
            "qwen2": transformers.Qwen2Config(**llama, num_key_value_heads=2, rope_parameters={
                "rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}),
            "qwen3, wide heads": transformers.Qwen3Config(**llama, num_key_value_heads=2, head_dim=20, tie_word_embeddings=True),
            "mistral": transformers.MistralConfig(**llama, num_key_value_heads=2, sliding_window=None)}


def main():
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, transformers {transformers.__version__}")
    with tempfile.TemporaryDirectory(prefix="holdfast-export-") as directory:
        work = Path(directory)
        text_file = work / "text.txt"
        text_file.write_text("".join(f"The step {i} of the run saves {i * i % 97} bytes; each rank adds its lane.\n" for i in range(60)))
        same = [goes_out(work, name, style, words, text_file) for name, (style, words) in MODELS.items()]
        same += [comes_in(work, name, config, text_file) for name, config in configs().items()]
        same += [trains_on(work, name, config, text_file) for name, config in configs().items() if name != "gpt2"]
    return 0 if all(same) else 1


if __name__ == "__main__":
    sys.exit(main())
