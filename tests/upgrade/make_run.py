#!/usr/bin/env python3
"""Makes NAME.tar.xz here with a small run that a program has saved half-way, and the digest of the same run at its end.

    tests/upgrade/make_run.py PROGRAM NAME              # of the format that the program writes
    tests/upgrade/make_run.py PROGRAM NAME --format-1   # converted to version 1, as a run directory was then

README.md says when. The products and sums are those of the reference kernels, so that the digest is the same on every processor.
"""
import argparse
import io
import json
import lzma
import re
import shutil
import signal
import struct
import sys
import tarfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "system"), str(HERE.parent.parent / "tools/bench_peers")]
import checkpoint  # noqa: E402
import harness  # noqa: E402

STEPS, STOPPED_AFTER = 12, 7
CONFIG = """\
[run]
directory = "run"
seed = 3
[model]
style = "llama"
layers = 1
heads = 2
width = 12
feed_forward = 24
[data]
sources = [{{ path = "train.txt", format = "text" }}]
[training]
steps = {steps}
sequence_length = 16
microbatch_size = 2
[parallel]
lanes = 2
tensor_lanes = 2
[checkpoint]
every_steps = 3
keep = 1
{checkpoint}[kernels]
isa = "portable"
{kernels}"""
# Half of the moments are zero, because no text has the upper half of all bytes: they go into planes, and from one checkpoint to
# the next into a base file.
CHECKPOINT_OF_2 = 'ram_every_steps = 0\ncompression = "always"\ndelta = true\n'
# What programs that wrote version 1 did not know.
KEYS_AFTER_1 = """checkpoint.compression checkpoint.delta checkpoint.every checkpoint.io checkpoint.keep_every_steps checkpoint.mtbf
    checkpoint.download_command checkpoint.download_timeout checkpoint.ram_every_steps checkpoint.replicas checkpoint.upload_command
    checkpoint.upload_shard_command checkpoint.upload_timeout elastic.grow elastic.grow_after
    elastic.memory_timeout elastic.recovery_timeout elastic.spares log.rotate_bytes optimizer.shard_gradients training.head_rows
    watchdog.ceiling watchdog.factor watchdog.floor watchdog.guard model.freeze""".split()
FILES_AFTER_1 = ["lineage.json", "run_id", "run_place", "history.json", "requests", "launch"]
EVENT_FIELDS_OF_1 = {
    "step": "event time_us step loss grad_norm learning_rate tokens step_duration_ms tokens_per_sec data_digest",
    "checkpoint": "event time_us step directory duration_ms",
    "start": "event time_us run parameters ranks steps flops_per_token resumed_from_step join_ms worker_ms state_ms gemm_peak_ms device "
             "exchange kernels"}


def without_keys(toml, keys):
    """The text of a config without some keys."""
    kept, section = [], ""
    for line in toml.splitlines(keepends=True):
        if match := re.fullmatch(r"\[(\w+)\]\n", line):
            section = match[1] + "."
        key = re.match(r"(\w+) = ", line)
        if not key or section + key[1] not in keys:
            kept.append(line)
    return re.sub(r"\[\w+\]\n\n(?=\[|$)", "", "".join(kept))


def padded(content, to):
    return content + bytes(-len(content) % to)


def shard_of_version_1(shard, manifest):
    """The same pieces as a file of version 1: (its bytes, its index's CRC32C)."""
    run = checkpoint.xxh3_128(manifest["run_id"].encode())
    header = struct.pack("<8sIIQQQII4044s", b"HFSHARD\0", 1, 4096, manifest["step"], *run, 1 << 20, 4096, b"")
    stored = header + struct.pack("<I", checkpoint.crc32c(header))
    index, types = b"", {name: number for number, (name, _) in checkpoint.TYPES.items()}
    for piece, content in shard.read():
        text = (piece["name"] + piece["kind"]).encode()
        checksums = [checkpoint.crc32c(content[at:at + (1 << 20)]) for at in range(0, len(content), 1 << 20)]
        index += struct.pack("<QQQQIIIIIHH", len(stored), len(content), piece["first"], piece["blocks"], types[piece["type"]],
                             len(piece["shape"]), len(piece["name"].encode()), len(piece["kind"].encode()), len(checksums), piece["slice"],
                             piece["slices"] - 1)
        index += struct.pack(f"<{len(piece['shape'])}Q", *piece["shape"]) + padded(text, 8)
        index += padded(struct.pack(f"<{len(checksums)}I", *checksums), 8)
        stored += padded(content, 4096)
    crc = checkpoint.crc32c(index)
    trailer = struct.pack("<QQQQII8sI", len(stored), len(index), len(stored) + len(index) + 56, manifest["step"], len(shard.pieces), crc,
                          b"HFSHEND\0", 1)
    return stored + index + trailer + struct.pack("<I", checkpoint.crc32c(trailer)), crc


def convert_checkpoint(directory):
    manifest = checkpoint.read_manifest(directory)
    found = {"holdfast_manifest": 1, **{key: manifest[key] for key in ("run_id", "generation", "step", "identity")},
             "config": without_keys(manifest["config"], KEYS_AFTER_1), "values": manifest["values"], "shards": []}
    files = {}
    for entry in manifest["shards"]:
        files[entry["name"]], crc = shard_of_version_1(checkpoint.Shard(directory, entry, manifest), manifest)
        found["shards"].append({"name": entry["name"], "bytes": len(files[entry["name"]]), "index_crc32c": crc,
                                "piece_count": entry["piece_count"]})
    for path in directory.iterdir():
        path.unlink()
    for name, content in files.items():
        (directory / name).write_bytes(content)
    body = json.dumps(found, indent=1).encode() + b"\n"
    (directory / "manifest.json").write_bytes(body + b"crc32c %08x\n" % checkpoint.crc32c(body))


def convert_run(run):
    """To what a run directory was in the time of version 1."""
    for path in run.glob("checkpoints/step-*"):
        convert_checkpoint(path)
    for name in FILES_AFTER_1:
        shutil.rmtree(run / name, ignore_errors=True) if (run / name).is_dir() else (run / name).unlink(missing_ok=True)
    (run / "config.toml").write_text(without_keys((run / "config.toml").read_text(), KEYS_AFTER_1))
    lines = []
    for event in map(json.loads, (run / "events.jsonl").read_text().splitlines()):
        fields = EVENT_FIELDS_OF_1.get(event["event"])
        if fields or event["event"] in ("evaluation", "finish"):
            lines.append(json.dumps({key: value for key, value in event.items() if not fields or key in fields.split()}, separators=(",", ":")))
    (run / "events.jsonl").write_text("\n".join(lines) + "\n")


def ranks_in(directory):
    """Pids of the ranks that were started there: their command lines have no path, so that the run directory has none."""
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return [pid for pid in pids if harness.executable_of(pid) == harness.PROGRAM.name and
            Path(f"/proc/{pid}/cwd").resolve() == directory.resolve()]


def add(archive, name, content):
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), 0o644
    archive.addfile(entry, io.BytesIO(content))


class Maker:
    """A scene in which the program is started as a user does, with paths that are the same everywhere."""

    def __init__(self, scene, checkpoint_keys):
        kernels = re.findall(r"\| `kernels\.(\w+)` \| text", (HERE.parent.parent / "docs/config.md").read_text())
        self.scene, self.run = scene, scene.run("run")
        (scene.directory / "train.txt").write_text(harness.text_of(6000, seed=1))
        scene.config.write_text(CONFIG.format(steps=STEPS, kernels="".join(f'{op} = "reference"\n' for op in kernels),
                                              checkpoint=checkpoint_keys))

    def start(self, directory, overrides=(), faults=""):
        words = [str(harness.PROGRAM), "train", "run.toml", f"--run.directory={directory}", "--checkpoint.ram_every_steps=0", *overrides]
        return self.run.start_command(harness.command("ft", 2) + words, faults, cwd=self.scene.directory)

    def train_until(self, step, overrides=()):
        """Stops the run soon after this step, as a batch system does."""
        start = self.start("run", overrides, harness.slow_steps(step - self.run.last_step(), 2, 1500))
        start.wait_for_step(step)
        for pid in ranks_in(self.scene.directory):
            harness.kill(pid, signal.SIGUSR2)
        start.expect_exit(75)

    def train_copy_to_the_end(self):
        """The digest of where the program that wrote the run comes to."""
        shutil.copytree(self.run.directory, self.scene.directory / "end")
        self.start("end").expect_exit(0)
        return harness.program_output("digest", self.scene.directory / "end")


def pack(name, content):
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for path, data in content.items():
            add(archive, f"{name}/{path}", data)
    target = HERE / f"{name}.tar.xz"
    target.write_bytes(lzma.compress(packed.getvalue(), preset=9 | lzma.PRESET_EXTREME))
    return target


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=Path)
    parser.add_argument("name")
    parser.add_argument("--format-1", action="store_true")
    options = parser.parse_args()
    harness.PROGRAM = options.program.resolve()
    with harness.Scene() as scene:
        maker = Maker(scene, "" if options.format_1 else CHECKPOINT_OF_2)
        run = maker.run.directory
        if not options.format_1:  # its second start begins a generation
            maker.train_until(3, ["--optimizer.learning_rate=3e-4"])
        maker.train_until(STOPPED_AFTER)
        at_end, saved = maker.train_copy_to_the_end(), harness.program_output("digest", run)
        if options.format_1:
            convert_run(run)
        for name in ("lock", "report.html", "gemm_peak"):
            (run / name).unlink(missing_ok=True)
        content = {"run.toml": scene.config.read_bytes(), "train.txt": (scene.directory / "train.txt").read_bytes(),
                   "at_end.txt": at_end.encode(), "saved.txt": saved.encode(),
                   "program.txt": harness.program_output("--version").splitlines()[0].encode() + b"\n"}
        content.update({str(path.relative_to(scene.directory)): path.read_bytes() for path in sorted(run.rglob("*")) if path.is_file()})
    target = pack(options.name, content)
    print(f"{target.name}: {target.stat().st_size} bytes; at its end\n{at_end}")


if __name__ == "__main__":
    main()
