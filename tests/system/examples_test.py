"""The examples of configs/examples, in a tiny form, with the commands of its README."""
import json
import os
import re
import shutil
import struct
import subprocess
import tempfile
import unittest
from pathlib import Path

import foreign_model
import harness
import object_store_test
import slurm

EXAMPLES = harness.ROOT / "configs/examples"
PATIENCE_S = 120
CHAT_PYTHON = harness.ROOT / ".deps/tokenizer/bin/python"
CHAT_TOOL = harness.ROOT / "tools/chat_to_tokens"
END = "<|endoftext|>"
FIRST_LOSS, LAST_LOSS, HELD_OUT_LOSS = 5.676, 3.354, 3.260  # of the tiny form of pretrain_124m.toml
CHATML = """{% for message in messages %}{{ bos_token }}{{ '<|im_start|>' + message['role'] + '\\n' }}
{%- generation %}{{ message['content'] + '<|im_end|>' }}{% endgeneration %}{{ '\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""


class Folder(unittest.TestCase):
    """A directory that looks like the root of the repository, where the commands of the README are run."""

    def setUp(self):
        self.folder = Path(tempfile.mkdtemp(prefix="holdfast-examples-"))
        self.addCleanup(shutil.rmtree, self.folder)
        (self.folder / "configs").symlink_to(harness.ROOT / "configs")
        (self.folder / "data").mkdir()

    def command(self, *words, code=0, **variables):
        done = subprocess.run([*map(str, words)], cwd=self.folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              errors="replace", timeout=PATIENCE_S, check=False, env=harness.environment(**variables))
        self.assertEqual(done.returncode, code, done.stdout)
        return done.stdout

    def holdfast(self, *words, code=0):
        return self.command(harness.PROGRAM, *words, code=code)

    def digest(self, run):
        return self.holdfast("digest", run)

    def losses(self, run, kind="step"):
        lines = (self.folder / run / "events.jsonl").read_text().splitlines()
        return [event["loss"] for event in map(json.loads, lines) if event["event"] == kind]


def why_no_chat():
    """Why tools/chat_to_tokens cannot be run; None when it can."""
    if CHAT_PYTHON.exists() and subprocess.run([CHAT_PYTHON, "-c", "import jinja2, tokenizers"], capture_output=True, check=False).returncode == 0:
        return None
    return f"{CHAT_PYTHON} has no tokenizers and jinja2; tools/bootstrap --tests installs them"


def bytes_of_tokens(tokenizer):
    """{id: its bytes} of a tokenizer.json with byte-level BPE."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    byte_of = {chr(byte): byte for byte in plain} | {chr(256 + i): byte for i, byte in enumerate(others)}
    found = {number: bytes(byte_of[letter] for letter in token) for token, number in tokenizer["model"]["vocab"].items()
             if all(letter in byte_of for letter in token)}
    return found | {token["id"]: token["content"].encode() for token in tokenizer["added_tokens"]}


def read_shard(path):
    """(ids, which of them count, vocabulary) of a shard of llmq."""
    content = path.read_bytes()
    assert content[:8] == b"BIN.TOK\n"
    version, width, count, vocabulary, has_mask = struct.unpack_from("<5i", content, 8)
    assert (version, width, has_mask, len(content)) == (2, 4, 1, 1024 + 4 * count + (count + 7) // 8)
    bits = content[1024 + 4 * count:]
    return struct.unpack_from(f"<{count}i", content, 1024), [bool(bits[i // 8] >> i % 8 & 1) for i in range(count)], vocabulary


def rendered(chat):
    return "".join(f"<|im_start|>{message['role']}\n{message['content']}<|im_end|>\n" for message in chat["messages"])


def chat_of(*messages, **more):
    return {"messages": [{"role": role, "content": content} for role, content in messages], **more}


class Chats(Folder):
    """A tiny model of Hugging Face's form with a tokenizer and a chat template, and chats."""

    def setUp(self):
        if reason := why_no_chat():
            self.skipTest(reason)
        super().setUp()
        (self.folder / "text.txt").write_text(harness.text_of(30000, 1))
        self.holdfast("tokenize", "train", "text.txt", "--vocabulary", 300, "--special", f"{END},<|im_start|>,<|im_end|>", "--out", "tokenizer.json")
        self.model = self.folder / "model"
        self.tensors, self.config = foreign_model.random_llama(vocabulary=320, width=32, feed_forward=48)
        foreign_model.write_folder(self.model, self.tensors, self.config)
        (self.folder / "tokenizer.json").rename(self.model / "tokenizer.json")
        (self.model / "tokenizer_config.json").write_text(json.dumps({"chat_template": CHATML, "eos_token": "<|im_end|>", "bos_token": None}))

    def write_chats(self, chats, name="chats.jsonl"):
        (self.folder / name).write_text("".join(json.dumps(chat) + "\n" for chat in chats))

    def convert(self, *words, code=0, out="chats.bin"):
        return self.command(CHAT_PYTHON, CHAT_TOOL, "--model", "model", "--out", out, *words, code=code)

    def refuse(self, sentence, *words, code=4):
        before = sorted(self.folder.iterdir())
        self.assertRegex(self.convert(*words, code=code), f"^chat_to_tokens: {sentence}\n$")
        self.assertEqual(sorted(self.folder.iterdir()), before, "something was left behind")


class ChatToTokensTest(Chats):
    def test_only_answers_count(self):
        self.expect_only_answers_count("chats.bin")

    def test_where_a_tokenizer_says_that_its_tokens_are(self):
        """Some leave the blank in front of a word out, as that of Llama 3: the same tokens count."""
        self.write_chats([chat_of(("user", "a"), ("assistant", "the run saves"), ("user", "b"), ("assistant", " all"))])
        (self.folder / "blank.jinja").write_text("{% for each in messages %}{{ each.role }}: {{ each.content + '<|im_end|>' }}{% endfor %}"
                                                 "{% if add_generation_prompt %}assistant: {% endif %}")
        definition, shards = json.loads((self.model / "tokenizer.json").read_text()), []
        for trims in (False, True):
            processor = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": trims, "use_regex": True}
            (self.model / "tokenizer.json").write_text(json.dumps(definition | {"post_processor": processor}))
            self.convert("--template", "blank.jinja", "chats.jsonl", out=f"trims-{trims}.bin")
            shards.append(read_shard(self.folder / f"trims-{trims}.bin"))
        self.assertEqual(*shards)

    def expect_only_answers_count(self, out):
        chats = [chat_of(("system", "Be whole."), ("user", "The rank?"), ("assistant", "A lane saves.")),
                 chat_of(("user", "One?\n"), ("assistant", "\nTwo \U0001f600 \u00e9."), ("user", "<b>&</b>"), ("assistant", "  all tokens \n")),
                 chat_of(("user", "Not"), ("assistant", "this"), ("user", "but"), ("assistant", "that"), mask=[False, False, False, True])]
        self.write_chats(chats)
        told = self.convert("--end", END, "chats.jsonl", out=out)
        ids, counts, vocabulary = read_shard(self.folder / out)
        tokenizer = json.loads((self.model / "tokenizer.json").read_text())
        end = next(token["id"] for token in tokenizer["added_tokens"] if token["content"] == END)
        self.assertEqual(told, f"{out}: 3 chats, {len(ids)} tokens, of which {sum(counts)} count; a vocabulary of 320; data.document_end = {end}\n")
        self.assertEqual(vocabulary, 320)
        known = bytes_of_tokens(tokenizer)
        self.assertEqual(b"".join(known[each] for each in ids).decode(), "".join(rendered(chat) + END for chat in chats))
        answers, last = [], False
        for each, is_target in zip(ids, counts):
            if is_target:
                answers[len(answers) - last:] = [(answers[-1] if last else b"") + known[each]]
            last = is_target
        self.assertEqual([answer.decode() for answer in answers],
                         ["A lane saves.<|im_end|>", "\nTwo \U0001f600 \u00e9.<|im_end|>", "  all tokens \n<|im_end|>", "that<|im_end|>"])

    def test_bad_input_is_a_sentence(self):
        good = chat_of(("user", "a"), ("assistant", "b"))
        for chat, sentence in (
                (chat_of(("User", "a"), ("assistant", "b")), 'message 0 has the role "User", expected one of system, user, assistant'),
                ({"messages": []}, "the chat is empty; leave the line out"),
                ({"text": "a"}, 'it has no list "messages"; expected .*'),
                (chat_of(("user", None)), 'the "content" of message 0 is no text'),
                (chat_of(("user", "a"), ("assistant", "")), "message 1 is an empty answer; write what the assistant says, or leave it out"),
                (chat_of(("user", "a")), "nothing in it counts: no assistant says anything, or the mask leaves it out"),
                (good | {"mask": [False, True, True]}, "its mask has 3 entries for 2 messages, expected one for each"),
                (good | {"mask": [1, 0]}, 'its "mask" is no list of true and false'),
                (good | {"mask": [True, True]}, "its mask counts message 0, which the user says; only what the assistant says can count")):
            with self.subTest(sentence):
                self.write_chats([good, chat])
                self.refuse(f"line 2 of chats.jsonl: {sentence}", "chats.jsonl")
        self.write_chats([chat_of(("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d"))])
        (self.folder / "last.jinja").write_text("{{ messages[-1]['content'] }}{% if add_generation_prompt %}>{% endif %}")
        self.refuse("line 1 of chats.jsonl: the chat template does not keep message 1 as it is .*; give each answer a line of its own, as the last message",
                    "--template", "last.jinja", "chats.jsonl")
        (self.folder / "strict.jinja").write_text("{{ raise_exception('no system here') }}")
        self.refuse("line 1 of chats.jsonl: the chat template refuses it: no system here", "--template", "strict.jinja", "chats.jsonl")
        self.refuse(f"--end <eos> is no token of the tokenizer; name one of its special tokens: {re.escape(END)}, .*", "--end", "<eos>", "chats.jsonl", code=2)
        (self.folder / "torn.jsonl").write_text('{"messages": [\n')
        self.refuse("line 1 of torn.jsonl is no JSON: .*; expected a chat on each line", "torn.jsonl")
        (self.folder / "none.jsonl").write_text("\n")
        self.refuse("there is no chat in any file; expected one on each line", "none.jsonl")
        (self.folder / "chats.bin").write_text("mine")
        self.refuse("chats.bin is there already, and no file is ever replaced; remove it, or name another one with --out", "chats.jsonl")
        (self.model / "tokenizer_config.json").unlink()
        self.refuse("model has no chat template of its own .*: name a file with --template", "chats.jsonl")


class LoraChatTest(Chats):
    def test_it_learns_the_answers_and_goes_out(self):
        os.mkdir(self.folder / "data/chat")
        chats = [chat_of(("user", f"Say {word}"), ("assistant", f"the {word} saves")) for word in ("run", "step", "lane", "rank") * 6]
        for name, part in (("train", chats), ("valid", chats[:6])):
            self.write_chats(part)
            told = self.convert("--end", END, "chats.jsonl", out=f"data/chat/{name}.bin")
        end = re.search(r"data.document_end = (\d+)", told)[1]
        printed = self.holdfast("import", "model", "runs/imported")
        model = re.search(r"\[model\]\n(.*?)\n\n", printed + "\n\n", re.DOTALL)[1]
        shape = [f"--model.{name}={value}" for name, value in re.findall(r'^(\w+) = "?([^"\n]+)"?$', model, re.MULTILINE)]
        tiny = ["configs/examples/lora_chat.toml", "--run.initialize_from=runs/imported", "--model.preset=", *shape, f"--data.document_end={end}",
                "--training.steps=40", "--training.sequence_length=32", "--training.precision=fp32", "--training.microbatch_size=2", "--parallel.lanes=2",
                "--optimizer.learning_rate=0.02", "--optimizer.warmup_steps=0", "--evaluation.every_steps=20", "--evaluation.batches=4", "--threads=1"]
        plain = float(self.holdfast("evaluate", "runs/imported", "--data", "data/chat/train.bin", "--sequence-length=16").split()[1])
        ids, counts, _ = read_shard(self.folder / "data/chat/train.bin")
        self.assertAlmostEqual(plain, foreign_model.mean_loss(self.tensors, self.config, ids, 16, counts), delta=2e-5)
        self.holdfast("train", *tiny)
        losses = self.losses("runs/lora-chat")
        self.assertEqual(len(losses), 40)
        self.assertLess(sum(losses[-5:]) / 5, sum(losses[:5]) / 5 - 0.3, losses)
        self.command(harness.ROOT / "tools/mpirun", "-np", 2, harness.PROGRAM, "train", *tiny, "--run.directory=runs/two")
        self.assertEqual(self.digest("runs/two"), self.digest("runs/lora-chat"))

        prompt = "<|im_start|>user\nSay run<|im_end|>\n<|im_start|>assistant\n"
        words = ["--tokenizer", "model/tokenizer.json", "--prompt", prompt, "--tokens", 8, "--temperature", 0, "--stop", "<|im_end|>"]
        answer = harness.without_rate(self.holdfast("sample", "runs/lora-chat", *words))
        self.holdfast("export", "runs/lora-chat", "adapter")
        self.holdfast("export", "runs/lora-chat", "merged", "--merge", "--tokenizer", "model/tokenizer.json")
        self.holdfast("import", "merged", "runs/merged")
        self.assertEqual(harness.without_rate(self.holdfast("sample", "runs/merged", *words)), answer)
        adapter = json.loads((self.folder / "adapter/adapter_config.json").read_text())
        self.assertEqual((adapter["peft_type"], adapter["r"], adapter["lora_alpha"]), ("LORA", 16, 32))
        self.assertTrue((self.folder / "merged/tokenizer.json").exists())
        merged, _ = foreign_model.read_folder(self.folder / "merged")
        changed = {name for name in merged if merged[name] != self.tensors[name]}
        self.assertEqual(changed, {name for name in merged if "_proj" in name})


class PretrainTest(Folder):
    """The commands of the page, with a text of 200 KB, 300 tokens, and a GPT-2 of 2 layers."""

    TINY = ["configs/examples/pretrain_124m.toml", "--model.preset=", "--model.style=gpt2", "--model.layers=2", "--model.heads=2", "--model.width=32",
            "--training.steps=40", "--training.sequence_length=32", "--training.precision=fp32", "--training.microbatch_size=2", "--parallel.lanes=2",
            "--training.microbatches_per_lane=1", "--optimizer.learning_rate=0.005", "--optimizer.warmup_steps=5", "--evaluation.every_steps=20",
            "--evaluation.batches=4", "--threads=1"]

    def setUp(self):
        super().setUp()
        (self.folder / "data/own").mkdir()
        (self.folder / "data/own/train.txt").write_text(harness.text_of(200000, 1))
        (self.folder / "data/own/valid.txt").write_text(harness.text_of(20000, 2))
        self.holdfast("tokenize", "train", "data/own/train.txt", "--vocabulary", 300, "--out", "data/own/tokenizer.json")

    def test_its_curve(self):
        """Is that of this text and seed, to what processors compute differently, and has the same bits on two ranks."""
        self.assertIn("tokenizer.json", self.holdfast("check", *self.TINY))
        self.holdfast("train", *self.TINY)
        losses, held_out = self.losses("runs/pretrain-124m"), self.losses("runs/pretrain-124m", "evaluation")
        self.assertEqual(len(losses), 40)
        for loss, expected in ((losses[0], FIRST_LOSS), (losses[-1], LAST_LOSS), (held_out[-1], HELD_OUT_LOSS)):
            self.assertAlmostEqual(loss, expected, delta=0.02)
        self.command(harness.ROOT / "tools/mpirun", "-np", 2, harness.PROGRAM, "train", *self.TINY, "--run.directory=runs/two")
        self.assertEqual(self.digest("runs/two"), self.digest("runs/pretrain-124m"))
        self.assertIn("The run", self.holdfast("sample", "runs/pretrain-124m", "--prompt", "The run", "--tokens", 8))
        self.holdfast("export", "runs/pretrain-124m", "exported")
        self.assertTrue((self.folder / "exported/tokenizer.json").exists())


class SlurmObjectStoreTest(Folder):
    """The script in a Slurm cluster of three hosts of this machine, with an S3 server on a fourth."""

    SETTLE_S = 120
    SHAPE = ["--model.preset=", "--model.style=llama", "--model.layers=2", "--model.heads=2", "--model.width=32", "--model.vocabulary=256",
             '--data.sources=[{ path = "train.txt", format = "text" }]', "--data.document_mask=false", "--data.validation_fraction=0",
             "--evaluation.every_steps=0", "--training.steps=30", "--training.sequence_length=32", "--training.precision=fp32",
             "--training.recompute=none", "--training.microbatches_per_lane=1", "--parallel.lanes=6", "--optimizer.warmup_steps=2",
             "--optimizer.schedule=constant", "--checkpoint.every_steps=12", "--threads=1"]
    WITHOUT_STORE = ["--checkpoint.upload_shard_command=", "--checkpoint.download_command="]

    def test_bad_input_is_a_sentence(self):
        script = "configs/examples/slurm_object_store.sh"
        self.assertEqual(self.command(script, code=2, BUCKET=""), "slurm_object_store.sh: BUCKET is not set; give the bucket and a prefix of this run's "
                                                                  "own, as BUCKET=NAME/PREFIX\n")
        (self.folder / "train.txt").write_text(harness.text_of(60000, 1))
        variables = {"HOLDFAST": str(harness.PROGRAM), "PYTHON": "false"}
        told = self.command(script, "--", *self.SHAPE, code=2, BUCKET="absent/run", **variables)
        self.assertRegex(told, "slurm_object_store.sh: nothing is queued, as s3://absent/run cannot be listed from here; .*\n$")
        told = self.command(script, "--", *self.SHAPE, "--training.steps=0", code=2, BUCKET="absent/run", **variables)
        self.assertIn("training.steps", told)
        self.assertNotIn("queued", told)

    def test_a_run_loses_all_and_comes_back_from_the_store(self):
        if reason := slurm.why_not() or object_store_test.why_not():
            self.skipTest(reason)
        (self.folder / "train.txt").write_text(harness.text_of(60000, 1))
        self.holdfast("train", "configs/examples/slurm_object_store.toml", *self.SHAPE, *self.WITHOUT_STORE, "--run.directory=runs/undisturbed")
        scene = harness.Scene()
        self.addCleanup(scene.close)
        del scene.environment["OMPI_MCA_btl_sm_backing_directory"]  # of each host in its own shared memory
        cluster = slurm.Slurm(3)
        self.addCleanup(cluster.close)
        controller = cluster.hosts[cluster.controller]
        server = object_store_test.Server(scene.directory / "server", controller.enter(), controller.address)
        self.addCleanup(server.close)
        run = scene.run("job", [])
        variables = {**server.variables(), "BUCKET": f"{object_store_test.BUCKET}/job", "PYTHON": str(object_store_test.PYTHON)}

        def submit(steps, **more):
            log = scene.directory / f"job.{run.starts + 1}.log"
            start = cluster.submit(run, ["env", f"--chdir={self.folder}", "configs/examples/slurm_object_store.sh", "--open-mode=append", f"--output={log}",
                                         "--nodes=3", "--ntasks-per-node=1", "--", *self.SHAPE, f"--training.steps={steps}",
                                         f"--run.directory={run.directory}"], **variables, **more)
            start.expect_exit(0, self.SETTLE_S)  # of sbatch, which does not wait for the job
            harness.wait_until(lambda: not cluster.job(), self.SETTLE_S, lambda: False, "the job does not end", start.tail)
            return start.output()

        submit(12)
        self.assertIn("-step-00000012-", server.whole("job")[-1])
        for node in cluster.nodes:  # all that the machines have in memory, and their disk
            cluster.lose(node)
            cluster.restore(node)
        cluster.wait_for(lambda: cluster.ask("sinfo", "-h", "-N", "-o", "%T").split() == ["idle"] * len(cluster.nodes))
        shutil.rmtree(run.directory)

        output = submit(30, RANKS="2")
        begun = run.events("start")[0]
        self.assertEqual((begun["ranks"], begun["resumed_from_step"]), (2, 12), output)
        self.assertIn("downloaded the checkpoint of step 12: ", output)
        self.assertEqual(run.digest(), self.digest("runs/undisturbed"))
        self.assertIn("-step-00000030-", server.whole("job")[-1])
        self.assertLessEqual(len(server.whole("job")), 3)
        harness.expect_no_processes(run)


if __name__ == "__main__":
    harness.main()
