"""What the attacks by another user of the same host share (s1_*.py); the others have attack.py.

Each is one attack on `--holdfast PROGRAM`. It runs as root, so that it can be two other
users, one who trains and one who attacks, in a mount namespace with a /dev/shm of its own. It ends with 1 where the attack succeeds, with 0
where it fails, and with 77 where it cannot be tried here.
"""
import argparse
import ctypes
import functools
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

VICTIM, OTHER = 64000, 65534  # the users who train and who attack
INSIDE = "HOLDFAST_TEST_ATTACK_INSIDE"

CONFIG = """[run]
directory = "run"
[model]
layers = 1
heads = 2
width = 16
[data]
sources = [{ path = "text.txt" }]
[training]
steps = 8
sequence_length = 16
microbatch_size = 2
[checkpoint]
every_steps = 0
ram_every_steps = 1
"""


def begin(about):
    """Returns the program to attack; from here on the process is in a mount namespace of its own."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--holdfast", required=True, help="the program to attack")
    program = Path(parser.parse_args().holdfast).resolve()
    if os.geteuid() != 0:
        cannot("it takes root to be two users")
    if INSIDE not in os.environ:
        os.environ[INSIDE] = "1"
        os.execvp("unshare", ["unshare", "--mount", "--propagation", "private", sys.executable, *sys.argv])
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=1777", "tmpfs", "/dev/shm"], check=False).returncode != 0:
        cannot("nothing can be mounted here")
    os.umask(0o022)
    return program


def cannot(why):
    print(f"the attack cannot be tried: {why}")
    sys.exit(77)


def end(evidence):
    """`evidence`: what the attack has achieved; empty: nothing."""
    for line in evidence:
        print(line)
    print("the attack succeeds" if evidence else "the attack fails")
    sys.exit(1 if evidence else 0)


class Victim:
    """A user who trains, in a directory that others may enter."""

    def __init__(self, program):
        self.program = program
        self.scratch = tempfile.TemporaryDirectory(prefix="holdfast-attack-")
        self.folder = Path(self.scratch.name)
        self.folder.chmod(0o755)
        (self.folder / "run.toml").write_text(CONFIG)
        (self.folder / "text.txt").write_text("What is another user's is none of yours. " * 400)
        os.chown(self.folder, VICTIM, VICTIM)
        try:
            self.holdfast("--version")
        except OSError as error:
            cannot(f"user {VICTIM} cannot run the program where it lies: {error}")

    def holdfast(self, *words, faults=""):
        environment = {**os.environ, "HOLDFAST_FAULTS": faults} if faults else dict(os.environ)
        done = subprocess.run([str(self.program), *words], cwd=self.folder, env=environment, text=True, check=False, timeout=120,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, preexec_fn=lambda: become(VICTIM))
        print(f"$ holdfast {' '.join(words)}: exit code {done.returncode}")
        return done

    def train(self, *words, faults=""):
        return self.holdfast("train", "run.toml", *words, faults=faults)

    def train_until_killed(self):
        """Leaves RAM snapshots of three steps at most."""
        killed = self.train(faults="step.begin@5=kill")
        assert killed.returncode == -signal.SIGKILL, killed.stdout

    def digest(self, run="run"):
        return self.holdfast("digest", run).stdout


def become(user):
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)


class Other:
    """A process of the other user: calls `act`, whose result is in `result`, and lives until the object's end()."""

    def __init__(self, act):
        reader, writer = os.pipe()
        hold_reader, self.hold = os.pipe()
        sys.stdout.flush()
        self.process = os.fork()
        if self.process == 0:
            os.close(self.hold)
            os.close(reader)
            try:
                become(OTHER)
                os.write(writer, json.dumps(act()).encode())
                os.close(writer)
                os.read(hold_reader, 1)
            finally:
                os._exit(0)
        os.close(writer)
        os.close(hold_reader)
        with os.fdopen(reader, "rb") as told:
            self.result = json.loads(told.read() or b"null")

    def end(self):
        os.close(self.hold)
        os.waitpid(self.process, 0)
        return self.result


def as_other(act):
    return Other(act).end()


def files_below(folder):
    """Those that this process sees."""
    return sorted(Path(parent, name) for parent, _, names in os.walk(folder) for name in names)


@functools.cache
def crc32c_table():
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return table


def crc32c(data):
    table, crc = crc32c_table(), 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ table[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def digest_of(text):
    """As in names of shared memory; none where there is no library for it."""
    class Hash(ctypes.Structure):
        _fields_ = [("low", ctypes.c_uint64), ("high", ctypes.c_uint64)]

    try:
        library = ctypes.CDLL("libxxhash.so.0")
    except OSError:
        return None
    library.XXH3_128bits.restype = Hash
    library.XXH3_128bits.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    found = library.XXH3_128bits(text.encode(), len(text.encode()))
    return f"{found.high:016x}{found.low:016x}"
