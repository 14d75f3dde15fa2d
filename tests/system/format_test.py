"""What runs save is what checkpoint/FORMAT.md says: tools/bench_peers/checkpoint.py, which has none of holdfast's code, reads it,
and finds the weights that `holdfast export` writes and the digests that `holdfast digest` prints."""
import array
import re
import sys
import unittest

import foreign_model
import harness

sys.path.insert(0, str(harness.ROOT / "tools/bench_peers"))
import checkpoint  # noqa: E402

STEPS, LANES = 4, 2
SMALL = ["--threads=1", "--training.sequence_length=16", "--training.microbatch_size=1", "--model.width=64",
         "--evaluation.every_steps=0", "--checkpoint.every_steps=2", "--model.vocabulary=300", "--optimizer.warmup_steps=1"]
LLAMA = ["--model.layers=2", "--parallel.tensor_lanes=2"]
GPT2 = ["--model.style=gpt2", "--model.kv_heads=4", "--model.layers=1", "--parallel.tensor_lanes=4"]


def model_keys(manifest):
    """Of the section [model] of the config that a manifest has."""
    section = manifest["config"].split("[model]\n")[1].split("\n[")[0]
    return {key: int(value) if value.isdigit() else value.strip('"') for key, value in re.findall(r"(\w+) = (.+)", section)}


def weights_by_the_page(tensors, config, averaged=False):
    """{name: (shape, bytes)} of whole weights, or of averages of them where there are some, joined from slices as FORMAT.md says."""
    joined = {name: (tensor.shape, tensor.joined(*checkpoint.cut_of(name, config))) for (name, kind), tensor in tensors.items()
              if kind == ("ema" if averaged and (name, "ema") in tensors else "weight")}
    for shape, content in joined.values():
        assert len(content) == 4 * foreign_model.product(shape)
    return joined


def rows(weight, first, count):
    shape, content = weight
    row = 4 * foreign_model.product(shape[1:])
    return [count, *shape[1:]], content[first * row:(first + count) * row]


def transposed(weight):
    shape, content = weight
    elements = [content[at:at + 4] for at in range(0, len(content), 4)]
    return shape[::-1], b"".join(elements[row * shape[1] + column] for column in range(shape[1]) for row in range(shape[0]))


def as_exported(weights, config):
    """The same under the names and in the order of elements that transformers has."""
    vocabulary, found = config["vocabulary"], {}
    for name, weight in weights.items():
        layer = re.match(r"layers\.(\d+)\.(.*)\.(weight|bias)$", name)
        if config["style"] == "gpt2":
            names = {"attention_norm": "ln_1", "attention.qkv": "attn.c_attn", "attention.output": "attn.c_proj",
                     "feed_forward_norm": "ln_2", "feed_forward.up": "mlp.c_fc", "feed_forward.down": "mlp.c_proj"}
            ends = {"embedding.token.weight": "transformer.wte.weight", "embedding.position.weight": "transformer.wpe.weight",
                    "final_norm.weight": "transformer.ln_f.weight", "final_norm.bias": "transformer.ln_f.bias"}
            if layer:
                is_matrix = layer[3] == "weight" and "norm" not in layer[2]
                found[f"transformer.h.{layer[1]}.{names[layer[2]]}.{layer[3]}"] = transposed(weight) if is_matrix else weight
            else:
                found[ends[name]] = rows(weight, 0, vocabulary) if name == "embedding.token.weight" else weight
            continue
        ends = {"embedding.token.weight": "model.embed_tokens.weight", "head.weight": "lm_head.weight", "final_norm.weight": "model.norm.weight"}
        if not layer:
            found[ends[name]] = weight if name == "final_norm.weight" else rows(weight, 0, vocabulary)
            continue
        queries = config["width"]
        keys = queries // config["heads"] * config["kv_heads"]
        parts = {"attention_norm": [("input_layernorm", None)], "feed_forward_norm": [("post_attention_layernorm", None)],
                 "attention.qkv": [("self_attn.q_proj", queries), ("self_attn.k_proj", keys), ("self_attn.v_proj", keys)],
                 "attention.output": [("self_attn.o_proj", None)], "feed_forward.down": [("mlp.down_proj", None)],
                 "feed_forward.up": [("mlp.gate_proj", config["feed_forward"]), ("mlp.up_proj", config["feed_forward"])]}
        first = 0
        for part, count in parts[layer[2]]:
            found[f"model.layers.{layer[1]}.{part}.weight"] = weight if count is None else rows(weight, first, count)
            first += count or 0
    return found


class FormatTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scene = harness.Scene(STEPS, LANES)
        cls.addClassCleanup(cls.scene.close)

    def check(self, path, averages=False):
        """Reads one checkpoint by the page, and compares it with what holdfast makes of it. (manifest, tensors)."""
        manifest, tensors = checkpoint.read_checkpoint(path)
        config = model_keys(manifest)
        for averaged in (False, True)[:1 + averages]:
            target = self.scene.directory / f"{self._testMethodName}-{path.name}-{averaged}"
            harness.program_output("export", path, target, *["--ema"][:averaged])
            exported, _ = foreign_model.read_folder(target)
            expected = as_exported(weights_by_the_page(tensors, config, averaged), config)
            self.assertEqual(sorted(expected), sorted(exported))
            for name, (shape, content) in expected.items():
                self.assertEqual(shape, exported[name].shape, name)
                self.assertEqual(content, foreign_model.pack("F32", exported[name].values), name)
        lines = harness.program_output("digest", path)
        self.assertIn(f"step {manifest['step']}\n", lines)
        self.assertIn(f"weights {checkpoint.digest_of(tensors, ['weight'])}\n", lines)
        kinds = ["moment1", "moment2"] + ["ema"][:averages]
        self.assertIn(f"optimizer {checkpoint.digest_of(tensors, kinds)}\n", lines)
        return manifest, tensors

    def trained(self, ranks, *overrides):
        run = self.scene.run(self._testMethodName, [*SMALL, *overrides])
        run.start(ranks).expect_exit(0)
        return run

    def test_llama_of_two_slices_from_two_ranks_in_planes(self):
        run = self.trained(2, *LLAMA, "--parallel.tensor=2", "--checkpoint.compression=always", "--training.precision=bf16")
        for path in run.checkpoints():
            _, tensors = self.check(path)
            self.assertEqual(tensors["layers.1.attention.qkv.weight", "moment2"].slices, 2)
        shards = [checkpoint.Shard(path, entry, manifest) for path in run.checkpoints()
                  for manifest in [checkpoint.read_manifest(path)] for entry in manifest["shards"]]
        codecs = {chunk[4] for shard in shards for piece in shard.pieces for chunk in piece["chunks"]}
        self.assertEqual((len(shards), codecs), (4, {checkpoint.RAW, checkpoint.PLANES}))

    def test_gpt2_of_four_slices(self):
        _, tensors = self.check(self.trained(1, *GPT2, "--checkpoint.compression=none").checkpoints()[-1])
        self.assertEqual(tensors["layers.0.feed_forward.up.bias", "weight"].slices, 4)

    def test_a_delta(self):
        run = self.trained(2, *LLAMA, "--model.freeze=layer 0", "--checkpoint.compression=always")
        self.assertTrue(list(run.checkpoints()[-1].glob("base-*")))
        self.check(run.checkpoints()[-1])

    def test_averages_of_the_weights(self):
        """Each average is moved by a tenth of its way to the weight that the step has left, whatever rank owns it."""
        run = self.trained(2, *LLAMA, "--optimizer.ema=0.9", "--checkpoint.every_steps=1", "--checkpoint.keep=9", "--model.freeze=layer 0",
                           "--training.precision=bf16")
        before = None
        for path in run.checkpoints():
            _, tensors = self.check(path, averages=True)
            now = {key: [value for part in tensor.parts for value in array.array("f", bytes(part))] for key, tensor in tensors.items()
                   if key[1] != "moment1" and key[1] != "moment2"}
            averages = {name for name, kind in now if kind == "ema"}
            self.assertEqual(averages, {name for name, _ in now if not name.startswith("layers.0.")})
            for name in averages if before else ():
                for old, new, weight in zip(before[name, "ema"], now[name, "ema"], now[name, "weight"]):
                    self.assertAlmostEqual(new, old + 0.1 * (weight - old), delta=1.2e-7 * (abs(old) + abs(weight)) + 1e-9, msg=name)
            before = now
        self.assertEqual(len(run.checkpoints()), STEPS)

        # What evaluates and samples with averages has those of an export, which is computed in one slice.
        data = self.scene.directory / "evaluated.bin"
        data.write_bytes(bytes(range(256)) * 4)
        imported = self.scene.directory / "imported"
        harness.program_output("import", self.scene.directory / f"{self._testMethodName}-{run.checkpoints()[-1].name}-True", imported)
        words = ("--data", data, "--sequence-length=16", "--device=cpu")
        loss, of_export, of_weights = (float(harness.program_output("evaluate", *of).removeprefix("loss "))
                                       for of in ((run.directory, *words, "--ema"), (imported, *words), (run.directory, *words)))
        self.assertAlmostEqual(loss, of_export, delta=1e-7)
        self.assertGreater(abs(loss - of_weights), 1e-3)
        self.assertNotEqual(*(harness.program_output("sample", run.directory, "--device=cpu", "--prompt=1 2 3", "--tokens=30", "--temperature=1",
                                                     "--top-k=0", *flags) for flags in ((), ("--ema",))))

    def test_a_tied_llama_of_one_slice(self):
        self.check(self.trained(1, "--model.layers=1", "--model.head=tied").checkpoints()[-1])


if __name__ == "__main__":
    harness.main()
