#!/usr/bin/env python3
"""S6: files of a checkpoint or a run directory that somebody else made stop a reader, take its memory, or speak to its terminal.

A pipe in the place of a file, a manifest of 3 GiB without content, one whose few lines say that a tensor has 65,536 slices, texts
that a terminal would obey, and a link in the place of the log.
"""
import json
import os
import shutil

import attack

MEMORY_BYTES = 3 << 30
ESCAPE = "\x1b]0;this is another terminal now\x07"


def change_manifest(path, change):
    """As another program could have written it: the checksum fits."""
    body = json.loads(path.read_text().rsplit("crc32c ", 1)[0])
    change(body)
    text = json.dumps(body, indent=1, ensure_ascii=False) + "\n"
    path.write_text(text + f"crc32c {attack.crc32c(text.encode()):08x}\n")


def many_slices(body):
    body["tensors"] = [{"tensor": f"tensor-{i}-" + "x" * 1000, "kind": "weight", "type": "fp32", "shape": [65536], "slices": 65536}
                       for i in range(60)]


def say_something_to_terminals(body):
    body["values"].update({"note" + ESCAPE: ESCAPE})
    body["config"] = body["config"].replace('"text.txt"', json.dumps("text.txt" + ESCAPE))


def pipe_instead_of(path):
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def run_attack(scene):
    scene.train()
    checkpoint = sorted((scene.run / "checkpoints").iterdir())[-1]
    good = scene.folder / "good"
    shutil.copytree(scene.run, good)

    def fresh():
        shutil.rmtree(scene.run)
        shutil.copytree(good, scene.run)

    for path, words in ((checkpoint / "manifest.json", ["inspect", checkpoint]), (scene.run / "status.json", ["status", "run"]),
                        (scene.run / "events.jsonl", ["report", "run"]), (scene.run / "events.jsonl", ["status", "run"]),
                        (next(checkpoint.glob("shard-*")), ["verify", checkpoint]), (scene.run / "run_id", ["train", "run.toml"])):
        fresh()
        pipe_instead_of(path)
        done = scene.holdfast(*words, patience_s=20)
        scene.expect(done.returncode is None, f"{words[0]} waits for ever for a pipe at {path.name}",
                     f"a pipe at {path.name}, {words[0]}: {attack.last_line(done)}")
    fresh()
    os.truncate(checkpoint / "manifest.json", 2 * MEMORY_BYTES)
    done = scene.holdfast("inspect", checkpoint, limit_bytes=MEMORY_BYTES)
    scene.expect(done.returncode != 5, f"inspect reads 6 GiB of nothing: {attack.last_line(done)}",
                 f"a manifest of 6 GiB: {attack.last_line(done)}")
    fresh()
    change_manifest(checkpoint / "manifest.json", many_slices)
    done = scene.holdfast("inspect", checkpoint, limit_bytes=MEMORY_BYTES)
    scene.expect(done.returncode != 5, f"a manifest of 70 KB takes 3 GiB of memory: {attack.last_line(done)}",
                 f"a manifest that counts 4 million slices: {attack.last_line(done)}")
    fresh()
    change_manifest(checkpoint / "manifest.json", say_something_to_terminals)
    status = json.loads((scene.run / "status.json").read_text())
    (scene.run / "status.json").write_text(json.dumps({**status, "state": "failed", "reason": ESCAPE}))
    for words in (["inspect", checkpoint], ["status", "run"], ["check", "run.toml"], ["diff", checkpoint, scene.folder / "good"]):
        done = scene.holdfast(*words)
        scene.expect("\x1b" in done.stdout + done.stderr, f"{words[0]} sends the terminal what a file says",
                     f"{words[0]} shows what a terminal would obey as text")
    fresh()
    private = scene.folder / "private"
    private.write_text("")
    (scene.run / "events.jsonl").unlink()
    (scene.run / "events.jsonl").symlink_to(private)
    done = scene.holdfast("train", "run.toml", "--training.steps=6")
    scene.expect(private.read_text() != "", "train adds lines to a file outside that a link in the place of the log names",
                 f"a link in the place of the log: {attack.last_line(done)}")


if __name__ == "__main__":
    attack.main(run_attack, __doc__)
