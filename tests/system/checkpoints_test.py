"""What users do with checkpoints: inspect, diff, export, import, run.initialize_from. Other programs' files are written, read
and computed by foreign_model.py, which shares nothing with holdfast."""
import json
import re
import shutil
import signal
import struct
import unittest

import foreign_model
import harness

LLAMA = ["--model.layers=2"]
ONE_SLICE = ["--parallel.tensor_lanes=1"]
GPT2 = ["--model.style=gpt2", "--model.kv_heads=4", "--model.layers=1", *ONE_SLICE]
STEPS, LANES, LENGTH = 6, 2, 16
SHORT = ["--threads=1", f"--training.sequence_length={LENGTH}", "--training.microbatch_size=1", "--model.width=32",
         "--evaluation.every_steps=0", "--checkpoint.every_steps=3", "--parallel.tensor_lanes=2"]


def json_of(*arguments, code=0):
    done = harness.call_program(*arguments, "--json")
    if done.returncode != code:
        raise AssertionError(f"exit code {done.returncode}, expected {code}\n{done.stdout}")
    return json.loads(done.stdout)


class CheckpointsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scene = harness.Scene(STEPS, LANES)
        cls.addClassCleanup(cls.scene.close)
        cls.runs = {}

    def trained(self, name, overrides=(), ranks=1):
        """A finished run; made once."""
        if name not in self.runs:
            run = self.scene.run(name, [*SHORT, *overrides])
            run.start(ranks).expect_exit(0)
            self.runs[name] = run
        return self.runs[name]

    def path(self, name):
        return self.scene.directory / f"{self._testMethodName}-{name}"

    def short_text(self):
        path = self.scene.directory / "short.txt"
        path.write_bytes(self.scene.text.read_bytes()[:3 * LENGTH + 1])
        return path

    def loss(self, checkpoint, data, length=LENGTH):
        output = harness.program_output("evaluate", checkpoint, "--data", data, "--sequence-length", length, "--device=cpu")
        return float(re.fullmatch(r"loss (\S+)\n", output).group(1))

    # inspect

    def test_inspect(self):
        run = self.trained("llama", LLAMA, ranks=2)
        found = json_of("inspect", run.directory)
        self.assertEqual((found["step"], found["generation"], found["tensor_lanes"]), (STEPS, 0, 2))
        self.assertEqual([entry["step"] for entry in found["checkpoints"]], [6, 3])
        self.assertEqual(len(found["files"]), 2)
        self.assertEqual(found["file_bytes"], sum(path.stat().st_size for path in run.checkpoints()[-1].glob("*.hfs")))
        tensors = {tensor["name"]: tensor for tensor in found["tensors"]}
        self.assertEqual(list(tensors)[0], "embedding.token.weight", "in the order of the model")
        qkv = tensors["layers.1.attention.qkv.weight"]
        self.assertEqual((qkv["shape"], qkv["slices"], qkv["kinds"]), ([64, 32], 2, ["weight", "moment1", "moment2"]))
        self.assertEqual(qkv["bytes"], 3 * 4 * 64 * 32)
        self.assertEqual(found["tensor_bytes"], 3 * 4 * found["parameters"], "256 tokens need no padding")
        one = json_of("inspect", run.checkpoints()[0])
        self.assertEqual((one["step"], "checkpoints" in one), (3, False))

    def test_inspect_tells_the_type_of_moments(self):
        run = self.trained("bf16-moments", [*LLAMA, "--optimizer.moments=bf16"])
        tensors = {tensor["name"]: tensor for tensor in json_of("inspect", run.directory)["tensors"]}
        qkv = tensors["layers.1.attention.qkv.weight"]
        self.assertEqual((qkv["type"], qkv["moments_type"], qkv["bytes"]), ("fp32", "bf16", (4 + 2 * 2) * 64 * 32))
        self.assertRegex(harness.program_output("inspect", run.directory),
                         r"qkv\.weight +fp32, moments bf16 +weight moment1 moment2")

    def test_inspect_as_text(self):
        run = self.trained("llama", LLAMA, ranks=2)
        output = harness.program_output("inspect", run.directory)
        self.assertRegex(output, r"step +6 \(generation 0\)")
        self.assertRegex(output, r"layers\.\{0-1\}\.attention\.qkv\.weight +fp32 +weight moment1 moment2 +2 +64 x 32 +2")
        self.assertRegex(output, r"shard-00001\.hfs")
        every = harness.program_output("inspect", run.directory, "--all")
        self.assertEqual(len(re.findall(r"^layers\.\d\.attention\.qkv\.weight", every, re.MULTILINE)), 2)

    def test_inspect_names_the_files_that_a_delta_refers_to(self):
        run = self.trained("delta", [*LLAMA, "--model.freeze=embedding"])
        found = json_of("inspect", run.directory)
        newest = run.checkpoints()[-1]
        self.assertEqual([(file["name"], file["bytes"]) for file in found["base_files"]],
                         [(path.name, path.stat().st_size) for path in sorted(newest.glob("base-*"))])
        self.assertEqual(len(found["base_files"]), 1)
        self.assertRegex(harness.program_output("inspect", run.directory), r"base-00000003-[0-9a-f]{8}-shard-00000\.hfs +in part")
        self.assertEqual(json_of("inspect", run.checkpoints()[0])["base_files"], found["base_files"])
        kinds = {tensor["name"]: tensor["kinds"] for tensor in found["tensors"]}
        self.assertEqual(kinds["embedding.token.weight"], ["weight"], "frozen tensors have no moments")
        self.assertEqual(kinds["head.weight"], ["weight", "moment1", "moment2"])

    def test_inspect_of_a_damaged_run_shows_the_next(self):
        run = self.trained("damaged", LLAMA)
        (run.checkpoints()[-1] / "manifest.json").write_text("{}")
        output = harness.program_output("inspect", run.directory)
        self.assertRegex(output, r"step +3 ")
        self.assertRegex(output, r"6 .*damaged")

    def test_export_and_diff_pass_a_damaged_checkpoint_over(self):
        """Also where the damage is in what an export does not need."""
        run = self.trained("damaged-moment", LLAMA)
        early, late = run.checkpoints()
        shard = late / "shard-00000.hfs"
        content = bytearray(shard.read_bytes())
        content[4 * len(content) // 5] ^= 1
        shard.write_bytes(content)
        printed = harness.program_output("export", run.directory, self.path("folder"))
        self.assertRegex(printed, r"checkpoint skipped: \S*step-00000006\S* is damaged: tensor '\S+' \(moment\d\)")
        self.assertIn(f"{early} (step 3) -> ", printed)
        harness.program_output("export", early, self.path("early"))
        self.assertEqual((self.path("folder") / "model.safetensors").read_bytes(), (self.path("early") / "model.safetensors").read_bytes())
        for a, b in ((run.directory, early), (early, run.directory)):
            printed = harness.program_output("diff", a, b)
            self.assertEqual(printed.count("checkpoint skipped"), 1)
            self.assertRegex(printed, r"(\d+) of \1 tensors have the same bits")
        done = harness.call_program("export", late, self.path("late"))
        self.assertEqual(done.returncode, 5, done.stdout)
        self.assertEqual(sorted(path.name for path in self.scene.directory.glob(f"{self._testMethodName}-late*")), [])

    # diff

    def test_diff_does_not_see_the_layout(self):
        alone = self.trained("llama-alone", LLAMA)
        shared = self.trained("llama", LLAMA, ranks=2)
        split = self.trained("llama-tensor", [*LLAMA, "--parallel.tensor=2"], ranks=2)
        for run in (shared, split):
            found = json_of("diff", alone.directory, run.directory)
            self.assertTrue(found["equal"])
            self.assertTrue(all(tensor["differing"] == 0 for tensor in found["tensors"]))
        self.assertRegex(harness.program_output("diff", alone.directory, split.directory), r"(\d+) of \1 tensors have the same bits")

    def test_diff_counts_what_differs(self):
        run = self.trained("llama", LLAMA, ranks=2)
        early, late = run.checkpoints()
        found = json_of("diff", early, late, code=1)
        tensors = {(tensor["tensor"], tensor["kind"]): tensor for tensor in found["tensors"]}
        norm = tensors["final_norm.weight", "weight"]
        self.assertEqual(norm["differing"], norm["elements"])
        # The same by hand: both exported, read and subtracted without holdfast.
        values = {}
        for name, checkpoint in (("a", early), ("b", late)):
            harness.program_output("export", checkpoint, self.path(name))
            values[name] = foreign_model.read_folder(self.path(name))[0]["model.norm.weight"].values
        differences = [abs(a - b) for a, b in zip(values["a"], values["b"])]
        self.assertEqual(norm["max_absolute"], max(differences))
        self.assertEqual(norm["max_relative"], max(abs(a - b) / max(abs(a), abs(b)) for a, b in zip(values["a"], values["b"])))
        self.assertEqual(norm["first"], {"index": [0], "a": values["a"][0], "b": values["b"][0]})
        self.assertEqual(harness.call_program("diff", early, late).returncode, 1)

    def test_diff_of_different_models(self):
        run, other = self.trained("llama", LLAMA, ranks=2), self.trained("gpt2", GPT2)
        found = json_of("diff", run.directory, other.directory, code=1)
        mismatches = {tensor["tensor"]: tensor.get("mismatch") for tensor in found["tensors"] if tensor["kind"] == "weight"}
        self.assertEqual(mismatches["layers.1.attention.qkv.weight"], "only in A")
        self.assertEqual(mismatches["embedding.position.weight"], "only in B")
        self.assertIn("[64, 32] in A", mismatches["layers.0.attention.qkv.weight"])
        self.assertEqual(found["config"]["model.style"], ['"llama"', '"gpt2"'])

    # going back, and cutting anew

    def test_a_run_that_went_back(self):
        """Six steps, back to step 3 with another learning rate, dead in step 5: the checkpoint of step 6 is discarded."""
        run = self.scene.run("went-back", [*SHORT, *LLAMA])
        run.start(2).expect_exit(0)
        early, late = run.checkpoints()
        old = harness.program_output("digest", early)
        back = [f"--run.resume={early}", "--optimizer.learning_rate=1e-4"]
        run.start(overrides=back, faults="step.before_vote@2=kill").expect_exit(-signal.SIGKILL)
        found = json_of("inspect", run.directory)
        self.assertEqual((found["step"], found["generation"]), (3, 0))
        self.assertEqual([(entry["step"], entry["discarded"]) for entry in found["checkpoints"]], [(3, False), (6, True)])
        self.assertRegex(harness.program_output("inspect", run.directory), r"\n +6 +0 \(discarded\)")
        self.assertEqual(run.digest(), old)
        self.assertEqual(harness.program_output("verify", run.directory).count("whole"), 2)
        left = harness.program_output("digest", late)
        # With the same words, it goes on; the save of step 6 takes the place of the old one.
        self.assertIn("(step 3)", run.start(2, overrides=back).expect_exit(0))
        self.assertNotEqual(run.digest(), left)
        self.assertEqual([entry["generation"] for entry in json_of("inspect", run.directory)["checkpoints"]], [1, 0])

    def test_a_run_that_is_cut_anew(self):
        """From one slice to two, with tensor parallelism: announced, no element changed, the same bits on one rank."""
        run = self.scene.run("cut", [*SHORT, *LLAMA, *ONE_SLICE, "--training.steps=3", "--optimizer.warmup_steps=1"])
        run.start(2).expect_exit(0)
        ends = {}
        for ranks, layout in ((1, []), (2, ["--parallel.tensor=2"]), (4, ["--parallel.tensor=2", "--parallel.lanes=4"])):
            lanes = [] if ranks == 4 else ["--parallel.lanes=4"]
            copy = self.scene.run(f"cut-{ranks}", run.overrides)
            shutil.copytree(run.directory, copy.directory)
            told = copy.start(ranks, overrides=["--training.steps=6", "--parallel.tensor_lanes=2", *lanes, *layout]).expect_exit(0)
            self.assertIn("resume: parallel.tensor_lanes: 1 -> 2  (numeric", told)
            self.assertIn("resume: parallel.lanes: 2 -> 4  (numeric", told)
            self.assertIn("generation 1 begins after step 3 (changed: parallel.lanes, parallel.tensor_lanes)", told)
            ends[ranks] = copy.digest()
        self.assertEqual(len(set(ends.values())), 1)
        # Without the keys, and with them, it stays as it was cut.
        told = copy.start(overrides=["--training.steps=7", "--parallel.lanes=0", "--parallel.tensor_lanes=0"]).expect_exit(0)
        self.assertNotIn("generation", told)
        self.assertEqual(json_of("inspect", copy.directory)["tensor_lanes"], 2)

    # export and import

    def check_round_trip(self, run, **more):
        """What is exported computes in plain Python what it computes here, and comes back bit by bit."""
        folder, back, again = self.path("folder"), self.path("back"), self.path("again")
        harness.program_output("export", run.directory, folder)
        tensors, config = foreign_model.read_folder(folder)
        for key, value in more.items():
            self.assertEqual(config[key], value)
        text = self.short_text()
        loss = self.loss(run.directory, text)
        self.assertAlmostEqual(loss, foreign_model.mean_loss(tensors, config, list(text.read_bytes()), LENGTH), delta=2e-5)
        printed = harness.program_output("import", folder, back)
        self.assertIn(f'style = "{config["model_type"]}"', printed)
        # What is imported is uncut; cut into slices, the same weights are added up in another order.
        slices = json_of("inspect", run.directory)["tensor_lanes"]
        self.assertAlmostEqual(self.loss(back, text), loss, delta=0 if slices == 1 else 1e-6)
        weights = [tensor for tensor in json_of("diff", run.directory, back, code=1)["tensors"] if tensor["kind"] == "weight"]
        self.assertTrue(all(tensor["differing"] == 0 for tensor in weights), weights)
        self.assertRegex(harness.program_output("diff", run.directory, back, "--weights"), r"(\d+) of \1 tensors have the same bits")
        harness.program_output("verify", back)
        harness.program_output("export", back, again)
        self.assertEqual((folder / "model.safetensors").read_bytes(), (again / "model.safetensors").read_bytes())
        self.assertEqual(json.loads((again / "config.json").read_text()), config)
        return tensors

    def test_llama_goes_out_and_comes_back(self):
        tensors = self.check_round_trip(self.trained("llama", LLAMA, ranks=2), model_type="llama", num_key_value_heads=2,
                                        tie_word_embeddings=False)
        self.assertEqual(tensors["model.layers.0.self_attn.k_proj.weight"].shape, [16, 32])

    def test_tied_llama_goes_out_and_comes_back(self):
        tensors = self.check_round_trip(self.trained("tied", [*LLAMA, *ONE_SLICE, "--model.head=tied", "--model.vocabulary=300"]),
                                        tie_word_embeddings=True, vocab_size=300)
        self.assertNotIn("lm_head.weight", tensors)
        self.assertEqual(tensors["model.embed_tokens.weight"].shape, [300, 32], "without the padding to 320")

    def test_gpt2_goes_out_and_comes_back(self):
        tensors = self.check_round_trip(self.trained("gpt2", GPT2), model_type="gpt2", n_positions=LENGTH)
        self.assertEqual(tensors["transformer.h.0.attn.c_attn.weight"].shape, [32, 96], "[in, out]")

    def test_untied_gpt2_goes_out_and_comes_back(self):
        tensors = self.check_round_trip(self.trained("untied", [*GPT2, "--parallel.tensor_lanes=2", "--model.head=untied"]), tie_word_embeddings=False)
        self.assertIn("lm_head.weight", tensors)

    def test_export_in_bf16_rounds_to_nearest(self):
        run, exact, rounded = self.trained("gpt2", GPT2), self.path("exact"), self.path("rounded")
        harness.program_output("export", run.directory, exact)
        harness.program_output("export", run.directory, rounded, "--precision", "bf16")
        tensors, config = foreign_model.read_folder(rounded)
        self.assertEqual((config["torch_dtype"], config["dtype"]), ("bfloat16", "bfloat16"))
        for name, tensor in foreign_model.read_folder(exact)[0].items():
            self.assertEqual(tensors[name].kind, "BF16")
            self.assertEqual(foreign_model.pack("BF16", tensors[name].values), foreign_model.pack("BF16", tensor.values), name)

    def test_export_in_several_files(self):
        run = self.trained("wide", ["--model.layers=3", "--model.width=128"])
        folder, back = self.path("folder"), self.path("back")
        harness.program_output("export", run.directory, folder, "--file-mib", "1")
        names = sorted(path.name for path in folder.glob("*.safetensors"))
        self.assertGreater(len(names), 2)
        self.assertEqual(names[0], f"model-00001-of-{len(names):05}.safetensors")
        self.assertTrue(all(path.stat().st_size <= (1 << 20) + 4096 for path in folder.glob("*.safetensors")))
        tensors, _ = foreign_model.read_folder(folder)
        index = json.loads((folder / "model.safetensors.index.json").read_text())
        self.assertEqual(index["metadata"]["total_size"], sum(4 * len(tensor.values) for tensor in tensors.values()))
        harness.program_output("import", folder, back)
        self.assertEqual(self.weight_line(back), self.weight_line_of_one_slice(run))

    def weight_line(self, path):
        return re.search(r"^weights .*", harness.program_output("digest", path), re.MULTILINE).group()

    def weight_line_of_one_slice(self, run):
        """The digest of the same weights uncut: of a run of one step that changes nothing."""
        uncut = self.scene.run(f"{run.directory.name}-uncut", [
            *run.overrides, "--parallel.tensor_lanes=1", "--training.steps=1", "--optimizer.learning_rate=0",
            "--optimizer.warmup_steps=0", f"--run.initialize_from={run.directory}"])
        uncut.start(1).expect_exit(0)
        return self.weight_line(uncut.directory)

    def test_llmc_goes_out_and_comes_back(self):
        run, text = self.trained("gpt2", GPT2), self.short_text()
        file, back = self.path("model.bin"), self.path("back")
        harness.program_output("export", run.directory, file, "--format=llmc")
        content = file.read_bytes()
        header = struct.unpack_from("<8i", content)
        self.assertEqual(header, (20240326, 3, LENGTH, 256, 1, 4, 32, 256))
        folder = self.path("folder")
        harness.program_output("export", run.directory, folder)
        tensors, _ = foreign_model.read_folder(folder)
        qkv = tensors["transformer.h.0.attn.c_attn.weight"]
        transposed = [value for column in zip(*qkv.rows()) for value in column]  # llm.c has [out, in]
        place = 1024 + 4 * (256 * 32 + LENGTH * 32 + 2 * 32)  # behind wte, wpe, ln1w and ln1b
        self.assertEqual(content[place:place + 4 * len(transposed)], foreign_model.pack("F32", transposed))
        harness.program_output("import", file, back)
        self.assertEqual(self.loss(back, text), self.loss(run.directory, text))
        harness.program_output("export", back, self.path("again.bin"), "--format=llmc")
        self.assertEqual(self.path("again.bin").read_bytes(), content)

    def test_llmc_in_bf16(self):
        run, file, exact = self.trained("gpt2-odd", [*GPT2, "--model.vocabulary=300"]), self.path("bf16.bin"), self.path("fp32.bin")
        harness.program_output("export", run.directory, file, "--format=llmc", "--precision=bf16")
        harness.program_output("export", run.directory, exact, "--format=llmc")
        content = file.read_bytes()
        self.assertEqual(struct.unpack_from("<8i", content), (20240326, 5, LENGTH, 300, 1, 4, 32, 384))
        values = foreign_model.unpack("F32", exact.read_bytes()[1024:])
        self.assertEqual(content[1024:], foreign_model.pack("BF16", values))
        self.assertEqual(values[300 * 32:384 * 32], [0.0] * (84 * 32), "padding of the vocabulary")
        harness.program_output("import", file, self.path("back"))
        harness.program_output("export", self.path("back"), self.path("again.bin"), "--format=llmc", "--precision=bf16")
        self.assertEqual(self.path("again.bin").read_bytes(), content)

    def check_foreign(self, tensors, config, length=8):
        """A model that holdfast has never seen computes the same here."""
        folder = foreign_model.write_folder(self.path("theirs"), tensors, config)
        imported, back = self.path("imported"), self.path("back")
        harness.program_output("import", folder, imported)
        tokens = [(7 * i * i + 3 * i) % config["vocab_size"] for i in range(3 * length + 1)]
        shard = foreign_model.token_shard(self.path("tokens.bin"), tokens)
        self.assertAlmostEqual(self.loss(imported, shard, length), foreign_model.mean_loss(tensors, config, tokens, length), delta=2e-5)
        prompt = tokens[3:7]
        told = harness.program_output("sample", imported, f"--prompt={prompt}".replace("[", "").replace("]", ""), "--tokens=8",
                                      "--temperature=0", "--device=cpu")
        sampled = [int(word) for word in harness.without_rate(told).replace(",", "").split()]
        self.assertEqual(sampled, foreign_model.likeliest(tensors, config, prompt, 8))
        harness.program_output("export", imported, back)
        exported, _ = foreign_model.read_folder(back)
        self.assertEqual(set(exported), set(tensors))
        for name, tensor in tensors.items():
            self.assertEqual(exported[name], tensor, name)
        return imported

    def test_text_is_bytes_to_an_imported_model_of_few_tokens(self):
        text = self.path("text.txt")
        text.write_bytes(bytes(range(32, 127)))
        for vocabulary in (260, 513):
            tensors, config = foreign_model.random_llama(vocabulary=vocabulary)
            imported = self.path(f"imported_{vocabulary}")
            harness.program_output("import", foreign_model.write_folder(self.path(f"theirs_{vocabulary}"), tensors, config), imported)
            if vocabulary == 260:
                self.assertAlmostEqual(self.loss(imported, text, 8), foreign_model.mean_loss(tensors, config, list(text.read_bytes()), 8), delta=2e-5)
        refused = harness.call_program("evaluate", imported, "--data", text, "--sequence-length=8")
        self.assertEqual(refused.returncode, 2)
        self.assertIn("none of which is known to be a byte", refused.stdout)

    def test_import_of_a_gpt2(self):
        self.check_foreign(*foreign_model.random_gpt2())

    def test_import_of_a_llama(self):
        self.check_foreign(*foreign_model.random_llama())

    def test_import_of_a_tied_llama(self):
        self.check_foreign(*foreign_model.random_llama(tied=True, kv_heads=4))

    def check_config_comes_back(self, config, *keys):
        back = foreign_model.read_folder(self.path("back"))[1]
        for key in ("model_type", "num_key_value_heads", "rope_theta", "rope_scaling", *keys):
            self.assertEqual(back.get(key), config.get(key), key)
        return back

    def test_import_of_a_llama_3(self):
        """Frequencies on both sides of both borders, within the 24 tokens of a window."""
        scaling = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                   "original_max_position_embeddings": 30}
        tensors, config = foreign_model.random_llama(heads=2, width=24, tied=True, rope_scaling=scaling)
        imported = self.check_foreign(tensors, config, length=24)
        parameters = self.check_config_comes_back(config)["rope_parameters"]
        self.assertEqual(parameters, scaling | {"rope_theta": 500.0}, "for transformers 5")
        shard, plain = self.path("tokens.bin"), self.path("plain")
        harness.program_output("import", self.path("theirs"), plain, "--rope-scaling=drop")
        self.assertGreater(abs(self.loss(plain, shard, 24) - self.loss(imported, shard, 24)), 1e-4, "it is another model")

    def test_import_of_linear_frequencies(self):
        tensors, config = foreign_model.random_llama(rope_scaling={"rope_type": "linear", "factor": 2.5})
        self.check_foreign(tensors, config, length=16)
        self.check_config_comes_back(config)

    def test_import_of_a_qwen2(self):
        tensors, config = foreign_model.random_llama(kind="qwen2", tied=True, use_sliding_window=False, sliding_window=4)
        self.check_foreign(tensors, config)
        self.check_config_comes_back(config)

    def test_import_of_a_qwen3(self):
        """Heads of 10 channels in a model whose width is 16."""
        tensors, config = foreign_model.random_llama(kind="qwen3", head=10, attention_bias=False)
        imported = self.check_foreign(tensors, config)
        self.check_config_comes_back(config, "head_dim")
        toml = harness.program_output("import", self.path("theirs"), self.path("again"))
        for line in ('style = "qwen3"', "head_size = 10", "width = 16"):
            self.assertIn(f"\n{line}\n", toml)
        self.assertIn("attention.query_norm.weight", str(json_of("inspect", imported)["tensors"]))

    def test_import_of_a_mistral(self):
        tensors, config = foreign_model.random_llama(kind="mistral", head=6)
        self.check_foreign(tensors, config)
        self.check_config_comes_back(config, "head_dim", "sliding_window")

    def test_import_of_a_mistral_with_a_window(self):
        """Of 5 tokens in sequences of 8, in a text that is made token by token, and back."""
        tensors, config = foreign_model.random_llama(kind="mistral", sliding_window=5)
        imported = self.check_foreign(tensors, config)
        self.check_config_comes_back(config, "sliding_window")
        self.assertIn(", a window of 5 tokens", harness.program_output("inspect", imported))
        whole = foreign_model.write_folder(self.path("whole"), tensors, config | {"sliding_window": None})
        harness.program_output("import", whole, self.path("plain"))
        shard = self.path("tokens.bin")
        self.assertGreater(abs(self.loss(self.path("plain"), shard, 8) - self.loss(imported, shard, 8)), 1e-4, "it is another model")

    def test_import_of_a_qwen2_with_a_window(self):
        tensors, config = foreign_model.random_llama(kind="qwen2", use_sliding_window=True, sliding_window=3, max_window_layers=0)
        self.check_foreign(tensors, config)
        self.check_config_comes_back(config, "sliding_window", "use_sliding_window", "max_window_layers")

    def test_windows_as_transformers_means_them(self):
        for name, kind, more, window in (
                ("missing", "mistral", {}, 4096), ("null", "mistral", {"sliding_window": None}, 0),
                ("typed", "mistral", {"sliding_window": 6, "layer_types": ["sliding_attention"] * 2}, 6),
                ("off", "qwen2", {"sliding_window": 6, "max_window_layers": 0}, 0),
                ("above", "qwen2", {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 2}, 0),
                ("usual", "qwen3", {"use_sliding_window": True}, 0),
                ("all", "qwen3", {"use_sliding_window": True, "sliding_window": 6, "layer_types": ["sliding_attention"] * 2}, 6)):
            with self.subTest(name=name):
                tensors, config = foreign_model.random_llama(kind=kind)
                config = {key: value for key, value in config.items() if key != "sliding_window"} | more
                folder = foreign_model.write_folder(self.path(name), tensors, config)
                self.assertIn(f"\nattention_window = {window}\n", harness.program_output("import", folder, self.path(f"of-{name}")))

    def test_windows_that_have_no_foreign_form(self):
        for name, more, says in (
                ("llama", [], 'the class of model.style = "llama" in transformers has no sliding window'),
                ("sinks", ["--model.style=mistral", "--model.attention_sinks=2"], "model.attention_sinks = 2: the classes of transformers")):
            with self.subTest(name=name):
                run = self.trained(f"window-{name}", [*LLAMA, "--model.attention_window=9", *more])
                done = harness.call_program("export", run.directory, self.path(name))
                self.assertEqual(done.returncode, 2, done.stdout)
                self.assertIn(says, done.stdout)
                self.assertFalse(self.path(name).exists())

    def test_null_key_heads_are_as_many_as_heads(self):
        """Where the member is missing, the classes of Qwen2 and Mistral mean 32 and 8."""
        for kind in ("qwen2", "mistral"):
            tensors, config = foreign_model.random_llama(kind=kind, kv_heads=4)
            folder = foreign_model.write_folder(self.path(f"of-{kind}"), tensors, config | {"num_key_value_heads": None})
            self.assertIn("\nkv_heads = 4\n", harness.program_output("import", folder, self.path(f"imported-{kind}")))

    def test_what_is_not_computed_is_refused(self):
        yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
        for kind, more, says in (
                ("llama", {"rope_scaling": yarn}, 'rope_scaling scales rotary frequencies by "yarn"; this runtime computes "llama3" and "linear"'),
                ("llama", {"rope_scaling": yarn | {"rope_type": "dynamic"}}, 'by "dynamic"'),
                ("qwen3", {"rope_parameters": yarn | {"rope_type": "longrope"}}, 'rope_parameters scales rotary frequencies by "longrope"'),
                ("llama", {"rope_scaling": {"rope_type": "linear"}}, "factor = null"),
                ("llama", {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "original_max_position_embeddings is missing"),
                ("llama", {"attention_bias": True}, "attention_bias = true"),
                ("llama", {"use_sliding_window": True}, "use_sliding_window = true"),
                ("qwen2", {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}, "max_window_layers = 1"),
                ("qwen3", {"layer_types": ["full_attention", "sliding_attention"]}, "layer_types = array"),
                ("mistral", {"sliding_window": 0}, "sliding_window = 0"),
                ("mistral", {"sliding_window": 8, "layer_types": ["full_attention"] * 2}, '"sliding_attention" in every layer'),
                ("gemma", {}, 'model_type is "gemma"; the models that can be imported are llama, gpt2, qwen2, qwen3, mistral')):
            with self.subTest(kind=kind, more=more):
                tensors, config = foreign_model.random_llama(kind=kind, **more)
                folder = foreign_model.write_folder(self.path(f"refused-{says}"), tensors, config)
                done = harness.call_program("import", folder, self.path("imported"))
                self.assertEqual(done.returncode, 4, done.stdout)
                self.assertIn(says, done.stdout)
                self.assertFalse(self.path("imported").exists())

    def test_import_of_types_and_names_as_the_hub_has_them(self):
        """GPT-2 without the first part of the names, with masks beside the weights; tensors of three types."""
        tensors, config = foreign_model.random_gpt2()
        stored, expected = {}, {}
        for i, (name, tensor) in enumerate(tensors.items()):
            kind = ("F32", "F16", "BF16")[i % 3]
            values = foreign_model.unpack(kind, foreign_model.pack(kind, tensor.values))
            stored[name.removeprefix("transformer.")] = foreign_model.Tensor(tensor.shape, values, kind)
            expected[name] = foreign_model.Tensor(tensor.shape, values)
        stored["h.0.attn.bias"] = foreign_model.Tensor([1, 1, 16, 16], [1] * 256, "U8")
        folder = foreign_model.write_folder(self.path("hub"), stored, config)
        harness.program_output("import", folder, self.path("imported"))
        harness.program_output("export", self.path("imported"), self.path("back"))
        for name, tensor in foreign_model.read_folder(self.path("back"))[0].items():
            self.assertEqual(tensor, expected[name], name)

    def test_config_of_transformers_5(self):
        tensors, config = foreign_model.random_llama()
        theta = config.pop("rope_theta")
        config["rope_parameters"] = {"rope_type": "default", "rope_theta": theta}
        folder = foreign_model.write_folder(self.path("five"), tensors, config)
        self.assertIn(f"rope_theta = {theta}", harness.program_output("import", folder, self.path("imported")))

    def test_a_refused_import_leaves_nothing(self):
        tensors, config = foreign_model.random_llama()
        del tensors["model.norm.weight"]
        folder = foreign_model.write_folder(self.path("torn"), tensors, config)
        done = harness.call_program("import", folder, self.path("imported"))
        self.assertEqual(done.returncode, 4, done.stdout)
        self.assertFalse(self.path("imported").exists())

    # adapters

    def adapted(self, name, overrides, *lora):
        base = self.trained(name, overrides)
        return base, self.trained(f"{name}-adapted", [*overrides, f"--run.initialize_from={base.directory}", "--optimizer.warmup_steps=0",
                                                      "--optimizer.learning_rate=0.01", *lora])

    def test_adapters_go_out_apart_and_merged_and_come_back(self):
        for name, overrides, alpha, modules in (
                ("llama-plain", [*LLAMA, *ONE_SLICE], "6", ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]),
                ("gpt2", GPT2, "3", ["attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"])):
            with self.subTest(name=name):
                base, run = self.adapted(name, overrides, "--lora.rank=3", f"--lora.alpha={alpha}")
                text = self.short_text()
                theirs, adapter, whole = (self.path(f"{name}-{part}") for part in ("model", "adapter", "merged"))
                harness.program_output("export", base.directory, theirs)
                self.assertIn("--merge", harness.program_output("export", run.directory, adapter))
                harness.program_output("export", run.directory, whole, "--merge")
                self.assertEqual(sorted(path.name for path in adapter.iterdir()), ["adapter_config.json", "adapter_model.safetensors"])
                config = json.loads((adapter / "adapter_config.json").read_text())
                self.assertEqual((config["peft_type"], config["r"], config["lora_alpha"]), ("LORA", 3, int(alpha)))
                self.assertEqual(config["target_modules"], modules)
                self.assertEqual(config["fan_in_fan_out"], name == "gpt2")
                low, _ = foreign_model.read_safetensors(adapter / "adapter_model.safetensors")
                model, _ = foreign_model.read_folder(theirs)
                merged, _ = foreign_model.read_folder(whole)
                self.assertEqual(set(merged), set(model))
                adapted = {key.removeprefix("base_model.model.").removesuffix(".lora_A.weight") + ".weight"
                           for key in low if key.endswith(".lora_A.weight")}
                self.assertEqual({key for key in model if merged[key] != model[key]}, adapted)
                for key in sorted(adapted):
                    self.expect_merged(low, key, model[key], merged[key], int(alpha) / 3, config["fan_in_fan_out"])
                back, of_whole = self.path(f"{name}-back"), self.path(f"{name}-whole")
                self.assertIn("[lora]\nrank = 3\n", harness.program_output("import", theirs, back, "--adapter", adapter))
                self.assertEqual(self.weight_line(back), self.weight_line(run.directory))
                harness.program_output("import", whole, of_whole)
                self.assertAlmostEqual(self.loss(of_whole, text), self.loss(run.directory, text), delta=2e-6)
                self.assertNotAlmostEqual(self.loss(base.directory, text), self.loss(run.directory, text), delta=1e-3)

    def expect_merged(self, low, key, before, after, scale, is_transposed):
        name = "base_model.model." + key.removesuffix(".weight")
        a, b = (low[f"{name}.lora_{part}.weight"].rows() for part in "AB")
        expected = [[scale * sum(row[i] * a[i][column] for i in range(3)) for column in range(len(a[0]))] for row in b]
        if is_transposed:
            expected = [list(column) for column in zip(*expected)]
        for row, more, now in zip(before.rows(), expected, after.rows()):
            for value, delta, found in zip(row, more, now):
                self.assertAlmostEqual(value + delta, found, delta=1e-6)

    def test_averages_of_adapters_go_out_apart_and_merged(self):
        base, run = self.adapted("llama-averaged", [*LLAMA, *ONE_SLICE], "--lora.rank=3", "--lora.alpha=6", "--optimizer.ema=0.9")
        theirs, adapter, averaged, whole = (self.path(part) for part in ("model", "adapter", "averaged", "merged"))
        harness.program_output("export", base.directory, theirs)
        harness.program_output("export", run.directory, adapter)
        harness.program_output("export", run.directory, averaged, "--ema")
        harness.program_output("export", run.directory, whole, "--ema", "--merge")
        now, low = (foreign_model.read_safetensors(path / "adapter_model.safetensors")[0] for path in (adapter, averaged))
        self.assertEqual(set(now), set(low))
        self.assertTrue(all(now[key] != low[key] for key in low))
        (model, _), (merged, _) = foreign_model.read_folder(theirs), foreign_model.read_folder(whole)
        key = "model.layers.0.self_attn.q_proj.weight"
        self.expect_merged(low, key, model[key], merged[key], 6 / 3, is_transposed=False)

    def test_adapters_of_another_model_are_refused(self):
        base, run = self.adapted("llama-plain", [*LLAMA, *ONE_SLICE], "--lora.rank=3", "--lora.alpha=6")
        other, adapter, theirs = self.trained("gpt2", GPT2), self.path("adapter"), self.path("model")
        harness.program_output("export", run.directory, adapter)
        harness.program_output("export", other.directory, theirs)
        done = harness.call_program("import", theirs, self.path("none"), "--adapter", adapter)
        self.assertEqual(done.returncode, 2, done.stdout)
        self.assertIn("holds the adapters of another model", done.stdout)
        self.assertFalse(self.path("none").exists())
        config = json.loads((adapter / "adapter_config.json").read_text())
        (adapter / "adapter_config.json").write_text(json.dumps({**config, "use_dora": True}))
        harness.program_output("export", base.directory, self.path("own"))
        done = harness.call_program("import", self.path("own"), self.path("none"), "--adapter", adapter)
        self.assertEqual(done.returncode, 2, done.stdout)
        self.assertIn("it has use_dora, and only plain LoRA is known here", done.stdout)
        (adapter / "adapter_config.json").write_text(json.dumps({**config, "r": 4}))
        done = harness.call_program("import", self.path("own"), self.path("none"), "--adapter", adapter)
        self.assertEqual(done.returncode, 2, done.stdout)
        self.assertRegex(done.stdout, r"another model: .* has shape \[3, 32\], but a model of this shape needs \[4, 32\]")
        again = self.scene.run("other-rank", [*run.overrides, f"--run.initialize_from={run.directory}", "--lora.rank=2"])
        start = again.start(1)
        start.expect_exit(2)
        self.assertIn("holds adapters of rank 3", start.output())
        done = harness.call_program("export", base.directory, self.path("nothing"), "--merge")
        self.assertEqual(done.returncode, 2, done.stdout)
        self.assertIn("--merge is for runs with adapters", done.stdout)

    # run.initialize_from

    def test_weights_for_any_number_of_tensor_lanes(self):
        """From 2 slices to 1, 2 and 4, on one rank and on two: the weights are the same."""
        source = self.trained("four-heads", [*LLAMA, "--model.kv_heads=4"])
        for lanes, ranks, more in ((1, 1, []), (2, 2, []), (4, 1, []), (4, 2, ["--parallel.tensor=2"]), (1, 2, [])):
            with self.subTest(lanes=lanes, ranks=ranks):
                run = self.scene.run(f"lanes-{lanes}-{ranks}", [
                    *source.overrides, *more, f"--parallel.tensor_lanes={lanes}", "--training.steps=1", "--optimizer.learning_rate=0",
                    "--optimizer.warmup_steps=0", f"--run.initialize_from={source.directory}"])
                run.start(ranks).expect_exit(0)
                found = [tensor for tensor in json_of("diff", source.directory, run.directory, code=1)["tensors"]
                         if tensor["kind"] == "weight"]
                self.assertGreater(len(found), 10)
                self.assertTrue(all(tensor["differing"] == 0 for tensor in found), found)

    def test_training_goes_on_from_an_imported_model(self):
        tensors, config = foreign_model.random_llama(vocabulary=256)
        imported = self.path("imported")
        printed = harness.program_output("import", foreign_model.write_folder(self.path("theirs"), tensors, config), imported)
        toml = self.path("tune.toml")
        toml.write_text(printed)
        done = harness.call_program("check", toml)
        self.assertEqual(done.returncode, 2, done.stdout)
        for key, example in (("run.directory", "[run] directory = "), ("data.sources", "[data] sources = "),
                             ("training.steps", "[training] steps = ")):
            self.assertRegex(done.stdout, rf"tune.toml  error  {key} is missing: .*; for example {re.escape(example)}")
        source = f'{{ path = "{self.scene.text}", format = "text" }}'
        for key, value in (("directory", '"tuned"'), ("sources", f"[{source}]"), ("steps", STEPS)):
            printed, count = re.subn(rf"^# {key} = .*$", f"{key} = {value}", printed, flags=re.MULTILINE)
            self.assertEqual(count, 1, key)
        toml.write_text(printed)
        run = self.scene.run("tuned", ["--threads=1", "--training.microbatch_size=2", "--parallel.lanes=4",
                                       "--optimizer.learning_rate=0.01"])
        run.start_command(run.train_arguments(config=toml)).expect_exit(0)
        losses = [event["loss"] for event in run.events("step")]
        self.assertEqual(len(losses), STEPS)
        self.assertLess(losses[-1], losses[0])


if __name__ == "__main__":
    harness.main(at_once=1)
