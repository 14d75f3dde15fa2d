"""Runs holdfast as a user does: a scene of its own with text and configs, runs under mpirun or alone, and what they
leave behind. Shared by the tests of this folder and tools/crashtest. Python's standard library only.

    with Scene() as scene:
        run = scene.run("straight")
        run.start(ranks=4).expect_exit(0)
        print(run.digest())

The program is $HOLDFAST, else build/release/bin/holdfast. Every process of a run has the run directory in its command
line, which is how the processes of a run are found and how leftovers are noticed; the guards of its watchdog have it in
their environment (RUN_MARK).
"""
import concurrent.futures
import contextlib
import functools
import json
import os
import pwd
import random
import re
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
PROGRAM = Path(os.environ.get("HOLDFAST") or ROOT / "build/release/bin/holdfast").resolve()
MPI = ROOT / ".deps/mpi"
MPIRUN = ("mpirun", "prterun")  # what its process is called
RUN_MARK = "HOLDFAST_TEST_RUN"  # names the run directory to all processes that a start brings about
STAYED_BEHIND = "mpirun stayed behind its ranks"  # what Start.wait() returns then; it is no exit code
BEHIND_MOST = 2  # times in one test program: now and then it is Open MPI's doing, more often that of a rank
_behind = []     # one sentence for each time

SANITIZED = bool(os.environ.get("HOLDFAST_TEST_SANITIZED"))  # the program computes slowly, so steps are given less to compute
# Before Linux 6.15 how a rank died is only known where its guard looks before its parent has reaped it.
TELLS_CAUSES = tuple(int(number) for number in re.match(r"(\d+)\.(\d+)", os.uname().release).groups()) >= (6, 15)

STEPS = 50
LANES = 4
WIDTH = 64
SEQUENCE_LENGTH = 16 if SANITIZED else 32
MICROBATCH_SIZE = 1 if SANITIZED else 2
HANG_S = 240 if SANITIZED else 60  # no start of such a run takes this long
# About 130,000 parameters: small enough for hundreds of runs, large enough for several blocks in every tensor kind.
CONFIG = """\
[run]
directory = "unset"
seed = 1
[model]
style = "llama"
layers = 2
heads = 4
kv_heads = 2
width = {width}
[data]
sources = [{{ path = "{text}", format = "text" }}]
[training]
steps = {steps}
sequence_length = {sequence_length}
microbatch_size = {microbatch_size}
microbatches_per_lane = 2
precision = "fp32"
[parallel]
lanes = {lanes}
timeout = "60s"
[optimizer]
learning_rate = 2e-3
schedule = "cosine"
warmup_steps = 5
[checkpoint]
every_steps = 5
ram_every_steps = 0
[evaluation]
every_steps = 20
sources = [{{ path = "{text}", format = "text" }}]
batches = 2
"""


@functools.cache
def home_of_user():
    """Where nobody else may put settings of Open MPI; for a user without such a home a directory that is empty."""
    with contextlib.suppress(KeyError, OSError):
        home = pwd.getpwuid(os.geteuid()).pw_dir
        if os.stat(home).st_uid == os.geteuid():
            return home
    return tempfile.mkdtemp(prefix="holdfast-home-")


def environment(**more):
    """For the plain mpirun, what tools/mpirun does by itself: root, a home directory, and where a wheel lives."""
    values = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    if not values.get("HOME"):
        values["HOME"] = home_of_user()
    if MPI.is_symlink() and not os.path.isabs(os.readlink(MPI)):
        values["OPAL_PREFIX"] = str(MPI.parent / os.readlink(MPI))
    return {**values, **more}


def text_of(size, seed):
    """Text that can be learnt: sentences of few words, another text for another seed."""
    words = "the a run step lane rank saves loads adds sums bytes tokens all each every one whole".split()
    generator = random.Random(seed)
    parts, length = [], 0
    while length < size:
        sentence = " ".join(generator.choices(words, k=generator.randint(3, 9))).capitalize() + ".\n"
        parts.append(sentence)
        length += len(sentence)
    return "".join(parts)[:size]


@functools.cache
def documented_events():
    """By kind of event: the fields that each has, and all that one may have (docs/events.md)."""
    kinds = {}
    for section in (ROOT / "docs/events.md").read_text().split("\n## `")[1:]:
        kind, _, table = section.partition("`")
        rows = re.findall(r"^\| `(\w+)`( \(not always\))? \|", table, re.MULTILINE)
        kinds[kind] = ({name for name, sometimes in rows if not sometimes}, {name for name, _ in rows})
    return kinds


def undocumented_events(directory):
    """What the logs below it have and docs/events.md has not."""
    found = set()
    for line in "".join(path.read_text(errors="replace") for path in directory.rglob("events*.jsonl") if path.is_file()).splitlines():
        with contextlib.suppress(ValueError):
            event = json.loads(line)
            _, known = documented_events().get(event["event"], (set(), set()))
            found |= {f"{event['event']}.{field}" for field in set(event) - known - {"event", "time_us"}}
    return sorted(found)


def shared_memory(root="/"):
    """Where Holdfast has this user's shared memory, or would have it; `root`: of another mount namespace."""
    names = [f"holdfast-{os.geteuid()}", *(f"holdfast-{os.geteuid()}-{number}" for number in range(1, 8))]
    for path in (Path(root, "dev/shm", name) for name in names):
        try:
            info = os.lstat(path)
        except OSError:
            continue
        if stat.S_ISDIR(info.st_mode) and info.st_uid == os.geteuid() and not info.st_mode & 0o077:
            return path
    return Path(root, "dev/shm", names[0])


def command(launcher, ranks):
    """launcher: "alone" = no mpirun (one rank), "plain" = mpirun without fault tolerance, "ft" = tools/mpirun."""
    if launcher == "alone":
        return []
    if launcher == "plain":
        return [str(MPI / "bin/mpirun"), "--map-by", "slot:OVERSUBSCRIBE", "--bind-to", "none", "-np", str(ranks)]
    return [str(ROOT / "tools/mpirun"), "-np", str(ranks)]


class Scene:
    """A directory for texts, configs and runs that goes when the scene ends, with every process in it. What killed
    processes of MPI leave behind (files of theirs in the temporary directory and in /dev/shm) goes too.

    What steps compute is much of what these tests cost, so steps are longer only where a test needs the time."""

    def __init__(self, steps=STEPS, lanes=LANES, microbatch_size=MICROBATCH_SIZE):
        self.directory = Path(tempfile.mkdtemp(prefix="holdfast-system-"))
        self.shared_memory = Path(tempfile.mkdtemp(prefix="holdfast-system-", dir="/dev/shm"))
        self.environment = environment(TMPDIR=str(self.directory), OMPI_MCA_btl_sm_backing_directory=str(self.shared_memory))
        self.keep = False
        self.text = self.directory / "train.txt"
        self.text.write_text(text_of(400_000, seed=1))
        self.config = self.directory / "run.toml"
        self.config.write_text(CONFIG.format(text=self.text, steps=steps, lanes=lanes, width=WIDTH, sequence_length=SEQUENCE_LENGTH,
                                             microbatch_size=MICROBATCH_SIZE if SANITIZED else microbatch_size))

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.close()

    def close(self):
        for pid in [*processes_of(self.directory), *guards_of(self.directory)]:
            kill(pid, signal.SIGKILL)
        strange = undocumented_events(self.directory)
        shutil.rmtree(self.shared_memory, ignore_errors=True)
        if not self.keep:
            shutil.rmtree(self.directory, ignore_errors=True)
        if strange:
            raise AssertionError(f"events that runtime/run/event.h does not know: {', '.join(strange)}")

    def run(self, name, overrides=()):
        return Run(self, name, list(overrides))


class Run:
    """One run directory and the starts that were made on it."""

    def __init__(self, scene, name, overrides):
        self.scene = scene
        self.directory = scene.directory / name
        self.overrides = overrides
        self.starts = 0

    def train_arguments(self, *overrides, config=None):
        """What stands behind mpirun: the program and its arguments."""
        return [str(PROGRAM), "train", str(config or self.scene.config), f"--run.directory={self.directory}",
                *self.overrides, *overrides]

    def start(self, ranks=1, launcher=None, overrides=(), faults=""):
        launcher = launcher or ("alone" if ranks == 1 else "ft")
        return self.start_command(command(launcher, ranks) + self.train_arguments(*overrides), faults)

    def start_command(self, arguments, faults="", cwd=None, environment=None, kind=None):
        self.starts += 1
        log = self.scene.directory / f"{self.directory.name}.{self.starts}.log"
        environment = dict(environment or self.scene.environment)
        if faults:
            environment["HOLDFAST_FAULTS"] = faults
        arguments = meaning_faults(arguments, environment)
        return (kind or Start)(self, arguments, log, environment, cwd)

    def digest(self):
        return program_output("digest", self.directory)

    def events(self, name=None):
        """Of all parts of the log. Whole lines only; a killed writer leaves a torn one. Parses lines of this name alone, as tests
        ask again and again until there is one."""
        parts = [*sorted(self.directory.glob("events-*.jsonl")), self.directory / "events.jsonl"]
        begin = f'{{"event":"{name}"' if name else "{"
        found = []
        for line in "".join(path.read_text(errors="replace") for path in parts if path.exists()).splitlines():
            if line.startswith(begin):
                with contextlib.suppress(ValueError):
                    found.append(json.loads(line))
        return found

    def steps_told(self):
        """Of the step lines, and those that the log names as lost with the rank that had their lines."""
        told = [event["step"] for event in self.events("step")]
        for gap in self.events("gap"):
            told += range(gap["first_step"], gap["last_step"] + 1) if "last_step" in gap else []
        return told

    def last_step(self):
        """Of the newest step event; 0 when there is none. Reads the end of the log only."""
        path = self.directory / "events.jsonl"
        if not path.exists():
            return 0
        with open(path, "rb") as file:
            file.seek(max(0, path.stat().st_size - 4096))
            for line in reversed(file.read().split(b"\n")):
                if line.startswith(b'{"event":"step"') and line.endswith(b"}"):
                    return json.loads(line)["step"]
        return 0

    def status(self):
        return json.loads((self.directory / "status.json").read_text())

    def finished(self):
        """As the run itself recorded it. The exit code of mpirun proves nothing: when all ranks are killed it is 0."""
        return (self.directory / "status.json").exists() and self.status()["state"] == "finished"

    def checkpoints(self):
        """Visible checkpoint directories, oldest first."""
        return sorted((self.directory / "checkpoints").glob("*"))

    def newest_step(self):
        found = self.checkpoints()
        return int(found[-1].name.removeprefix("step-")) if found else 0

    def processes(self):
        return processes_of(self.directory)

    def guards(self):
        return guards_of(self.directory)

    def remove(self):
        shutil.rmtree(self.directory)
        for kind in ("log", "points"):
            for path in self.scene.directory.glob(f"{self.directory.name}.*.{kind}"):
                path.unlink()


def meaning_faults(arguments, environment):
    """The arguments of a command, with the word for `holdfast launch` that its faults are meant."""
    if not environment.get("HOLDFAST_FAULTS") or "launch" not in arguments or "--faults" in arguments:
        return arguments
    behind = arguments.index("launch") + 1
    return [*arguments[:behind], "--faults", *arguments[behind:]]


class Start:
    """One start of a run: mpirun, or the program itself."""

    stayed_behind = False  # mpirun, when its ranks had ended

    def __init__(self, run, arguments, log, environment_, cwd):
        self.run, self.log = run, log
        environment_ = {"HOLDFAST_FAULTS_LOG": str(log.with_suffix(".points")), **environment_, RUN_MARK: str(run.directory)}
        self.points, self.faults = Path(environment_["HOLDFAST_FAULTS_LOG"]), environment_.get("HOLDFAST_FAULTS", "")
        self.begun = time.monotonic()
        with open(log, "wb") as file:
            self.process = subprocess.Popen(arguments, stdout=file, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                                            env=environment_, cwd=cwd, start_new_session=True)

    @property
    def pid(self):
        return self.process.pid

    def mpirun_pid(self):
        """The mpirun that tools/mpirun started, or was."""
        return next(pid for pid in self.run.processes() if executable_of(pid) in MPIRUN)

    def alive(self):
        return self.process.poll() is None

    def output(self):
        return self.log.read_text(errors="replace")

    def signal(self, number):
        if self.alive():
            self.process.send_signal(number)

    def ranks(self):
        """Pids of the ranks that live."""
        return [pid for pid in self.run.processes() if executable_of(pid).startswith(PROGRAM.name)]

    def rank_pid(self, rank):
        """Of one rank under mpirun; None when it is not there."""
        mark = f"OMPI_COMM_WORLD_RANK={rank}".encode()
        for pid in self.ranks():
            try:
                if mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                    return pid
            except OSError:
                continue
        return None

    def wait(self, timeout_s=HANG_S):
        """The exit code. A start that does not end in time is a hang: everything is killed and it is an error. But that mpirun
        goes on behind ranks that have all ended is nothing that the ranks could mend; holdfast launch ends it, as this does, and
        returns STAYED_BEHIND. How often that may be is bounded (BEHIND_MOST)."""
        try:
            code = self.process.wait(timeout_s)
            return STAYED_BEHIND if self.stayed_behind else code
        except subprocess.TimeoutExpired:
            left = self.run.processes()
            states = ", ".join(describe(pid) for pid in left)
            behind_all = bool(left) and all(executable_of(pid) in (*MPIRUN, "bash") for pid in left)  # tools/mpirun is a shell
            self.kill_all()
            if behind_all:
                self.stayed_behind = True
                note_behind(self.run, states)
                return STAYED_BEHIND
            raise AssertionError(f"no end within {timeout_s} s: a hang. Processes: {states}\n{self.tail()}") from None

    def expect_exit(self, code, timeout_s=HANG_S):
        found = self.wait(timeout_s)
        if found != code:
            raise AssertionError(f"exit code {found}, expected {code}\n{self.tail()}\n{self.record()}")
        return self.output()

    def expect_failure(self, timeout_s=HANG_S):
        """It ends, and its exit code is not 0. Where mpirun stayed behind there is none; that is counted."""
        found = self.wait(timeout_s)
        if found == 0:
            raise AssertionError(f"exit code 0 of a start that must fail\n{self.tail()}\n{self.record()}")
        return self.output()

    def passed_points(self):
        """The events of the fault points that have done what they were armed for."""
        lines = self.points.read_text().splitlines() if self.points.exists() else []
        return [json.loads(line) for line in lines]

    def expect_passed(self, point, hit=1, action="kill"):
        """A rank told that it came to the fault point, and then did this."""
        told = [(each["point"], each["hit"], each["action"]) for each in self.passed_points()]
        if (point, hit, action) not in told:
            raise AssertionError(f"the fault point {point}@{hit}={action} was never passed, but {told}\n{self.tail()}")

    def expect_faults(self):
        """Every rank that it was told to kill, stop or keep computing came to the fault point where that happens."""
        for point, hit, action in re.findall(r"([\w.]+)(?:@(\d+))?(?::\d+)?=(kill|stop|spin)", self.faults):
            self.expect_passed(point, int(hit or 1), action)

    def wait_for_step(self, step, timeout_s=HANG_S):
        """Until the event log shows this step. False when the start ended before."""
        return wait_until(lambda: self.run.last_step() >= step, timeout_s, lambda: not self.alive(),
                          f"step {step} was not reached", self.tail)

    def wait_for_checkpoint(self, step, timeout_s=HANG_S):
        """Until one of this step or a later one is visible, which is some steps later. False: the start ended before."""
        return wait_until(lambda: self.run.newest_step() >= step, timeout_s, lambda: not self.alive(),
                          f"no checkpoint of step {step} or a later one is visible", self.tail)

    def kill_all(self):
        for pid in [*self.run.processes(), *self.run.guards()]:
            kill(pid, signal.SIGKILL)
        self.process.wait()

    def tail(self, lines=25):
        return "\n".join(["--- the end of its output:", *self.output().splitlines()[-lines:]])

    def record(self, lines=25, patience_s=5):
        """What the run and its guards know of the end. mpirun knows less: it returns 0 where all ranks were killed, and has been
        seen to drop the last words of a rank that left with another code."""
        limit = time.monotonic() + patience_s
        while self.run.guards() and time.monotonic() < limit:
            time.sleep(0.01)
        status = self.run.directory / "status.json"
        known = [status.read_text().strip() if status.exists() else "no status.json"]
        known += call_program("flight", self.run.directory).stdout.splitlines()[:lines]
        return "\n".join(["--- what was recorded:", *known])


def wait_until(condition, timeout_s, ended, complaint, tail):
    """True when the condition holds, False when `ended` does first; an error after the timeout."""
    limit = time.monotonic() + timeout_s
    while not condition():
        if ended():
            return condition()
        if time.monotonic() > limit:
            raise AssertionError(f"{complaint} within {timeout_s} s\n{tail()}")
        time.sleep(0.003)
    return True


def slow_steps(first, count=8, milliseconds=150):
    """Faults: steps in which something can happen before the run is over, whatever else the machine does. Counted by each process
    from its own first step, which is 1."""
    return ",".join(f"step.begin@{step}=sleep:{milliseconds}" for step in range(first, first + count))


def processes_of(directory):
    """Pids whose command line names the directory or something in it, this process apart. Not one whose name only begins so:
    several runs of a scene go on side by side. The dead that wait for their parent have no command line."""
    mark = re.compile(re.escape(str(directory).encode()) + rb"(?![\w.-])")
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        try:
            line = Path(f"/proc/{entry}/cmdline").read_bytes()
        except OSError:
            continue
        if mark.search(line):
            found.append(int(entry))
    return sorted(found)


def guards_of(directory):
    """Pids of the guards that starts of the run in this directory, or of runs below it, have brought about. A guard's command
    line has only the name of its board, but its environment is that of the rank that started it; holdfast launch has the run
    directory there, too."""
    return [pid for pid, is_guard in marked_by(directory) if is_guard]


def marked_by(directory):
    """(pid, whether it is a guard) of every process that has the run directory, or one below it, in its environment."""
    mark = re.compile(rb"(?:^|\0)(?:" + RUN_MARK.encode() + rb"|HOLDFAST_LAUNCH)=" + re.escape(str(directory).encode()) + rb"(?:/|\0|$)")
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            if mark.search(Path(f"/proc/{entry}/environ").read_bytes()):
                words = Path(f"/proc/{entry}/cmdline").read_bytes().split(b"\0")
                found.append((int(entry), len(words) > 2 and words[1] == b"guard"))
        except OSError:
            continue
    return sorted(found)


def executable_of(pid):
    try:
        return os.path.basename(Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].decode())
    except OSError:
        return ""


def state_of(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return "gone"


def describe(pid):
    return f"{executable_of(pid)} {pid} ({state_of(pid)})"


def kill(pid, number):
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


READER_LEAVES = "a reader that leaves"


def to_nobody(words):
    """{what: the command with its output where it cannot be written}. Their exit codes are those of the command."""
    return {"a full disk": ["sh", "-c", 'exec "$0" "$@" >/dev/full 2>&1', *words],
            "closed": ["sh", "-c", 'exec "$0" "$@" >&- 2>&-', *words],
            READER_LEAVES: ["bash", "-c", '"$0" "$@" 2>&1 | head -c 100; exit "${PIPESTATUS[0]}"', *words]}


def skip(reason):
    """Skips a test that this machine cannot run, and says why. It is for what CI must not skip (namespaces, several hosts, a full
    disk): there it fails."""
    if os.environ.get("CI") == "true":
        raise AssertionError(f"CI must not skip this: {reason}")
    raise unittest.SkipTest(reason)


def needs(condition, reason):
    """Marks a test that skip()s where the condition does not hold."""
    def mark(test):
        @functools.wraps(test)
        def checked(*arguments):
            if not condition:
                skip(reason)
            return test(*arguments)
        return checked
    return mark


def can_unshare_pids():
    words = ["unshare", "--pid", "--fork", "--mount-proc", "true"]
    return shutil.which("unshare") and subprocess.run(words, stderr=subprocess.DEVNULL, check=False).returncode == 0


def call_program(*arguments):
    return subprocess.run([str(PROGRAM), *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, errors="replace", timeout=120, check=False, env=environment())


def program_output(*arguments):
    done = call_program(*arguments)
    if done.returncode != 0:
        raise AssertionError(f"holdfast {' '.join(map(str, arguments))}: exit code {done.returncode}\n{done.stdout}")
    return done.stdout


def cause_of_death(cause):
    """An expression for what is said behind "died" of a rank that ended so."""
    return f": {re.escape(cause)}" if TELLS_CAUSES else f"(?:: {re.escape(cause)})?"


def without_rate(told):
    """What `holdfast sample` printed, without the last line, which says how long it took."""
    text, _, seconds = told.rpartition("holdfast: ")
    if not re.fullmatch(r"\d+ tokens in [\d.]+ s, [\d.]+ tokens/s\n", seconds):
        raise AssertionError(f"no tokens/s at the end: {told!r}")
    return text


def expect_no_processes(run, timeout_s=20):
    """A run that ended, however it ended, leaves no process behind, and no guard of its watchdog."""
    limit = time.monotonic() + timeout_s
    while found := run.processes() + run.guards():
        if time.monotonic() > limit:
            raise AssertionError(f"{timeout_s} s after the end there still are {', '.join(map(describe, found))}")
        time.sleep(0.01)


def expect_whole_checkpoints(run, step_before):
    """What was saved is there, and every byte of what is visible is right."""
    newest = run.newest_step()
    if newest < step_before:
        raise AssertionError(f"the newest checkpoint was step {step_before} and now is step {newest}")
    for path in run.checkpoints():
        program_output("verify", path)
    return newest


def expect_no_snapshots(run):
    """A run that has ended well leaves nothing in shared memory."""
    printed = program_output("clean", run.directory)
    if " 0 snapshots removed" not in printed:
        raise AssertionError(f"left in shared memory: {printed}")


def complaints(job, cases, at_once=1):
    """job(*case) for every case, `at_once` side by side. What each has to complain about by assertions; None where all is
    well."""
    def complaint(case):
        try:
            job(*case)
            return None
        except AssertionError as error:
            return str(error)

    with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(complaint, cases))


class _Told(unittest.TestResult):
    """Of one test."""

    def said(self):
        if self.failures or self.errors:
            return "FAIL"
        return f"skipped: {self.skipped[0][1]}" if self.skipped else "ok"


def _skipped(test, reason):
    told = _Told()
    told.addSkip(test, str(reason))
    return told


def _run_class(tests, at_once, alone):
    """The results of a class's tests: first those that may run side by side."""
    telling = threading.Lock()

    def run(name):
        told, begun = _Told(), time.monotonic()
        tests(name).run(told)
        with telling:
            print(f"{name} ... {told.said()}  ({time.monotonic() - begun:.1f} s)", file=sys.stderr, flush=True)
        return told

    names = _names(tests)
    try:
        tests.setUpClass()
    except unittest.SkipTest as reason:
        tests.doClassCleanups()
        print(f"{tests.__name__} ... skipped: {reason}", file=sys.stderr, flush=True)
        return [_skipped(tests(name), reason) for name in names]
    try:
        beside = [name for name in names if name not in alone]
        if at_once == 1:
            results = [run(name) for name in beside]
        else:
            with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
                results = list(pool.map(run, beside))
        return results + [run(name) for name in names if name in alone]
    finally:
        tests.tearDownClass()
        tests.doClassCleanups()


def full(test):
    """Marks a test of the full tier (docs/testing.md): tools/test leaves it out, tools/test --full does not."""
    test.in_full_tier = True
    return test


def _names(tests):
    """The tests of a class that HOLDFAST_TEST_TIER asks for: "default", "full", or all where it is not set."""
    tier = os.environ.get("HOLDFAST_TEST_TIER", "all")
    if tier not in ("all", "default", "full"):
        sys.exit(f"HOLDFAST_TEST_TIER is {tier}; it may be all, default and full.")
    names = unittest.defaultTestLoader.getTestCaseNames(tests)
    is_full = {name: getattr(getattr(tests, name), "in_full_tier", False) for name in names}
    return [name for name in names if tier == "all" or is_full[name] == (tier == "full")]


def note_behind(run, what):
    """Counts an mpirun that stayed behind its ranks, and was ended by this process or by holdfast launch."""
    _behind.append(f"{run.directory.name}: {what}")
    print(f"{STAYED_BEHIND}: {_behind[-1]}", flush=True)


ALL_SKIPPED = 77  # what ctest takes for a skipped test


def complaint_of_behind(most=BEHIND_MOST):
    """What there is to complain about where mpirun stayed behind its ranks too often for an accident; None otherwise."""
    if _behind:
        print(f"mpirun stayed behind its ranks {len(_behind)} times, at most {most} may be", file=sys.stderr)
    return f"mpirun stayed behind its ranks: {'; '.join(_behind)}" if len(_behind) > most else None


def main(at_once=2, alone=()):
    """As unittest.main(), but for the tests of one tier, and with so many of a class side by side: a start under mpirun waits more
    than it computes. Those of `alone` have the machine for themselves. With arguments it is unittest.main(). It fails, too, where mpirun
    stayed behind its ranks too often."""
    if len(sys.argv) > 1:
        right = unittest.main(verbosity=2, exit=False).result.wasSuccessful()
        sys.exit(complaint_of_behind() or (0 if right else 1))
    begun, results, module = time.monotonic(), [], vars(sys.modules["__main__"])
    try:
        module.get("setUpModule", lambda: None)()
    except unittest.SkipTest as reason:
        print(f"skipped: {reason}", file=sys.stderr)
        sys.exit(ALL_SKIPPED)
    for tests in list(module.values()):
        if isinstance(tests, type) and issubclass(tests, unittest.TestCase) and _names(tests):
            results += _run_class(tests, at_once, alone)
    found = [each for result in results for each in result.failures + result.errors]
    if behind := complaint_of_behind():
        found.append(("all tests together", behind))
    skipped = sum(bool(result.skipped) for result in results)
    for test, text in found:
        print(f"{'=' * 70}\n{test}\n{'-' * 70}\n{text}", file=sys.stderr)
    print(f"\n{len(results)} tests in {time.monotonic() - begun:.1f} s: {f'{len(found)} FAILED' if found else 'OK'}, {skipped} skipped",
          file=sys.stderr)
    if found or not results:
        sys.exit(1)
    sys.exit(ALL_SKIPPED if skipped == len(results) else 0)


def reference_digest(scene, overrides=(), name="reference", **variables):
    """Of the run that nothing disturbs: one rank, one thread, start to end."""
    run = scene.run(name, overrides)
    words = command("alone", 1) + run.train_arguments("--threads=1")
    run.start_command(words, environment={**scene.environment, **variables}).expect_exit(0)
    digest = run.digest()
    if not digest.startswith("step "):
        raise AssertionError(f"a digest begins with the step, not with '{digest[:40]}'")
    return digest
