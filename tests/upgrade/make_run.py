#!/usr/bin/env python3
"""Makes NAME.tar.xz here with a small run that a program has saved half-way, and the digest of the same run at its end.

    tests/upgrade/make_run.py PROGRAM NAME              # of the format that the program writes

README.md says when. The products and sums are those of the reference kernels, so that the digest is the same on every processor.
"""
import argparse
import io
import lzma
import re
import shutil
import signal
import sys
import tarfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "system")]
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
CHECKPOINT = 'ram_every_steps = 0\ncompression = "always"\ndelta = true\n'


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
    options = parser.parse_args()
    harness.PROGRAM = options.program.resolve()
    with harness.Scene() as scene:
        maker = Maker(scene, CHECKPOINT)
        run = maker.run.directory
        maker.train_until(3, ["--optimizer.learning_rate=3e-4"])  # the second start begins a generation
        maker.train_until(STOPPED_AFTER)
        at_end, saved = maker.train_copy_to_the_end(), harness.program_output("digest", run)
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
