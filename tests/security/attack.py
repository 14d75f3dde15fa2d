"""What the attacks of this folder share. Each is a program of its own:

    tests/security/s3_run_id.py --holdfast build/release/bin/holdfast

It makes what an attacker would make, runs the program as its victim, prints what came of it, and "the attack succeeds" (exit code 1)
or "the attack fails" (0); 77 where this machine cannot run it. tests/system/security_test.py runs them all. They also run against
programs of before; which of them commit 668cf33 gives in to is in docs/measurements_archive.md. docs/security.md tells of each.
"""
import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
PATIENCE_S = 60
CANNOT = 77
CONFIG = """\
[run]
directory = "run"
[model]
layers = 1
heads = 2
width = 16
[data]
sources = [{ path = "text.txt" }]
[training]
steps = 4
sequence_length = 16
microbatch_size = 2
[parallel]
lanes = 2
[checkpoint]
every_steps = 2
ram_every_steps = 0
"""


class Cannot(Exception):
    """This machine cannot run the attack."""


class Scene:
    """A folder with a config and a text, and the program of the victim."""

    def __init__(self, program, folder):
        self.program, self.folder = Path(program).resolve(), Path(folder)
        self.run = self.folder / "run"
        (self.folder / "run.toml").write_text(CONFIG)
        (self.folder / "text.txt").write_text("it trains, one step after the other.\n" * 200)
        self.found = []

    def environment(self, **more):
        values = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", **more}
        prefix = ROOT / ".deps/mpi"
        if prefix.is_symlink() and not os.path.isabs(os.readlink(prefix)):
            values.setdefault("OPAL_PREFIX", str(prefix.parent / os.readlink(prefix)))
        return {name: value for name, value in values.items() if value is not None}

    def holdfast(self, *words, **more):
        return self.call([self.program, *words], **more)

    def call(self, words, limit_bytes=None, patience_s=PATIENCE_S, **variables):
        """The end of a command, whose whole process group is over when this returns; code None: it did not end in time. With
        limit_bytes it gets no more memory than that."""
        def limit():
            if limit_bytes:
                import resource
                resource.setrlimit(resource.RLIMIT_AS, (limit_bytes, limit_bytes))
        process = subprocess.Popen([str(word) for word in words], cwd=self.folder, env=self.environment(**variables), text=True,
                                   errors="surrogateescape", stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, start_new_session=True, preexec_fn=limit)
        try:
            out, error = process.communicate(timeout=patience_s)
            return subprocess.CompletedProcess(words, process.returncode, out, error)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            out, error = process.communicate()
            return subprocess.CompletedProcess(words, None, out, error)

    def train(self, *words, **more):
        """A run of one rank that ends well, for what comes then."""
        done = self.holdfast("train", "run.toml", *words, **more)
        if done.returncode != 0:
            raise AssertionError(f"the run to attack does not even train: {done.returncode}: {done.stderr[-2000:]}")
        return done

    def succeeds(self, what):
        """The attacker has got what he wanted."""
        self.found.append(what)
        print("succeeds: " + readable(what))

    def fails(self, what):
        print("fails: " + readable(what))

    def expect(self, succeeded, what, otherwise):
        (self.succeeds if succeeded else self.fails)(what if succeeded else otherwise)


def readable(text):
    return text.encode(errors="surrogateescape").decode(errors="replace").encode("unicode_escape").decode()


def last_line(done):
    lines = (done.stderr + done.stdout).strip().splitlines()
    return f"exit code {done.returncode}, it says: {lines[-1][:300] if lines else 'nothing'}"


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def main(attack, description):
    """Runs attack(scene) in a folder of its own that goes then."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--holdfast", default=ROOT / "build/release/bin/holdfast", metavar="PATH", help="the program of the victim")
    arguments = parser.parse_args()
    folder = tempfile.mkdtemp(prefix="holdfast-attack-")
    os.chmod(folder, 0o755)
    try:
        scene = Scene(arguments.holdfast, folder)
        attack(scene)
    except Cannot as reason:
        print(f"this machine cannot run the attack: {reason}")
        sys.exit(CANNOT)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print("the attack succeeds" if scene.found else "the attack fails")
    sys.exit(1 if scene.found else 0)
