#!/usr/bin/env python3
"""Every row of docs/errors.md, provoked with the real program: the sentence and the exit code are those of the table.

A row and the test of the same name belong together: `unknown-key` and test_unknown_key. Either without the other fails. The
rows of one section are tested elsewhere, by whoever reads them with read_table().
HOLDFAST names the program; tools/mpirun starts the ranks.
"""
import fcntl
import json
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from pathlib import Path

import foreign_model
import harness

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = os.environ.get("HOLDFAST", str(ROOT / "build/release/bin/holdfast"))
MPIRUN = str(ROOT / "tools/mpirun")
TABLE = ROOT / "docs/errors.md"
# The CUDA device without a GPU; its header (tests/cuda_emulator) says what else can be asked of it.
EMULATED = {"HOLDFAST_CUDA_MODULE": str(Path(PROGRAM).resolve().parent / "libholdfast_cuda_emulated.so")}
PATIENCE_S = 90
LIBFABRIC = "libfabric, which comes with Open MPI, closes a file twice when a process exits, and AddressSanitizer ends it"
LANES = 2

# What never belongs in front of a user.
UNFIT = re.compile(r"std::|what\(\)|terminate called|Segmentation|core dumped|nlohmann|json\.exception|stack trace|HF_CHECK|errno|\{\}",
                   re.IGNORECASE)

CONFIG = """[run]
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


class Row:
    """One row: what the program must print and return. "..." in the sentence stands for anything."""

    def __init__(self, sentence, code):
        self.sentence = sentence
        self.code = code
        parts = [re.escape(part.strip()) for part in re.split(r"\.\.\.|<br>", sentence)]
        self.pattern = re.compile(r".*?".join(parts), re.DOTALL)


SEVERAL_HOSTS = "Several hosts"  # the section of hosts_test.py
LOCAL_DIRECTORIES = "Run directories that are local to each host"  # that of local_test.py
PLUGINS = "Kernels of plug-ins"  # that of kernel_test.py
RULES = "Kernels for some calls"  # that of kernel_rules_test.py
TRACES = "Traces of kernel calls"  # that of kernel_trace_test.py
TOKENIZERS = "Text and tokenizers"  # that of tokenizer_test.py
TEXT_SOURCES = "Text in a config"  # that of text_source_test.py


def read_table(sections):
    """The rows of the sections whose headings `sections` is true of."""
    rows, heading = {}, ""
    for line in TABLE.read_text().splitlines():
        heading = line.removeprefix("## ") if line.startswith("## ") else heading
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip())[1:-1]]
        if not sections(heading) or len(cells) != 5 or not re.fullmatch(r"`[a-z0-9-]+`", cells[0]):
            continue
        name = cells[0].strip("`")
        if name in rows:
            raise AssertionError(f"docs/errors.md has two rows named {name}")
        rows[name] = Row(cells[2].strip("`").replace("\\|", "|"), int(cells[3]))
    return rows


def token_file(path, tokens, magic=20240520, version=1, count=None, token_format="H"):
    header = struct.pack("<3i", magic, version, len(tokens) if count is None else count).ljust(1024, b"\0")
    path.write_bytes(header + struct.pack(f"<{len(tokens)}{token_format}", *tokens))


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def rewrite_manifest(checkpoint, **values):
    """As another program could have written it: other values, a checksum that fits."""
    path = checkpoint / "manifest.json"
    body = json.loads(path.read_text().rsplit("crc32c ", 1)[0])
    body.update(values)
    text = json.dumps(body, indent=1) + "\n"
    path.write_text(text + f"crc32c {crc32c(text.encode()):08x}\n")


def flip_byte(path, offset):
    content = bytearray(path.read_bytes())
    content[offset] ^= 0x10
    path.write_bytes(content)


# Runs the program of its arguments behind a seccomp filter that answers io_uring_setup(2), call 425 everywhere, with EPERM, as
# those of containers do.
FORBID_IO_URING = """
import ctypes, os, struct, sys
load, skip_unless, refuse, allow = 0x20, 0x15, 0x06, 0x06
rules = struct.pack("HBBI" * 4, load, 0, 0, 0, skip_unless, 0, 1, 425, refuse, 0, 0, 0x00050001, allow, 0, 0, 0x7fff0000)
kept = ctypes.create_string_buffer(rules)
program = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", 4, ctypes.addressof(kept)))
libc = ctypes.CDLL(None)
no_new_privileges, set_seccomp, filter_mode = 38, 22, 2
assert libc.prctl(no_new_privileges, 1, 0, 0, 0) == 0
assert libc.prctl(set_seccomp, filter_mode, program, 0, 0) == 0
os.execv(sys.argv[1], sys.argv[1:])
"""


def newest(run):
    return sorted((run / "checkpoints").iterdir())[-1]


def remove_tree(folder):
    """A guard may still write down in it what died, and leaves a moment later."""
    for attempts_left in reversed(range(50)):
        try:
            shutil.rmtree(folder)
            return
        except OSError:
            if attempts_left == 0:
                raise
            time.sleep(0.1)


def kill_every_mpirun_of(launcher, ended):
    while not ended.wait(0.01):
        try:
            children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
        except OSError:
            continue
        for pid in map(int, children):
            if harness.executable_of(pid) in harness.MPIRUN:
                harness.kill(pid, signal.SIGKILL)


class Folder:
    """Where a test starts its programs, as harness.Start wants a run: everything that they bring about has the folder in its
    environment, because their command lines name what is in it without it."""

    def __init__(self, directory):
        self.directory = directory

    def processes(self):
        return [pid for pid, is_guard in harness.marked_by(self.directory) if not is_guard]

    def guards(self):
        return harness.guards_of(self.directory)


def begin(command, folder, environment=None):
    """A start in the folder, which goes on. What it prints is in no folder that a test looks at."""
    with tempfile.NamedTemporaryFile(prefix="holdfast-errors-", suffix=".log", delete=False) as file:
        log = Path(file.name)
    return harness.Start(Folder(folder), [str(word) for word in command], log, Errors.variables(environment), folder)


def end(start):
    """What it printed and how it ended, when nothing of it is left."""
    try:
        code = start.wait(PATIENCE_S)
        harness.expect_no_processes(start.run)
        return subprocess.CompletedProcess(start.process.args, code, start.output())
    finally:
        start.kill_all()
        start.log.unlink()
        start.points.unlink(missing_ok=True)


class Errors(unittest.TestCase):
    rows = read_table(lambda heading: heading not in (SEVERAL_HOSTS, LOCAL_DIRECTORIES, PLUGINS, RULES, TRACES, TOKENIZERS, TEXT_SOURCES))

    @classmethod
    def setUpClass(cls):
        cls.shared = Path(tempfile.mkdtemp(prefix="holdfast-errors-"))
        cls.fill(cls.shared)
        outcome = cls.start([PROGRAM, "train", "run.toml"], cls.shared)
        if outcome.returncode != 0:
            raise AssertionError(f"the run that the tests damage did not work: {outcome.stdout}")

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.shared)

    def setUp(self):
        self.folder = Path(tempfile.mkdtemp(prefix="holdfast-errors-"))
        self.addCleanup(remove_tree, self.folder)
        self.fill(self.folder)
        self.run_directory = self.folder / "run"
        self.name = self._testMethodName.removeprefix("test_").replace("_", "-")

    @staticmethod
    def fill(folder):
        (folder / "text.txt").write_bytes(bytes(range(32, 127)) * 40)
        (folder / "run.toml").write_text(CONFIG)

    @staticmethod
    def variables(more):
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("HOLDFAST_", "OMPI_", "PMIX_"))}
        return {**clean, **(more or {})}

    @staticmethod
    def start(command, folder, environment=None):
        return end(begin(command, folder, environment))

    def holdfast(self, *words, environment=None):
        return self.start([PROGRAM, *words], self.folder, environment)

    def mpirun(self, ranks, *words, environment=None):
        return self.start([MPIRUN, "-np", str(ranks), PROGRAM, *words], self.folder, environment)

    def train(self, *words, **more):
        return self.holdfast("train", "run.toml", *words, **more)

    def without_io_uring(self, *words):
        return self.start([sys.executable, "-c", FORBID_IO_URING, str(PROGRAM), *words], self.folder)

    def saved_run(self):
        """A finished run of 4 steps with checkpoints of steps 2 and 4."""
        shutil.copytree(self.shared / "run", self.run_directory)
        return self.run_directory

    def expect(self, outcome):
        """The table's sentence, once; the table's exit code; nothing that is not for users."""
        row = self.rows.get(self.name)
        self.assertIsNotNone(row, f"docs/errors.md has no row `{self.name}`; the program printed:\n{outcome.stdout}")
        said = f"\nprinted, with exit code {outcome.returncode}:\n{outcome.stdout}\nexpected, with exit code {row.code}:\n{row.sentence}"
        self.assertEqual(len(row.pattern.findall(outcome.stdout)), 1, "the sentence of the table is not there once:" + said)
        if outcome.returncode != harness.STAYED_BEHIND:  # which is counted
            self.assertEqual(outcome.returncode, row.code, said)
        self.assertIsNone(UNFIT.search(outcome.stdout), said)

    def expect_nothing_made(self, outcome):
        self.expect(outcome)
        self.assertFalse(self.run_directory.exists(), "a start that was refused left a run directory")

    # The table itself

    def test_every_row_has_a_test_and_every_test_a_row(self):
        tests = {name.removeprefix("test_").replace("_", "-") for name in dir(self) if name.startswith("test_")}
        tests.discard("every-row-has-a-test-and-every-test-a-row")
        self.assertEqual(sorted(tests), sorted(self.rows))

    # The command line

    def test_no_command(self):
        self.expect(self.holdfast())

    def test_unknown_command(self):
        self.expect(self.holdfast("trian", "run.toml"))

    def test_unknown_option(self):
        self.expect(self.holdfast("sample", "run", "--promt", "x"))

    def test_option_without_value(self):
        self.expect(self.holdfast("sample", "run", "--prompt"))

    def test_flag_with_value(self):
        self.expect(self.holdfast("inspect", "run", "--json=yes"))

    def test_option_twice(self):
        self.expect(self.holdfast("sample", "run", "--seed=1", "--seed=2"))

    def test_bad_option_value(self):
        self.expect(self.holdfast("sample", "run", "--tokens=many"))

    def test_bad_option_choice(self):
        self.expect(self.holdfast("sample", "run", "--device=gpu"))

    def test_missing_word(self):
        self.expect(self.holdfast("digest"))

    def test_surplus_word(self):
        self.expect(self.holdfast("digest", "run", "more"))

    def test_evaluate_without_data(self):
        self.expect(self.holdfast("evaluate", "run"))

    def test_unknown_config_document(self):
        self.expect(self.holdfast("config", "dum"))

    def test_command_program_missing(self):
        program = str(self.folder / "holdfast")
        shutil.copy(PROGRAM, program)
        for words in (["bench", "op", "add"], ["bench", "--help"], ["help", "bench"]):
            self.expect(self.start([program, *words], self.folder))
        chaos = self.start([program, "chaos", "run.toml"], self.folder)
        self.assertEqual(chaos.returncode, 2)
        self.assertIn("--target holdfast-chaos", chaos.stdout)

    def test_unknown_bench_case(self):
        self.expect(self.holdfast("bench", "stp"))

    def test_plan_without_ranks(self):
        self.expect(self.holdfast("plan", "run.toml"))

    def test_replay_without_step(self):
        self.expect(self.holdfast("replay", "run"))

    def test_replay_of_a_file(self):
        for words in (["replay", "run.toml", "--step=1"], ["kernel", "trace", "run.toml", "--steps=1", "--ops=matmul"],
                      ["report", "run.toml"]):
            self.expect(self.holdfast(*words))

    def test_replay_no_such_step(self):
        self.saved_run()
        self.expect(self.mpirun(2, "replay", "run", "--step=5"))

    def test_replay_no_record(self):
        log = self.saved_run() / "events.jsonl"
        log.write_text("".join(line for line in log.read_text().splitlines(True) if '"event":"step"' not in line or '"step":3,' not in line))
        self.expect(self.holdfast("replay", "run", "--step=3"))

    def test_replay_changes_numbers(self):
        self.saved_run()
        self.expect(self.mpirun(2, "replay", "run", "--step=3", "--optimizer.learning_rate=1"))

    def test_plan_half_peaks(self):
        self.expect(self.holdfast("plan", "run.toml", "--ranks=2", "--peak-tflops=1"))

    def test_plan_unknown_gpu(self):
        self.expect(self.holdfast("plan", "run.toml", "--ranks=2", "--gpu=h300"))

    def test_plan_half_hosts(self):
        self.expect(self.holdfast("plan", "run.toml", "--ranks=2", "--host-link-gbs=1"))

    def test_plan_tensor_across_hosts(self):
        self.expect(self.holdfast("plan", "run.toml", "--ranks=4", "--ranks-per-host=3", "--parallel.tensor=2",
                                  "--parallel.tensor_lanes=2", "--peak-tflops=1", "--memory-gbs=10"))

    def plan_with_peaks(self, *words):
        return self.holdfast("plan", "run.toml", "--ranks=1", "--peak-tflops=1", "--memory-gbs=10", *words)

    # Deep, so that what a block keeps decides.
    def test_plan_does_not_fit(self):
        self.expect(self.plan_with_peaks("--model.layers=64", "--training.sequence_length=128", "--memory-gib=0.014"))

    def test_plan_other_machine(self):
        self.expect(self.holdfast("plan", "run.toml", "--ranks=4096", "--parallel.lanes=4096", "--model.width=512", "--model.layers=4",
                                  "--peak-tflops=1", "--memory-gbs=10"))

    def test_plan_nothing_fits(self):
        self.expect(self.plan_with_peaks("--suggest", "--memory-gib=0.00001"))

    def test_unknown_bench_op(self):
        self.expect(self.holdfast("bench", "op", "swiglu_forwrad"))

    def test_unknown_bench_implementation(self):
        self.expect(self.holdfast("bench", "op", "add", "--implementation", "sse9"))

    def test_train_without_config(self):
        self.expect(self.mpirun(2, "train"))

    def test_launch_without_ranks(self):
        self.expect(self.holdfast("launch", "run.toml"))

    def test_chaos_unknown_fault(self):
        self.expect_nothing_made(self.holdfast("chaos", "run.toml", "--faults=kil"))

    def test_chaos_bad_seeds(self):
        self.expect_nothing_made(self.holdfast("chaos", "run.toml", "--seeds=5..3"))

    def test_chaos_fault_out_of_reach(self):
        self.expect_nothing_made(self.holdfast("chaos", "run.toml", "--faults=lost_host"))

    def test_chaos_without_layout(self):
        self.expect_nothing_made(self.holdfast("chaos", "run.toml", "--ranks=2", "--elastic.min_data_parallel=3", "--parallel.lanes=4"))

    def test_chaos_unknown_layout(self):
        self.expect_nothing_made(self.holdfast("chaos", "run.toml", "--layouts=2x2"))

    def test_chaos_impossible_layout(self):
        self.expect_nothing_made(self.holdfast("chaos", "run.toml", "--layouts=3x1x1"))

    def test_chaos_hosts_twice(self):
        self.expect_nothing_made(self.holdfast("chaos", "run.toml", "--host=a,b", "--hostfile=hosts"))

    def test_chaos_undisturbed(self):
        self.expect(self.holdfast("chaos", "run.toml", "--model.vocabulary=256",
                                  "--data.sources=[{path = \"missing.txt\", format = \"text\"}]"))

    def test_launch_without_config(self):
        self.expect(self.holdfast("launch", "-np", "2"))

    def test_launch_range(self):
        self.expect_nothing_made(self.holdfast("launch", "-np", "4:2", "run.toml"))

    def test_launch_range_too_small(self):
        self.expect_nothing_made(self.holdfast("launch", "-np", "1:3", "run.toml", "--parallel.tensor=2", "--parallel.pipeline=2",
                                               "--parallel.tensor_lanes=2"))

    def test_launch_range_with_spares(self):
        self.expect_nothing_made(self.holdfast("launch", "-np", "1:3", "run.toml", "--elastic.spares=1"))

    def test_launch_drill_refused(self):
        (self.folder / "text.txt").unlink()
        self.expect(self.holdfast("launch", "-np", "1", "--drill", "run.toml"))

    def test_launch_drill_failed(self):
        self.expect(self.holdfast("launch", "-np", "1", "--drill", "run.toml", "--checkpoint.ram_every_steps=0",
                                  "--checkpoint.every_steps=0"))
        self.assertFalse(self.run_directory.exists())

    def test_launch_unknown_option(self):
        self.expect(self.holdfast("launch", "-np", "2", "--hostfil", "hosts", "run.toml"))

    def test_launch_hosts_twice(self):
        self.expect(self.holdfast("launch", "-np", "2", "--host", "a", "--hostfile", "hosts", "run.toml"))

    def test_launch_hostfile_missing(self):
        self.expect_nothing_made(self.holdfast("launch", "-np", "2", "--hostfile", "hosts", "run.toml"))

    def test_launch_host_name(self):
        (self.folder / "hosts").write_text("-oProxyCommand=x slots=1\nb slots=1\n")
        self.expect(self.holdfast("launch", "-np", "2", "--hostfile", "hosts", "run.toml"))

    def test_launch_host_command(self):
        self.expect_nothing_made(self.holdfast("launch", "-np", "2", "--host-command", "exit 3", "run.toml"))

    def test_launch_slurm_nodes(self):
        self.expect_nothing_made(self.holdfast("launch", "-np", "2", "run.toml", environment={
            "SLURM_JOB_ID": "12", "SLURM_JOB_NODELIST": "n[1-", "SLURM_TASKS_PER_NODE": "2(x3)"}))

    def test_launch_slurm_room(self):
        self.expect_nothing_made(self.holdfast("launch", "-np", "7", "run.toml", environment={
            "SLURM_JOB_ID": "12", "SLURM_JOB_NODELIST": "n[0-2]", "SLURM_TASKS_PER_NODE": "2(x3)"}))

    def test_train_without_pmix(self):
        self.expect_nothing_made(self.train(environment={"SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "1"}))

    def test_launch_on_host(self):
        token = "0123456789abcdef"
        for words in ([], ["look"], ["look", "../../etc"], ["stop", token], ["clean", token, "run", "more"], ["finish", token, "x;reboot"]):
            self.expect_nothing_made(self.holdfast("launch", "--on-host", *words))
        self.assertEqual(self.holdfast("launch", "--on-host", "look", token).returncode, 0)

    def ready(self, *overrides, digest="-", directory=None):
        token, nonce = "0123456789abcdef", "0" * 32
        meeting = ["-", "0", "-", "-"]  # there is none
        return self.holdfast("launch", "--on-host", "ready", token, nonce, "shared", digest, "1", "1", *meeting, directory or self.folder,
                             "--", "run.toml", *overrides)

    def test_ready_working_directory(self):
        self.expect_nothing_made(self.ready(directory="/no/such/place"))

    def test_ready_config(self):
        self.expect_nothing_made(self.ready(digest="0" * 32))

    def test_ready_run_directory(self):
        self.expect_nothing_made(self.ready())

    def test_ready_memory(self):
        (self.run_directory / "launch").mkdir(parents=True)
        (self.run_directory / "launch/0123456789abcdef-ready").write_text("0" * 32)
        self.expect(self.ready("--model.width=65536", "--model.heads=512", "--model.kv_heads=512", "--model.layers=20"))

    def test_launch_faults(self):
        self.expect_nothing_made(self.holdfast("launch", "-np", "1", "run.toml", environment={"HOLDFAST_FAULTS": "step.begin@9=kill"}))

    def test_faults_set(self):
        self.expect(self.train(environment={"HOLDFAST_FAULTS": "step.begin@2=sleep:1"}))
        events = [json.loads(line) for line in (self.run_directory / "events.jsonl").read_text().splitlines()]
        self.assertEqual([event.get("faults") for event in events if event["event"] == "start"], ["step.begin@2=sleep:1"])

    def test_run_open_to_others(self):
        self.run_directory.mkdir()
        self.run_directory.chmod(0o777)
        self.expect(self.train())
        self.run_directory.chmod(0o755)
        self.assertNotIn("may be written by", self.train("--training.steps=6").stdout)

    def test_launch_same_fault(self):
        self.expect(self.holdfast("launch", "--faults", "-np", "1", "run.toml", "--checkpoint.every_steps=1000",
                                  environment={"HOLDFAST_FAULTS": "step.begin@2=kill"}))

    def test_output_lost(self):
        self.saved_run()
        for words in ("config docs", "config help", "--version", "--help", "help train", "digest run", "inspect run", "verify run",
                      "report run", "launch -np 1 run.toml --dry-run"):
            self.expect(self.start(["sh", "-c", f"exec '{PROGRAM}' {words} > /dev/full"], self.folder))
            closed = self.start(["sh", "-c", f"exec '{PROGRAM}' {words} >&-"], self.folder)
            self.assertEqual((closed.returncode, closed.stdout),
                             (2, "holdfast: the output cannot be written: Bad file descriptor\n"), words)
        complaint = self.start(["sh", "-c", f"exec '{PROGRAM}' digest nothing 2> /dev/full"], self.folder)
        self.assertEqual(complaint.returncode, 5)

    @harness.full
    def test_launch_no_progress(self):
        """Nobody comes to a step, because mpirun is killed again and again."""
        start = begin([PROGRAM, "launch", "--faults", "-np", "1", "run.toml"], self.folder,
                      {"HOLDFAST_FAULTS": f"step.begin=sleep:{PATIENCE_S * 1000}"})
        ended = threading.Event()
        killer = threading.Thread(target=kill_every_mpirun_of, args=(start.pid, ended))
        killer.start()
        try:
            outcome = end(start)
        finally:
            ended.set()
            killer.join()
        self.expect(outcome)

    @harness.full
    @harness.needs(harness.can_unshare_pids(), "the system gives no process namespace")
    def test_launch_undying(self):
        """The first process of a namespace, which nobody in there can kill, is one of an earlier start."""
        token = "0123456789abcdef"
        launch_directory = self.run_directory / "launch"
        launch_directory.mkdir(parents=True)
        (launch_directory / "token").write_text(token)
        launch = f"env -u HOLDFAST_LAUNCH {PROGRAM} launch -np 1 run.toml; exit $?"
        self.expect(self.start(["unshare", "--pid", "--fork", "--mount-proc", "bash", "-c", launch], self.folder,
                               {"HOLDFAST_LAUNCH": f"{launch_directory}/{token}-0123456789abcdef"}))

    def test_status_of_nothing(self):
        self.expect(self.holdfast("status", "elsewhere"))

    def test_save_of_nothing(self):
        self.expect(self.holdfast("save", "elsewhere"))

    def test_save_not_running(self):
        status = self.saved_run() / "status.json"
        status.write_text(status.read_text().replace('"finished"', '"running"'))
        self.expect(self.holdfast("save", "run"))

    def test_save_not_in_time(self):
        with open(self.saved_run() / "lock", "w", encoding="utf-8") as lock:
            lock.write("host elsewhere pid 1")
            lock.flush()
            fcntl.flock(lock, fcntl.LOCK_EX)
            self.expect(self.holdfast("save", "run", "--timeout=1s"))
        self.assertEqual(list((self.run_directory / "requests").iterdir()), [])

    def test_launch_in_use(self):
        words = ["launch", "-np", "1", "run.toml", "--training.steps=1000000000", "--log.every_steps=1000000000"]
        first = subprocess.Popen([PROGRAM, *words], cwd=self.folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            while not (self.run_directory / "checkpoints").exists():
                self.assertIsNone(first.poll())
                time.sleep(0.05)
            outcome = self.holdfast(*words)
        finally:
            first.send_signal(signal.SIGUSR2)
            self.assertEqual(first.wait(PATIENCE_S), 75)
        self.expect(outcome)
        self.assertIn(f"host {os.uname().nodename} pid {first.pid}", outcome.stdout)

    def test_word_after_config(self):
        self.expect_nothing_made(self.train("more.toml"))

    def test_train_np(self):
        self.expect_nothing_made(self.holdfast("train", "-np", "2", "run.toml"))

    def test_override_without_value(self):
        self.expect_nothing_made(self.train("--training.steps"))

    def test_override_that_is_no_key(self):
        self.expect_nothing_made(self.train("--override", "training.steps=5"))

    # The config

    def test_config_missing(self):
        self.expect(self.holdfast("train", "nothing.toml"))

    def test_config_is_directory(self):
        self.expect(self.holdfast("train", "."))

    def test_config_syntax(self):
        (self.folder / "run.toml").write_text(CONFIG + "[log\nevery_steps = 1\n")
        self.expect_nothing_made(self.train())

    def test_config_not_text(self):
        shutil.copy("/bin/sh", self.folder / "run.toml")
        self.expect_nothing_made(self.train())

    def test_include_missing(self):
        (self.folder / "run.toml").write_text('include = "base.toml"\n' + CONFIG)
        self.expect_nothing_made(self.train())

    def test_include_cycle(self):
        (self.folder / "run.toml").write_text('include = "base.toml"\n' + CONFIG)
        (self.folder / "base.toml").write_text('include = "run.toml"\n')
        self.expect_nothing_made(self.train())

    def test_unknown_key(self):
        (self.folder / "run.toml").write_text(CONFIG.replace("steps = 4", "stpes = 4"))
        self.expect_nothing_made(self.mpirun(2, "train", "run.toml"))

    def test_health_rule(self):
        self.expect_nothing_made(self.mpirun(2, "train", "run.toml", '--health.rules=["gpu-hat=drain"]'))

    def test_health_exporter(self):
        self.expect_nothing_made(self.train("--health.dcgm_exporter=node7:9400"))

    def test_metrics_address(self):
        self.expect_nothing_made(self.train("--metrics.listen=node7:9400"))

    def test_missing_key(self):
        (self.folder / "run.toml").write_text(CONFIG.replace("steps = 4", ""))
        self.expect_nothing_made(self.train())

    def test_wrong_type(self):
        (self.folder / "run.toml").write_text(CONFIG.replace("layers = 1", 'layers = "two"'))
        self.expect_nothing_made(self.train())

    def test_out_of_range(self):
        (self.folder / "run.toml").write_text(CONFIG.replace("sequence_length = 16", "sequence_length = 0"))
        self.expect_nothing_made(self.train())

    def test_unknown_choice(self):
        self.expect_nothing_made(self.train("--optimizer.schedule=cosin"))

    def test_several_errors(self):
        (self.folder / "run.toml").write_text(CONFIG.replace("layers = 1", "layers = true").replace("lanes = 2", "lane = -1"))
        self.expect_nothing_made(self.train("--training.steps=0", environment={"HOLDFAST_THREADS": "many"}))

    def test_former_variable(self):
        self.expect_nothing_made(self.start([PROGRAM, "train", "run.toml"], self.folder, {"HOLDFAST_NETWORK": "eth0"}))

    def test_unknown_variable(self):
        self.expect_nothing_made(self.train(environment={"HOLDFAST_TRAINING_STEP": "5"}))

    def test_bad_environment(self):
        self.expect_nothing_made(self.train(environment={"HOLDFAST_TRAINING_STEPS": "many"}))

    def test_indivisible_heads(self):
        (self.folder / "run.toml").write_text(CONFIG.replace("heads = 2", "heads = 3"))
        self.expect_nothing_made(self.train())
        self.expect(self.holdfast("check", "run.toml"))

    def test_indivisible_kv_heads(self):
        self.expect_nothing_made(self.train("--model.heads=4", "--model.kv_heads=3"))

    def test_preset_conflict(self):
        self.expect_nothing_made(self.train("--model.preset=gpt2-124m"))

    def test_beyond_positions(self):
        self.expect_nothing_made(self.train("--model.style=gpt2", "--model.positions=8"))

    def test_unknown_freeze(self):
        self.expect_nothing_made(self.train("--model.freeze=embeddings"))

    def test_freeze_beyond_layers(self):
        self.expect_nothing_made(self.train("--model.freeze=layers 0-1"))

    def test_freeze_tied_head(self):
        self.expect_nothing_made(self.train("--model.head=tied", "--model.freeze=head"))

    def test_everything_frozen(self):
        self.expect_nothing_made(self.train('--model.freeze=["embedding", "layer 0", "head"]'))

    def test_unknown_lora_target(self):
        self.expect_nothing_made(self.train("--lora.rank=2", "--lora.targets=c_attn"))

    def test_lora_without_rank(self):
        self.expect_nothing_made(self.train("--lora.alpha=4"))

    def test_lora_beside_freeze(self):
        self.expect_nothing_made(self.train("--lora.rank=2", "--model.freeze=embedding"))

    def test_evaluation_without_sources(self):
        self.expect_nothing_made(self.train("--evaluation.every_steps=2"))

    def test_trace_after_the_end(self):
        self.expect_nothing_made(self.train("--trace.steps=1", "--trace.first_step=5"))

    def test_watch_only(self):
        self.expect_nothing_made(self.train("--verdict.preset=watch", "--verdict.on_spike=skip"))

    def test_window_too_small(self):
        self.expect_nothing_made(self.train("--verdict.window_steps=32"))

    def test_leaves_out_everything(self):
        self.expect_nothing_made(self.train("--verdict.on_spike=rollback"))

    def test_skips_everything(self):
        self.expect_nothing_made(self.train("--verdict.skips_max=129"))

    def test_saves_too_often(self):
        self.expect_nothing_made(self.train("--checkpoint.every=100ms"))

    def test_replicas_of_nothing(self):
        self.expect_nothing_made(self.train("--checkpoint.replicas=on"))

    def test_keeps_what_is_not_saved(self):
        self.expect_nothing_made(self.train("--checkpoint.keep_every_steps=3"))

    def test_uploads_twice(self):
        self.expect_nothing_made(self.train("--checkpoint.upload_command=exit 0", "--checkpoint.upload_shard_command=exit 0"))

    def test_warmup_too_long(self):
        self.expect_nothing_made(self.train("--optimizer.warmup_steps=5"))

    def test_bad_decay_group(self):
        self.expect_nothing_made(self.train("--optimizer.weight_decay_groups=*.bias=none"))

    def test_decay_group_of_nothing(self):
        self.expect_nothing_made(self.train("--optimizer.weight_decay_groups=*.biass=0"))

    def test_no_average(self):
        self.assertEqual(self.train().returncode, 0)
        self.expect(self.holdfast("export", "run", "exported", "--ema"))
        self.assertFalse((self.run_directory.parent / "exported").exists())

    def test_shrinks_to_more(self):
        self.expect_nothing_made(self.train("--elastic.min_data_parallel=3", "--parallel.data=2"))

    def test_too_few_lanes(self):
        self.expect_nothing_made(self.train("--parallel.data=3"))

    def test_partial_weights(self):
        self.expect_nothing_made(self.train('--data.sources=[{path = "text.txt", weight = 1}, {path = "text.txt"}]'))

    def test_too_few_slices(self):
        options = ["--parallel.tensor=2", "--parallel.tensor_lanes=1"]
        self.expect_nothing_made(self.mpirun(2, "train", "run.toml", *options))
        self.expect(self.holdfast("check", "run.toml", *options))

    def test_too_many_stages(self):
        self.expect_nothing_made(self.mpirun(9, "train", "run.toml", "--parallel.pipeline=9"))
        self.expect(self.holdfast("check", "run.toml", "--parallel.pipeline=9"))

    def test_too_many_microbatches(self):
        self.expect(self.holdfast("check", "run.toml", "--parallel.pipeline=2", "--parallel.lanes=65536",
                                  "--training.microbatches_per_lane=65536"))

    def test_chunks_without_interleaving(self):
        self.expect(self.mpirun(2, "train", "run.toml", "--parallel.pipeline=2", "--parallel.pipeline_chunks=2"))
        self.expect(self.holdfast("check", "run.toml", "--parallel.pipeline=2", "--parallel.pipeline_chunks=2"))

    def test_no_cuda(self):
        nowhere = {"HOLDFAST_CUDA_MODULE": str(self.folder / "libholdfast_cuda.so")}
        self.expect_nothing_made(self.train("--device=cuda", environment=nowhere))
        self.expect(self.holdfast("check", "run.toml", "--device=cuda", environment=nowhere))

    def test_no_gpu(self):
        self.expect_nothing_made(self.train("--device=cuda", environment={**EMULATED, "EMULATED_GPUS": "0"}))
        self.assertEqual(self.train(environment={**EMULATED, "EMULATED_GPUS": "0"}).returncode, 0, "auto takes the CPU")
        for words in (["step", "run.toml"], ["op", "add"], ["optimizer"]):
            self.expect(self.holdfast("bench", *words, "--device=cuda", environment={**EMULATED, "EMULATED_GPUS": "0"}))

    def test_io_uring_forbidden(self):
        self.expect_nothing_made(self.without_io_uring("train", "run.toml", "--checkpoint.io=io_uring"))
        self.expect(self.without_io_uring("check", "run.toml", "--checkpoint.io=io_uring"))
        auto = self.without_io_uring("train", "run.toml")
        self.assertEqual(auto.returncode, 0, auto.stdout)
        self.assertIn("holdfast: checkpoints go through threads, because io_uring cannot be used: Operation not permitted, as in "
                      "most containers\n", auto.stdout)
        self.assertNotIn("also reference", self.holdfast("check").stdout)
        self.assertIn("also reference", self.holdfast("check", "--kernels").stdout)
        self.assertRegex(self.without_io_uring("check").stdout, r"io_uring +no +Operation not permitted, as in most containers: ")

    def test_unknown_bench_device(self):
        self.expect(self.holdfast("bench", "op", "add", "--device=gpu"))

    def test_driver_too_old(self):
        old = {**EMULATED, "EMULATED_GPU_DRIVER": "12040"}
        self.expect_nothing_made(self.train("--device=cuda", environment=old))
        self.expect(self.holdfast("check", "run.toml", "--device=cuda", environment=old))

    def test_gpu_without_kernels(self):
        other = {**EMULATED, "EMULATED_GPU_NO_IMAGE": "1"}
        self.expect_nothing_made(self.train("--device=cuda", environment=other))
        self.expect_nothing_made(self.mpirun(2, "train", "run.toml", "--device=cuda", environment=other))
        # mpirun kills the other rank, which the guard takes for a death: no flight record is the first file of a run.
        slow = {**other, "HOLDFAST_FAULTS": "end.before_exit:1=sleep:20000"}
        self.expect_nothing_made(self.mpirun(2, "train", "run.toml", "--device=cuda", environment=slow))
        self.expect(self.holdfast("check", "run.toml", "--device=cuda", environment=other))
        chosen = self.train(environment=other)
        self.assertEqual(chosen.returncode, 0)
        self.assertIn('device = "auto" is the CPU: emulated device (GPU 0, compute capability 8.0) does not run', chosen.stdout)

    def test_no_gpu_to_sample_on(self):
        self.saved_run()
        nowhere = {**EMULATED, "EMULATED_GPUS": "0"}
        self.expect(self.holdfast("sample", "run", "--device=cuda", environment=nowhere))
        self.expect(self.holdfast("evaluate", "run", "--data", "text.txt", "--device=cuda", environment=nowhere))
        self.assertEqual(self.holdfast("sample", "run", "--tokens=1", environment=nowhere).returncode, 0, "auto takes the CPU")

    def test_device_changed(self):
        self.saved_run()
        self.expect(self.train("--training.steps=6", "--device=cuda", environment=EMULATED))
        self.assertEqual(self.train("--training.steps=6", environment=EMULATED).returncode, 0)

    def test_unknown_kernel(self):
        self.expect_nothing_made(self.train("--kernels.rotary=refernce"))
        self.expect(self.holdfast("check", "run.toml", "--kernels.rotary=refernce"))

    def test_kernel_out_of_reach(self):
        self.expect_nothing_made(self.train("--kernels.isa=portable", "--kernels.rotary=avx512"))
        self.expect(self.holdfast("check", "run.toml", "--kernels.isa=portable", "--kernels.rotary=avx512"))

    def test_plan_without_gpu(self):
        self.expect_nothing_made(self.train("--device=cpu", "--kernels.plan=products.plan"))

    def test_plan_missing(self):
        self.expect(self.train("--device=cuda", "--kernels.plan=products.plan", environment=EMULATED))

    def test_no_plan(self):
        (self.folder / "products.plan").write_text("m 8 n 8\n")
        self.expect(self.train("--device=cuda", "--kernels.plan=products.plan", environment=EMULATED))

    def test_small_vocabulary(self):
        self.expect_nothing_made(self.train("--model.vocabulary=100"))
        self.expect(self.holdfast("check", "run.toml", "--model.vocabulary=100"))

    # The data

    def train_on(self, path, data_format="llmc", *words):
        return self.train(f'--data.sources=[{{path = "{path}", format = "{data_format}"}}]', "--model.vocabulary=50257", *words)

    def test_data_missing(self):
        (self.folder / "text.txt").unlink()
        self.expect_nothing_made(self.mpirun(2, "train", "run.toml"))
        self.expect(self.holdfast("check", "run.toml"))

    def test_data_gone(self):
        self.saved_run()
        (self.folder / "text.txt").unlink()
        self.expect(self.mpirun(2, "train", "run.toml", "--training.steps=6", "--elastic.input_timeout=1s"))

    def test_data_is_directory(self):
        self.expect_nothing_made(self.train_on(".", "text"))

    def test_data_empty(self):
        (self.folder / "text.txt").write_bytes(b"")
        self.expect_nothing_made(self.train())

    def test_data_too_short(self):
        self.expect_nothing_made(self.train("--training.sequence_length=4000"))

    def test_data_truncated(self):
        token_file(self.folder / "tokens.bin", range(1000), count=2000)
        self.expect_nothing_made(self.train_on("tokens.bin"))

    def test_data_without_header(self):
        (self.folder / "tokens.bin").write_bytes(struct.pack("<3i", 20240520, 1, 1000))
        self.expect_nothing_made(self.train_on("tokens.bin"))

    def test_data_foreign(self):
        token_file(self.folder / "tokens.bin", range(1000), magic=20240326)
        self.expect_nothing_made(self.train_on("tokens.bin"))

    def test_data_version(self):
        token_file(self.folder / "tokens.bin", range(1000), version=2)
        self.expect_nothing_made(self.train_on("tokens.bin"))

    def test_data_format(self):
        self.expect_nothing_made(self.train_on("text.txt", "llmcc"))

    def megatron_set(self, tokens, stored=None, code=8):
        """set.bin with `tokens`, of which the index says one document; `stored` of them are there."""
        index = b"MMIDIDX\0\0" + struct.pack("<QBQQiqqq", 1, code, 1, 2, len(tokens), 0, 0, 1)
        (self.folder / "set.idx").write_bytes(index)
        (self.folder / "set.bin").write_bytes(struct.pack(f"<{len(tokens)}H", *tokens)[:stored])

    def test_megatron_half(self):
        self.megatron_set(range(1000))
        (self.folder / "set.bin").unlink()
        self.expect_nothing_made(self.train_on("set.idx", "megatron"))

    def test_megatron_index(self):
        self.megatron_set(range(1000), stored=1990)
        self.expect_nothing_made(self.train_on("set.bin", "megatron"))

    def test_megatron_floats(self):
        self.megatron_set(range(1000), code=7)
        self.expect_nothing_made(self.train_on("set", "megatron"))

    def test_llmq_version(self):
        (self.folder / "tokens.bin").write_bytes((b"BIN.TOK\n" + struct.pack("<5i", 3, 4, 0, 256, 0)).ljust(1024, b"*"))
        self.expect_nothing_made(self.train_on("tokens.bin", "llmq"))

    def test_vocabulary_unknown(self):
        self.megatron_set(range(1000))
        self.expect_nothing_made(self.train('--data.sources=[{path = "set", format = "megatron"}]'))

    def test_vocabulary_disagreed(self):
        token_file(self.folder / "tokens.bin", range(1000))
        self.expect_nothing_made(self.train('--data.sources=[{path = "text.txt"}, {path = "tokens.bin", format = "llmc"}]'))

    def test_no_documents(self):
        self.expect_nothing_made(self.train("--data.document_mask=true"))

    def test_documents_of_another_tokenizer(self):
        token_file(self.folder / "tokens.bin", range(1000))
        words = ['--data.sources=[{path = "tokens.bin", format = "llmc"}]', "--model.vocabulary=4000", "--data.document_mask=true"]
        self.expect_nothing_made(self.train(*words))
        self.expect(self.holdfast("check", "run.toml", *words))

    def test_document_token_too_large(self):
        self.expect_nothing_made(self.train("--data.document_mask=true", "--data.document_begin=9999999"))

    def test_documents_not_marked(self):
        token_file(self.folder / "tokens.bin", range(1000))
        words = ['--data.sources=[{path = "tokens.bin", format = "llmc"}]', "--data.document_mask=true"]
        self.expect(self.train(*words))
        self.expect(self.holdfast("check", "run.toml", *words))

    def test_source_repeated(self):
        self.expect(self.holdfast("check", "run.toml", "--training.steps=1000"))

    def test_validation_too_small(self):
        self.expect_nothing_made(self.train("--data.validation_fraction=0.001", "--evaluation.every_steps=2"))

    def test_nothing_to_train_on(self):
        # The seed that holds back the first of each two samples; the text has one sample of this length.
        for seed in range(8):
            outcome = self.train("--training.sequence_length=3799", "--data.validation_fraction=0.5",
                                 f"--data.validation_seed={seed}", "--training.microbatch_size=1", "--training.steps=1",
                                 f"--run.directory=run-{seed}")
            if outcome.returncode != 0:
                return self.expect(outcome)
        self.fail("no seed of 8 holds back the first sample")

    def test_token_too_large(self):
        token_file(self.folder / "tokens.bin", [1] * 32 + [60000])
        self.expect(self.train_on("tokens.bin"))
        self.assertFalse((self.run_directory / "checkpoints").exists())

    def test_data_changed(self):
        self.saved_run()
        with (self.folder / "text.txt").open("ab") as data:
            data.write(b"more")
        self.expect(self.mpirun(2, "train", "run.toml", "--training.steps=6"))

    def test_replay_data_changed(self):
        self.saved_run()
        self.start(["sed", "-i", "s/ABC/ABD/g", "text.txt"], self.folder)
        self.expect(self.mpirun(2, "replay", "run", "--step=3"))

    def test_replay_data_differs(self):
        shutil.rmtree(self.saved_run() / "checkpoints")
        self.start(["sed", "-i", "s/ABC/ABD/g", "text.txt"], self.folder)
        self.expect(self.holdfast("replay", "run", "--step=3"))

    def test_held_out_too_short(self):
        (self.folder / "held_out.txt").write_bytes(b"x" * 20)
        self.expect_nothing_made(self.train("--evaluation.every_steps=2", '--evaluation.sources=[{path = "held_out.txt"}]'))

    def test_evaluate_too_short(self):
        self.saved_run()
        (self.folder / "short.txt").write_bytes(b"short")
        self.expect(self.holdfast("evaluate", "run", "--data", "short.txt"))

    # The run directory and its checkpoints

    def test_unwritable_run_directory(self):
        self.expect(self.mpirun(2, "train", "run.toml", "--run.directory=text.txt/run"))

    def test_run_directory_of_the_kernel(self):
        self.expect(self.mpirun(2, "train", "run.toml", "--run.directory=/proc/run"))

    def test_run_directory_in_use(self):
        command = [PROGRAM, "train", "run.toml", "--training.steps=1000000000", "--log.every_steps=1000000000"]
        first = subprocess.Popen(command, cwd=self.folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            while not (self.run_directory / "checkpoints").exists():
                self.assertIsNone(first.poll())
                time.sleep(0.05)
            outcome = self.mpirun(2, "train", "run.toml")
        finally:
            first.send_signal(signal.SIGUSR2)
            self.assertEqual(first.wait(PATIENCE_S), 75)
        self.expect(outcome)
        self.assertIn(f"host {os.uname().nodename} pid {first.pid}", outcome.stdout)

    def test_run_directory_taken_over(self):
        words = ["train", "run.toml", "--training.steps=1000000000", "--log.every_steps=1000000000", "--checkpoint.keep=2"]
        with open(self.folder / "out", "w+", encoding="utf-8") as out:
            first = subprocess.Popen([PROGRAM, *words], cwd=self.folder, stdout=out, stderr=subprocess.STDOUT)
            try:
                self.take_over_and_wait(first)
            finally:
                first.kill()
                first.wait()
            out.seek(0)
            self.expect(subprocess.CompletedProcess(words, first.returncode, out.read()))
        self.assertEqual(json.loads((self.run_directory / "status.json").read_text())["state"], "running")
        self.assertNotIn('"finish"', (self.run_directory / "events.jsonl").read_text())

    def take_over_and_wait(self, first):
        """As another host does when it has not heard of the first one for its lease; no checkpoint comes or goes from then on."""
        self.take_over(first, "lock")
        checkpoints = None
        while first.poll() is None:
            time.sleep(0.3)  # the one that was published right then may have been looked at before
            now = {path.name for path in (self.run_directory / "checkpoints").iterdir()}
            self.assertTrue(checkpoints is None or now == checkpoints, f"{checkpoints} became {now}")
            checkpoints = now

    def take_over(self, first, lock):
        while not any((self.run_directory / "checkpoints").glob("step-*")):
            self.assertIsNone(first.poll())
            time.sleep(0.05)
        claim = self.run_directory / "claim"
        claim.write_text("host elsewhere pid 1\nhost_id elsewhere@1\nepoch 9\nclaim 1\nrenewals 0\n")
        claim.rename(self.run_directory / lock)

    def test_launch_taken_over(self):
        words = ["launch", "-np", "1", "run.toml", "--training.steps=1000000000", "--log.every_steps=1000000000"]
        with open(self.folder / "out", "w+", encoding="utf-8") as out:
            first = subprocess.Popen([PROGRAM, *words], cwd=self.folder, stdout=out, stderr=subprocess.STDOUT)
            try:
                self.take_over(first, "launch/lock")
                harness.kill(int((self.run_directory / "lock").read_text().split()[3]), signal.SIGKILL)
                first.wait(PATIENCE_S)
            finally:
                first.kill()
                first.wait()
            out.seek(0)
            self.expect(subprocess.CompletedProcess(words, first.returncode, out.read()))

    def in_namespace(self, mounting, script, as_root=True):
        """Runs it with mounts of its own, which go with the namespace."""
        if shutil.which("unshare") is None:
            harness.skip("there is no unshare to mount anything with")
        outcome = self.start(["unshare", "--mount", *(["--map-root-user"] if as_root else []), "sh", "-c",
                              f"{{ {mounting}; }} || exit 99\n{script}"], self.folder)
        if outcome.returncode == 99 or outcome.stdout.startswith("unshare:"):
            harness.skip(f"nothing can be mounted here: {outcome.stdout.strip()}")
        return outcome

    def on_small_disk(self, script):
        """Runs it with 1 MiB mounted at disk/."""
        (self.folder / "disk").mkdir()
        return self.in_namespace("mount -t tmpfs -o size=1m tmpfs disk", script)

    def test_run_directory_trouble(self):
        self.expect(self.on_small_disk(f"""
            cat /dev/zero > disk/fill 2>/dev/null
            '{PROGRAM}' train run.toml --run.directory=disk/run"""))

    def test_save_failed(self):
        # The disk is full at the first save and has room again, while the run sleeps, for those behind step 20.
        outcome = self.on_small_disk(f"""
            '{PROGRAM}' train run.toml --run.directory=disk/run --training.steps=2 || exit 98
            cat /dev/zero > disk/fill 2>/dev/null; truncate -s -64K disk/fill
            (while ! grep -q 'could not be saved' log && [ ! -e ended ]; do sleep 0.01; done; rm disk/fill) &
            HOLDFAST_FAULTS=step.begin@20=sleep:3500 \\
                '{PROGRAM}' train run.toml --run.directory=disk/run --training.steps=30 > log 2>&1; code=$?; touch ended
            cat log; '{PROGRAM}' verify disk/run; exit $code""")
        self.expect(outcome)
        self.assertIn("whole    disk/run/checkpoints/step-00000030", outcome.stdout)

    @harness.full
    def test_upload_failed(self):
        self.expect(self.train("--checkpoint.every_steps=0", "--checkpoint.upload_shard_command=echo no route to host; exit 6"))

    @harness.full
    def test_log_waits(self):
        # Not a byte is free while some twenty steps are made, with saves among them: the log fills its last page, in the middle of a
        # line, and stands still. A second time nobody can hear of it. With verdicts a save would keep its place for a step longer, until
        # its state is checked, and give it back when the log has filled the disk.
        slow_steps = ",".join(f"step.begin@{hit}=sleep:120" for hit in range(1, 39))
        outcome = self.on_small_disk(f"""
            run() {{
                log=disk/$1/events.jsonl
                options="--run.directory=disk/$1 --verdict.preset=off"
                '{PROGRAM}' train run.toml $options --training.steps=2 || exit 98
                HOLDFAST_FAULTS={slow_steps} '{PROGRAM}' train run.toml $options --training.steps=40 > said 2> $2 & pid=$!
                while [ ! -e disk/$1/checkpoints/step-00000004 ]; do sleep 0.01; kill -0 $pid || exit 97; done
                until stands_still; do kill -0 $pid || exit 96; done
                rm disk/fill; wait $pid; code=$?; cp -r disk/$1 .; rm -r disk/$1
            }}
            stands_still() {{  # a save that was on its way when the disk was filled gives back what it had
                cat /dev/zero >> disk/fill 2>/dev/null; sleep 0.01
                size=$(stat -c %s $log)
                [ $((size % $(getconf PAGE_SIZE))) = 0 ] && sleep 0.5 && [ $(stat -c %s $log) = $size ]
            }}
            run deaf /dev/full; [ $code = 0 ] || exit 95
            run run complaints; cat complaints
            exit $code""")
        self.expect(outcome)
        for steps in (2, 40):
            self.assertEqual(self.train("--run.directory=straight", f"--training.steps={steps}").returncode, 0)
        for run in ("run", "deaf"):
            events = [json.loads(line) for line in (self.folder / run / "events.jsonl").read_text().splitlines()]
            self.assertEqual([event["step"] for event in events if event["event"] == "step"], list(range(1, 41)))
            self.assertEqual(events[-1]["event"], "finish")
            self.assertEqual(self.holdfast("digest", run).stdout, self.holdfast("digest", "straight").stdout)

    def test_log_stands_still(self):
        # A pipe that nobody reads has its place from step 3 on, until the run has said so. Then it gets its place back, and the line
        # that stood still is read.
        outcome = self.start(["sh", "-c", f"""
            HOLDFAST_FAULTS=step.begin@3=sleep:1500,step.begin@4=sleep:3500,step.begin@5=sleep:3500,step.begin@6=sleep:3500,step.begin@7=sleep:3500 \\
                '{PROGRAM}' train run.toml --training.steps=8 > log 2>&1 & pid=$!
            while ! grep -qs '"step":2,' run/events.jsonl; do sleep 0.01; done
            mv run/events.jsonl aside; mkfifo run/events.jsonl
            while ! grep -qs 'does not respond' log; do kill -0 $pid || exit 97; sleep 0.01; done
            mv run/events.jsonl pipe; mv aside run/events.jsonl; cat pipe > line
            wait $pid; code=$?; cat log; exit $code"""], self.folder)
        self.expect(outcome)
        stood_still = json.loads((self.folder / "line").read_text())
        events = [json.loads(line) for line in (self.folder / "run/events.jsonl").read_text().splitlines()]
        steps = [event["step"] for event in [stood_still, *events] if event["event"] == "step"]
        self.assertEqual(sorted(steps), list(range(1, 9)))
        self.assertEqual(events[-1]["event"], "finish")

    def test_log_is_link(self):
        self.saved_run()
        log, elsewhere = self.folder / "run/events.jsonl", self.folder / "elsewhere"
        before = log.read_text()
        log.rename(elsewhere)
        log.symlink_to(elsewhere)
        self.expect(self.train("--training.steps=8"))
        self.assertEqual(elsewhere.read_text(), before)

    def test_log_part_missing(self):
        self.assertEqual(self.train("--training.steps=20", "--log.rotate_bytes=2000").returncode, 0)
        parts = sorted(self.run_directory.glob("events-*.jsonl"))
        self.assertGreater(len(parts), 2)
        parts[1].unlink()
        outcome = self.holdfast("report", "run")
        self.expect(outcome)
        self.assertIn("report.html", outcome.stdout)

    def test_log_incomplete(self):
        # Something else has its place from step 3 on.
        outcome = self.start(["sh", "-c", f"""
            HOLDFAST_FAULTS=step.begin@3=sleep:1000 '{PROGRAM}' train run.toml > log 2>&1 & pid=$!
            while ! grep -qs '"step":2,' run/events.jsonl; do sleep 0.01; done
            mv run/events.jsonl aside; mkdir run/events.jsonl
            wait $pid; code=$?; cat log; '{PROGRAM}' verify run; exit $code"""], self.folder)
        self.expect(outcome)
        self.assertIn("whole    run/checkpoints/step-00000004", outcome.stdout)

    def test_disk_full(self):
        # 40 KiB are left when the second checkpoint is due.
        outcome = self.on_small_disk(f"""
            '{PROGRAM}' train run.toml --run.directory=disk/run --training.steps=2 || exit 98
            cat /dev/zero > disk/fill 2>/dev/null; truncate -s -40K disk/fill
            '{PROGRAM}' train run.toml --run.directory=disk/run --elastic.input_timeout=1s; code=$?
            '{PROGRAM}' verify disk/run; ls disk/run/checkpoints
            exit $code""")
        self.expect(outcome)
        self.assertIn("whole    disk/run/checkpoints/step-00000002", outcome.stdout)
        self.assertTrue(outcome.stdout.endswith("step-00000002\n"), outcome.stdout)

    def test_save_unfit(self):
        self.expect(self.mpirun(2, "train", "run.toml", "--training.steps=6",
                                environment={"HOLDFAST_FAULTS": "save.before_shard@2:1=error:EACCES:always"}))

    def damage_newest(self, run):
        shard = newest(run) / "shard-00000.hfs"
        flip_byte(shard, shard.stat().st_size // 3)

    def test_checkpoint_damaged(self):
        self.damage_newest(self.saved_run())
        self.expect(self.mpirun(2, "train", "run.toml", "--training.steps=6"))
        events = [json.loads(line) for line in (self.run_directory / "events.jsonl").read_text().splitlines()]
        starts = [event for event in events if event["event"] == "start"]
        self.assertEqual(starts[-1]["resumed_from_step"], 2)

    def test_checkpoint_truncated(self):
        shard = newest(self.saved_run()) / "shard-00000.hfs"
        os.truncate(shard, shard.stat().st_size - 100)
        self.expect(self.train("--training.steps=6"))

    def test_checkpoint_shard_missing(self):
        (newest(self.saved_run()) / "shard-00000.hfs").unlink()
        self.expect(self.train("--training.steps=6"))

    def test_checkpoint_foreign_shard(self):
        shard = newest(self.saved_run()) / "shard-00000.hfs"
        shard.write_bytes(b"x" * shard.stat().st_size)
        self.expect(self.train("--training.steps=6"))

    def test_checkpoint_foreign_manifest(self):
        (newest(self.saved_run()) / "manifest.json").write_text('{"format": "another program"}\n')
        self.expect(self.train("--training.steps=6"))

    def test_checkpoint_shard_of_another_run(self):
        run = self.saved_run()
        self.assertEqual(self.train("--run.directory=other").returncode, 0)
        shutil.copy(newest(self.folder / "other") / "shard-00000.hfs", newest(run) / "shard-00000.hfs")
        self.expect(self.train("--training.steps=6"))

    def test_checkpoint_of_the_future(self):
        rewrite_manifest(newest(self.saved_run()), holdfast_manifest=3)
        self.expect(self.train("--training.steps=6"))

    def test_shard_of_the_future(self):
        shard = newest(self.saved_run()) / "shard-00000.hfs"
        content = bytearray(shard.read_bytes())
        content[8:12] = struct.pack("<I", 3)
        content[4092:4096] = struct.pack("<I", crc32c(content[:4092]))
        shard.write_bytes(content)
        self.expect(self.train("--training.steps=6"))

    def test_no_ram_snapshots(self):
        def in_little_memory(*words):
            return self.in_namespace("mount -t tmpfs -o size=128k tmpfs /dev/shm",
                                     f"'{PROGRAM}' {' '.join(words)} --checkpoint.ram_every_steps=1")
        self.expect(in_little_memory("train", "run.toml"))
        self.assertRegex(in_little_memory("check", "run.toml").stdout,
                         r"RAM snapshot no: the run goes on without them; .* of /dev/shm .*, 128.00 KiB free here; make it larger")

    def test_ram_snapshots_go_at_logout(self):
        if os.getuid() != 0:
            self.skipTest("only root can be another user, who has a session")
        user = 54321
        self.folder.chmod(0o777)
        outcome = self.in_namespace(f"mount -t tmpfs tmpfs /run && mkdir -p /run/systemd/users && touch /run/systemd/users/{user}",
                                    f"setpriv --reuid={user} --clear-groups '{PROGRAM}' check run.toml --checkpoint.ram_every_steps=1",
                                    as_root=False)
        if outcome.returncode in (126, 127):
            self.skipTest(f"the other user cannot run the program: {outcome.stdout.strip()}")
        self.expect(outcome)

    def test_ram_snapshot_damaged(self):
        # Killed in its fourth step, a run leaves one snapshot and nothing else. The second byte of tensors in it is changed.
        train = f"'{PROGRAM}' train run.toml --checkpoint.every_steps=0 --checkpoint.ram_every_steps=2"
        outcome = self.in_namespace("mount -t tmpfs tmpfs /dev/shm", f"""
            HOLDFAST_FAULTS=step.begin@4=kill {train} >log 2>&1; [ $? = 137 ] || {{ cat log; exit 98; }}
            own=/dev/shm/holdfast-$(id -u)
            for slot in $(ls --ignore='holdfast-board-*' $own); do printf x | dd of="$own/$slot" bs=1 seek=4097 conv=notrunc status=none; done
            {train}; code=$?; ls --ignore=holdfast-board-* $own; exit $code""")
        self.expect(outcome)
        self.assertNotIn("\nholdfast-", outcome.stdout, "snapshots are left behind")

    def test_all_checkpoints_damaged(self):
        run = self.saved_run()
        for checkpoint in (run / "checkpoints").iterdir():
            (checkpoint / "manifest.json").write_text("{}")
        before = sorted(str(path) for path in (run / "checkpoints").rglob("*"))
        self.expect(self.mpirun(2, "train", "run.toml", "--training.steps=6"))
        self.assertEqual(before, sorted(str(path) for path in (run / "checkpoints").rglob("*")))

    def test_verify_damaged(self):
        self.damage_newest(self.saved_run())
        self.expect(self.holdfast("verify", "run"))

    def test_checkpoint_of_another_model(self):
        self.saved_run()
        self.expect(self.mpirun(2, "train", "run.toml", "--model.layers=2", "--run.seed=7"))

    def test_forbidden_by_environment(self):
        self.saved_run()
        self.expect(self.train(environment={"HOLDFAST_MODEL_LAYERS": "3"}))

    def test_numeric_change(self):
        self.saved_run()
        self.expect(self.train("--training.steps=6", "--optimizer.learning_rate=1e-4"))

    def test_recut_too_many_slices(self):
        self.saved_run()
        self.expect(self.train("--training.steps=6", "--parallel.tensor_lanes=8"))

    def test_recut_too_few_lanes(self):
        self.saved_run()
        self.expect(self.mpirun(2, "train", "run.toml", "--training.steps=6", "--parallel.lanes=1"))

    def test_lineage_damaged(self):
        self.saved_run()
        (self.folder / "run" / "lineage.json").write_text("[1]")
        self.expect(self.train())

    def test_hardware_record_damaged(self):
        self.saved_run()
        record = self.folder / "run" / "hardware.json"
        record.write_text("[1]")
        self.expect(self.train("--training.steps=5"))
        self.assertEqual(json.loads(record.read_text()), {"devices": []})

    def test_run_id_damaged(self):
        self.saved_run()
        (self.folder / "run" / "run_id").write_text("x;reboot")
        self.expect(self.train("--training.steps=5"))
        self.expect(self.holdfast("clean", "run"))
        self.expect(self.holdfast("launch", "-np", "1", "run.toml", "--training.steps=5"))

    def test_file_too_long(self):
        self.saved_run()
        manifest = newest(self.folder / "run") / "manifest.json"
        os.truncate(manifest, 300_000_000)
        self.expect(self.holdfast("inspect", "run/checkpoints/" + manifest.parent.name))

    def test_file_is_pipe(self):
        self.saved_run()
        manifest = newest(self.folder / "run") / "manifest.json"
        manifest.unlink()
        os.mkfifo(manifest)
        self.expect(self.holdfast("inspect", "run/checkpoints/" + manifest.parent.name))

    def test_only_discarded(self):
        self.saved_run()
        checkpoints = self.folder / "run" / "checkpoints"
        self.train(f"--run.resume={checkpoints / 'step-00000002'}", "--optimizer.learning_rate=1e-4",
                   environment={"HOLDFAST_FAULTS": "step.before_vote@1=kill"})
        shutil.rmtree(checkpoints / "step-00000002")
        self.expect(self.train())

    def run_of_two_generations(self):
        """Its checkpoints are those of steps 6 and 8, of the second one, which began after step 4."""
        self.saved_run()
        self.train("--optimizer.learning_rate=1e-4", "--training.steps=8")
        for step in (2, 4):
            shutil.rmtree(self.run_directory / f"checkpoints/step-{step:08}", ignore_errors=True)

    def test_replay_without_state(self):
        self.run_of_two_generations()
        self.expect(self.holdfast("replay", "run", "--step=5"))

    def test_replay_without_settings(self):
        self.run_of_two_generations()
        self.expect(self.holdfast("replay", "run", "--step=3"))

    def test_resume_must(self):
        self.expect_nothing_made(self.train("--run.resume=must"))

    def test_download_must(self):
        self.expect(self.train("--run.resume=must", "--checkpoint.download_command=exit 0"))

    def fetching(self):
        """A download_command for a copy of a run's newest checkpoint, which is no longer in the run directory."""
        self.saved_run().rename(self.folder / "elsewhere")
        return f"--checkpoint.download_command=cp {newest(self.folder / 'elsewhere')}/* \"$HOLDFAST_DOWNLOAD/\""

    def expect_not_kept(self, outcome):
        self.expect(outcome)
        self.assertEqual([], [*self.run_directory.glob("checkpoints/*"), *self.run_directory.glob(".pending/*")])

    def test_download_damaged(self):
        fetching = self.fetching()
        flip_byte(newest(self.folder / "elsewhere") / "shard-00000.hfs", 5000)
        self.expect_not_kept(self.mpirun(2, "train", "run.toml", fetching))

    def test_download_foreign(self):
        self.expect_not_kept(self.train(self.fetching(), "--run.seed=7"))

    def test_download_other_run(self):
        fetching = self.fetching()
        lineage = (self.folder / "elsewhere" / "lineage.json").read_text()
        self.run_directory.mkdir()
        (self.run_directory / "lineage.json").write_text(lineage.replace(json.loads(lineage)["run_id"], "0" * 32))
        self.expect_not_kept(self.train(fetching))

    def test_download_no_shard(self):
        fetching = self.fetching()
        shard = newest(self.folder / "elsewhere") / "shard-00000.hfs"
        shard.write_text("x" * shard.stat().st_size)
        self.expect_not_kept(self.train(fetching))

    def test_download_more(self):
        fetching = self.fetching()
        (newest(self.folder / "elsewhere") / "latest").symlink_to("/etc/hostname")
        self.expect(self.train(fetching.replace("=cp ", "=cp -a ")))
        self.assertEqual([], [*self.run_directory.glob("checkpoints/*/latest")])

    def test_upload_link(self):
        self.saved_run()
        (newest(self.run_directory) / "notes").symlink_to("/etc/hostname")
        self.expect(self.train("--checkpoint.upload_command=true"))

    def test_download_failed(self):
        self.expect_not_kept(self.mpirun(2, "train", "run.toml", "--checkpoint.download_command=echo no route to host; exit 6"))

    def test_replay_stream(self):
        self.saved_run()
        config = self.run_directory / "config.toml"
        told = config.read_text()
        for stream in ('path = "/dev/zero"', 'path = "text.txt", tokenizer = "/dev/zero"'):
            config.write_text(re.sub(r'path = "[^"]*"', stream, told))
            self.expect(self.holdfast("replay", "run", "--step", "3"))

    def test_resume_never(self):
        self.saved_run()
        self.expect(self.train("--run.resume=never"))

    def test_resume_from_nothing(self):
        self.expect_nothing_made(self.train("--run.resume=elsewhere"))

    def test_resume_another_run(self):
        self.saved_run()
        self.train("--run.directory=other")
        self.expect(self.train("--run.directory=other", "--run.resume=run"))

    def test_initialize_from_nothing(self):
        self.expect_nothing_made(self.train("--run.initialize_from=elsewhere"))

    def test_initialize_from_other_model(self):
        self.saved_run()
        self.expect(self.train("--run.directory=other", "--run.initialize_from=run", "--model.heads=4"))

    def test_initialize_from_other_adapters(self):
        self.train("--lora.rank=2")
        self.expect(self.train("--run.directory=other", "--run.initialize_from=run"))

    def foreign(self, **changes):
        """A small Llama in the folder `theirs`; changes to its config.json."""
        tensors, config = foreign_model.random_llama()
        return foreign_model.write_folder(self.folder / "theirs", tensors, {**config, **changes}), tensors

    def test_resume_imported(self):
        self.foreign()
        self.assertEqual(self.holdfast("import", "theirs", "imported").returncode, 0)
        self.expect(self.train("--run.directory=imported"))
        self.expect(self.train("--run.resume=imported"))

    def test_export_target_exists(self):
        self.saved_run()
        self.expect(self.holdfast("export", "run", "text.txt"))

    def test_export_not_expressible(self):
        self.saved_run()
        self.expect(self.holdfast("export", "run", "model.bin", "--format=llmc"))
        self.assertFalse((self.folder / "model.bin").exists())

    def test_import_target_exists(self):
        self.saved_run()
        self.foreign()
        self.expect(self.holdfast("import", "theirs", "run"))

    def expect_refused_import(self, source="theirs"):
        self.expect(self.holdfast("import", source, "imported"))
        self.assertFalse((self.folder / "imported").exists(), "an import that was refused left a directory")

    def test_import_missing(self):
        self.expect_refused_import()

    def test_import_foreign(self):
        self.expect_refused_import("text.txt")

    def test_import_unknown_architecture(self):
        self.foreign(model_type="mamba")
        self.expect_refused_import()

    def test_import_not_computed(self):
        self.foreign(attention_bias=True)
        self.expect_refused_import()

    def test_import_rope_scaling(self):
        self.foreign(rope_scaling={"rope_type": "yarn", "factor": 8.0})
        self.expect_refused_import()
        self.assertEqual(self.holdfast("import", "theirs", "imported", "--rope-scaling", "drop").returncode, 0)

    def test_import_impossible_shape(self):
        self.foreign(num_attention_heads=3, num_key_value_heads=3)
        self.expect_refused_import()

    def test_import_pickle(self):
        folder, _ = self.foreign()
        (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
        self.expect_refused_import()

    def test_import_damaged(self):
        folder, _ = self.foreign()
        os.truncate(folder / "model.safetensors", (folder / "model.safetensors").stat().st_size - 4)
        self.expect_refused_import()

    def rewrite_weights(self, folder, tensors, name="model.safetensors"):
        (folder / name).write_bytes(foreign_model.safetensors_bytes(tensors, {"format": "pt"}))

    def test_import_tensor_missing(self):
        folder, tensors = self.foreign()
        del tensors["model.norm.weight"]
        self.rewrite_weights(folder, tensors)
        self.expect_refused_import()

    def test_import_tensor_unknown(self):
        folder, tensors = self.foreign()
        tensors["model.layers.0.self_attn.q_norm.weight"] = tensors["model.norm.weight"]
        self.rewrite_weights(folder, tensors)
        self.expect_refused_import()

    def test_import_index(self):
        folder, tensors = self.foreign()
        (folder / "model.safetensors").rename(folder / "one.safetensors")
        self.rewrite_weights(folder, {"lm_head.extra": tensors["model.norm.weight"]}, "other.safetensors")
        places = dict.fromkeys(tensors, "one.safetensors")
        places["model.norm.weight"] = "other.safetensors"
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
        self.expect_refused_import()

    def test_import_llmc_truncated(self):
        self.assertEqual(self.train("--model.style=gpt2").returncode, 0)
        self.assertEqual(self.holdfast("export", "run", "model.bin", "--format=llmc").returncode, 0)
        os.truncate(self.folder / "model.bin", (self.folder / "model.bin").stat().st_size - 4)
        self.expect_refused_import("model.bin")

    def test_no_checkpoint(self):
        (self.folder / "empty").mkdir()
        self.expect(self.holdfast("sample", "empty", "--prompt", "x"))
        for command in (["evaluate", "empty", "--data", "text.txt"], ["digest", "empty"], ["verify", "empty"],
                        ["inspect", "empty"], ["diff", "empty", "empty"], ["export", "empty", "target"]):
            self.expect(self.holdfast(*command))

    def test_checkpoint_is_file(self):
        self.expect(self.holdfast("digest", "text.txt"))

    def test_prompt_not_tokens(self):
        self.assertEqual(self.train("--model.vocabulary=300").returncode, 0)
        self.expect(self.holdfast("sample", "run", "--prompt", "hello"))

    def test_sample_no_tokens(self):
        self.expect(self.holdfast("sample", "run", "--tokens=0"))

    def test_sample_top_p(self):
        self.expect(self.holdfast("sample", "run", "--top-p=1.5"))

    @unittest.skipIf(harness.SANITIZED, "a sanitizer takes more of the address space than is left here")
    def test_inference_does_not_fit(self):
        self.assertEqual(self.train("--model.width=64").returncode, 0)
        words = "evaluate run --data text.txt --sequence-length=1048576 --device=cpu"
        self.expect(self.start(["bash", "-c", f"ulimit -v 2000000; exec {PROGRAM} {words}"], self.folder))

    def test_sample_empty_stop(self):
        self.expect(self.holdfast("sample", "run", "--stop=a", "--stop="))

    def test_sample_no_prompts(self):
        (self.folder / "prompts.txt").write_text("\n\r\n")
        self.expect(self.holdfast("sample", "run", "--prompts", "prompts.txt"))

    def test_sample_two_prompts(self):
        self.expect(self.holdfast("sample", "run", "--prompts", "text.txt", "--prompt", "x"))

    def test_report_of_nothing(self):
        self.expect(self.holdfast("report", "elsewhere"))

    def test_report_no_such_incident(self):
        self.saved_run()
        self.expect(self.holdfast("report", "run", "--incident", "3"))

    def test_report_bundle_there(self):
        self.saved_run()
        (self.folder / "there").mkdir()
        self.expect(self.holdfast("report", "run", "--bundle", "there"))

    def test_report_incident_and_bundle(self):
        self.expect(self.holdfast("report", "run", "--incident", "1", "--bundle", "there"))

    def test_events_table_without_kind(self):
        self.saved_run()
        self.expect(self.holdfast("events", "run", "--csv"))

    def test_metrics_without_run(self):
        self.expect(self.holdfast("metrics", "none"))

    def test_metrics_token_seen(self):
        self.saved_run()
        (self.run_directory / "metrics_token").write_text("0" * 64 + "\n")
        self.expect(self.holdfast("metrics", "run", "--token"))

    def test_watch_as_json(self):
        self.saved_run()
        self.expect(self.holdfast("status", "run", "--watch", "--json"))

    def test_stragglers_without_times(self):
        self.assertEqual(self.train().returncode, 0)
        self.expect(self.holdfast("stragglers", "run"))

    def replay(self, text):
        (self.folder / "node7.jsonl").write_text(text)
        self.expect(self.holdfast("health", "--replay", "node7.jsonl"))

    def test_health_recording_cut_short(self):
        reading = '{"time_ms": 1000, "source": "net", "part": "eth0", "name": "is_up", "value": 1}\n'
        self.replay('{"holdfast_health": 1, "host": "node7"}\n' + reading + reading[:-20])

    def test_health_recording_newer(self):
        self.replay('{"holdfast_health": 9, "host": "node7"}\n')

    def test_health_no_recording(self):
        self.replay("May 1 00:00:00 node7 kernel: NVRM: Xid (PCI:0000:18:00): 79\n")

    def test_health_recording_there(self):
        (self.folder / "node7.jsonl").write_text("")
        self.expect(self.holdfast("health", "--record", "node7.jsonl", "--seconds=1"))

    def test_health_replay_and_record(self):
        self.expect(self.holdfast("health", "--replay", "node7.jsonl", "--record", "node8.jsonl"))

    def state_of_hosts(self, text):
        """The environment of a user about whose hosts this is known."""
        book = self.folder / "state/holdfast/hosts.json"
        book.parent.mkdir(parents=True)
        book.write_text(text)
        return {"XDG_STATE_HOME": str(self.folder / "state")}

    def test_hosts_of_another_version(self):
        self.expect(self.holdfast("hosts", environment=self.state_of_hosts('{"version":9,"hosts":[]}')))

    def test_untaint_of_another_host(self):
        self.expect(self.holdfast("untaint", "n7", environment=self.state_of_hosts('{"version":1,"hosts":[]}')))

    def test_preflight_of_two_lists(self):
        self.expect(self.holdfast("preflight", "--host", "a", "--hostfile", "b"))

    def test_preflight_of_a_silent_host(self):
        environment = self.state_of_hosts('{"version":1,"hosts":[]}')
        self.expect(self.holdfast("preflight", "--host", "node7", "--seconds", "1",
                                  environment={**environment, "PRTE_MCA_plm_ssh_agent": "false"}))

    def test_timeline_without_trace(self):
        self.assertEqual(self.train().returncode, 0)
        self.expect(self.holdfast("timeline", "run"))

    def record_steps(self, ranks=1):
        self.assertEqual(self.mpirun(ranks, "train", "run.toml", "--trace.steps=2").returncode, 0)

    def test_timeline_damaged(self):
        self.record_steps()
        path = self.folder / "run/trace/rank-00000.jsonl"
        path.write_text(path.read_text()[:-30])
        self.expect(self.holdfast("timeline", "run"))

    def test_timeline_rank_missing(self):
        self.record_steps(2)
        (self.folder / "run/trace/rank-00001.jsonl").unlink()
        self.expect(self.holdfast("timeline", "run"))

    def test_timeline_unknown_steps(self):
        self.record_steps()
        self.expect(self.holdfast("timeline", "run", "--steps=7..9"))

    def test_timeline_bad_steps(self):
        self.record_steps()
        self.expect(self.holdfast("timeline", "run", "--steps=3-5"))

    def replay_operations(self, *lines):
        header = "step rank replica stage chunk kind begin_s duration_s"
        (self.folder / "operations.tsv").write_text("".join(line.replace(" ", "\t") + "\n" for line in (header, *lines)))
        return self.holdfast("timeline", "--operations", "operations.tsv")

    def test_timeline_operations_damaged(self):
        self.expect(self.replay_operations("5 0 0 0 0 dream 0 1"))

    def test_timeline_operations_half(self):
        self.expect(self.replay_operations("5 0 0 0 0 forward-compute 0 1", "5 0 0 0 0 forward-send 1 1", "5 1 0 1 0 forward-compute 2 1"))

    def write_flight(self, text):
        (self.folder / "run/flight").mkdir(parents=True)
        (self.folder / "run/flight/20260101T000000.000Z-rank-0000.json").write_text(text)

    def test_flight_without_records(self):
        (self.folder / "run").mkdir()
        self.expect(self.holdfast("flight", "run"))

    def test_flight_damaged(self):
        self.write_flight('{"format":1,"rank":0,')
        self.expect(self.holdfast("flight", "run"))

    def test_flight_other_version(self):
        self.write_flight('{"format":99}')
        self.expect(self.holdfast("flight", "run"))

    def test_guard_bad_board(self):
        self.expect(self.holdfast("guard", "../board"))

    def test_guard_without_board(self):
        self.expect(self.holdfast("guard", "no-such-board"))

    def test_shared_memory_open_to_others(self):
        self.expect(self.in_namespace("mount -t tmpfs tmpfs /dev/shm", f"""
            umask 022; mkdir -m 700 /dev/shm/holdfast-$(id -u); echo x > /dev/shm/holdfast-$(id -u)/a-board
            '{PROGRAM}' guard a-board"""))

    def test_lock_is_no_file(self):
        self.run_directory.mkdir()
        lock = self.run_directory / "lock"
        for put, take in ((lambda: os.mkfifo(lock), lock.unlink), (lambda: lock.symlink_to("elsewhere"), lock.unlink),
                          (lock.mkdir, lock.rmdir)):
            put()
            self.expect(self.train())
            take()

    def test_lock_cannot_be_looked_at(self):
        self.run_directory.mkdir()
        os.mkfifo(self.run_directory / "lock")
        self.expect(self.holdfast("save", "run"))
        told = self.holdfast("status", "run")
        self.assertEqual(told.returncode, 0, told.stdout)
        self.assertIn("whether somebody has the run cannot be told: cannot open run/lock: it is a pipe", told.stdout)
        self.assertNotIn("running", json.loads(self.holdfast("status", "run", "--json").stdout))

    # Ranks

    def test_too_many_ranks(self):
        self.expect_nothing_made(self.mpirun(LANES + 1, "train", "run.toml"))

    def test_wrong_rank_count(self):
        self.expect_nothing_made(self.mpirun(2, "train", "run.toml", "--parallel.data=1"))

    def test_ranks_beyond_this_version(self):
        self.expect(self.holdfast("check", "run.toml", "--parallel.data=16385", "--parallel.lanes=16385"))

    def test_tensor_group_across_hosts(self):
        """Each rank as if on a machine of its own, by a namespace for the host's name."""
        if self.start(["sh", "-c", "unshare --uts true"], self.folder).returncode != 0:
            harness.skip("the system gives no namespace for another host name")
        command = 'hostname node-$OMPI_COMM_WORLD_RANK && exec "$0" train run.toml --parallel.tensor=2'
        self.expect(self.start([MPIRUN, "-np", "2", "unshare", "--uts", "sh", "-c", command, PROGRAM], self.folder))

    def test_ranks_differ(self):
        command = 'HOLDFAST_LOG_EVERY_STEPS=$((OMPI_COMM_WORLD_RANK + 1)) exec "$0" train run.toml'
        self.expect(self.start([MPIRUN, "-np", "2", "sh", "-c", command, PROGRAM], self.folder))

    def test_one_rank_without_data(self):
        command = 'test $OMPI_COMM_WORLD_RANK = 0 || cd elsewhere; exec "$0" train "$1"/run.toml'
        (self.folder / "elsewhere").mkdir()
        self.expect(self.start([MPIRUN, "-np", "2", "sh", "-c", command, PROGRAM, str(self.folder)], self.folder))

    def test_gpu_gone(self):
        ranks = ("train", "run.toml", "--device=cuda")
        self.assertEqual(self.mpirun(2, *ranks, environment={**EMULATED, "EMULATED_GPUS": "2"}).returncode, 0)
        self.expect(self.mpirun(2, *ranks, "--training.steps=6", environment={**EMULATED, "EMULATED_GPUS": "1"}))

    def test_rank_lost_no_recovery(self):
        self.expect(self.mpirun(2, "train", "run.toml", "--elastic.in_place=false",
                                environment={"HOLDFAST_FAULTS": "step.before_vote@3:1=kill"}))

    def test_rank_lost(self):
        self.expect(self.mpirun(2, "train", "run.toml", "--parallel.pipeline=2",
                                environment={"HOLDFAST_FAULTS": "step.before_vote@3:1=kill"}))

    def test_rank_hangs_in_pipeline(self):
        # Which microbatch depends on how far MPI was with the one before, whose sender sleeps now.
        self.expect(self.mpirun(2, "train", "run.toml", "--parallel.pipeline=2", "--parallel.timeout=3s", "--elastic.recovery_timeout=1s",
                                "--watchdog.guard=false",
                                environment={"HOLDFAST_FAULTS": "step.before_backward@2:1=sleep:9000"}))

    @harness.full
    def test_rank_hangs_in_layer(self):
        self.expect(self.mpirun(2, "train", "run.toml", "--parallel.tensor=2", "--parallel.timeout=3s", "--elastic.recovery_timeout=1s",
                                "--watchdog.guard=false",
                                environment={"HOLDFAST_FAULTS": "step.before_backward@2:1=sleep:20000"}))

    @harness.full
    def test_step_fails_again(self):
        late = ",".join(f"step.begin@{attempt}:1=sleep:2500" for attempt in range(3, 7))
        self.expect(self.mpirun(2, "train", "run.toml", "--parallel.timeout=1s", "--checkpoint.ram_every_steps=1",
                                environment={"HOLDFAST_FAULTS": late}))

    def test_hang_ended(self):
        """Of a step that has no history: a ceiling that is low enough to wait for would count for the start, too."""
        self.expect(self.mpirun(2, "train", "run.toml", "--watchdog.floor=1s",
                                environment={"HOLDFAST_FAULTS": "step.before_backward@2:1=stop"}))

    def test_no_watchdog(self):
        self.expect(self.in_namespace("mount -t tmpfs -o size=64k tmpfs /dev/shm", f"'{PROGRAM}' train run.toml"))

    def test_shared_memory_taken(self):
        outcome = self.in_namespace("mount -t tmpfs tmpfs /dev/shm", f"""
            for end in '' -1 -2 -3 -4 -5 -6 -7; do mkdir -m 755 /dev/shm/holdfast-$(id -u)$end; done
            '{PROGRAM}' train run.toml --checkpoint.ram_every_steps=1; code=$?; find /dev/shm -mindepth 2; exit $code""")
        self.expect(outcome)
        self.assertIn("no RAM snapshots: no directory for shared memory", outcome.stdout)
        self.assertNotIn("\n/dev/shm/", outcome.stdout, "something is in a directory that others may enter")

    @unittest.skipIf(harness.SANITIZED, LIBFABRIC)
    def test_without_ulfm(self):
        script = f'. "{ROOT}/tools/lib.sh"; use_mpi_prefix; exec "$mpi/bin/mpirun" --oversubscribe -np 2 "$0" train run.toml'
        self.expect(self.start(["bash", "-c", script, PROGRAM], self.folder))

    def test_no_interface(self):
        self.expect_nothing_made(self.mpirun(2, "train", "run.toml", environment={"HOLDFAST_NETWORK_INTERFACE": "nope0"}))

    def test_mpi_not_loaded(self):
        """The program alone, as where neither MPI nor the library for it was ever built."""
        program = str(self.folder / "holdfast")
        shutil.copy(PROGRAM, program)
        launched = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1"}
        self.expect_nothing_made(self.start([program, "train", "run.toml"], self.folder, launched))
        for words in (["--version"], ["check", "run.toml"], ["train", "run.toml"], ["digest", "run"]):
            outcome = self.start([program, *words], self.folder)
            self.assertEqual(outcome.returncode, 0, outcome.stdout)
            if words[0] == "check":
                self.assertRegex(outcome.stdout, r"MPI +no +a run has one rank only")

    @unittest.skipIf(harness.SANITIZED, LIBFABRIC)
    def test_foreign_launcher(self):
        self.expect_nothing_made(self.train(environment={"PMI_SIZE": "2", "PMI_RANK": "1"}))

    def test_nccl_on_cpu(self):
        self.expect_nothing_made(self.mpirun(2, "train", "run.toml", "--parallel.exchange=nccl"))
        self.assertEqual(self.train("--parallel.exchange=nccl").returncode, 0, "one rank exchanges nothing")

    def test_nccl_not_there(self):
        words = ["train", "run.toml", "--device=cuda"]
        self.expect_nothing_made(self.mpirun(2, *words, "--parallel.exchange=nccl", environment=EMULATED))
        auto = self.mpirun(2, *words, environment=EMULATED)
        self.assertEqual(auto.returncode, 0)
        self.assertRegex(auto.stdout, r"exchange: pinned host memory, because rank 0 \(.*\) has no NCCL: ")

    def test_nccl_blocking(self):
        words = ["train", "run.toml", "--device=cuda"]
        blocking = {**EMULATED, "NCCL_COMM_BLOCKING": "1"}
        self.expect_nothing_made(self.mpirun(2, *words, environment=blocking))
        file = self.folder / "nccl.conf"
        file.write_text("# of this job\nNCCL_COMM_BLOCKING=1\n")
        by_file = self.mpirun(2, *words, environment={**EMULATED, "NCCL_CONF_FILE": str(file)})
        self.assertEqual(by_file.returncode, 2)
        self.assertIn(f"NCCL_COMM_BLOCKING is 1 in {file}, but must be 0 or unset", by_file.stdout)
        self.assertEqual(self.mpirun(2, *words, "--parallel.exchange=host", environment=blocking).returncode, 0)

    # While it runs

    def test_gpu_too_small(self):
        self.expect_nothing_made(self.train("--device=cuda", environment={**EMULATED, "EMULATED_GPU_BYTES": "100000"}))

    def test_gpu_memory_held(self):
        held = {**EMULATED, "EMULATED_GPU_BYTES": "50000000", "EMULATED_GPU_HELD_BYTES": "50000000"}
        for_ever = {**held, "EMULATED_GPU_HELD_REFUSALS": "1000000"}
        self.expect(self.train("--device=cuda", "--elastic.memory_timeout=1s", environment=for_ever))
        given_back = self.train("--device=cuda", environment={**held, "EMULATED_GPU_HELD_REFUSALS": "3"})
        self.assertEqual(given_back.returncode, 0, given_back.stdout)
        self.assertIn("waits up to 1m for memory that other processes hold", given_back.stdout)
        self.assertRegex(given_back.stdout, r"had room after 0\.[0-9] s")

        # There is not even room for a context, and "auto" must not take the CPU instead.
        full = {**held, "EMULATED_GPU_CONTEXT_BYTES": "1000000"}
        ended = self.train("--device=auto", "--elastic.memory_timeout=1s", environment={**full, "EMULATED_GPU_HELD_REFUSALS": "1000000"})
        self.assertEqual(ended.returncode, 76, ended.stdout)
        self.assertRegex(ended.stdout, r"\(GPU 0\) is full for a context, and other processes still hold the rest after 1s")
        given_back = self.train("--device=auto", "--training.steps=9", environment={**full, "EMULATED_GPU_HELD_REFUSALS": "3"})
        self.assertEqual(given_back.returncode, 0, given_back.stdout)
        self.assertIn("is full for a context: waits up to 1m", given_back.stdout)

    def test_gpu_fault_without_gpu(self):
        self.expect_nothing_made(self.train("--device=cpu", environment={"HOLDFAST_FAULTS": "step.begin@2=gpu_trap"}))

    def test_wrong_product_on_gpu(self):
        self.expect_nothing_made(self.train("--device=cuda", environment={"HOLDFAST_FAULTS": "step.begin@2=wrong_product"}))

    def lose_gpu(self, kernel, *words):
        """Of a run whose process ends by SIGKILL: a shell tells its status as an exit code."""
        command = " ".join([f"'{PROGRAM}' train run.toml --device=cuda", *words])
        return self.start(["sh", "-c", f"{command}; exit $?"], self.folder, {**EMULATED, "EMULATED_GPU_BREAKS_AT": str(kernel)})

    def test_gpu_lost_at_start(self):
        in_bf16 = "--training.precision=bf16"
        first_behind_the_trials = 4  # it rounds the weights
        self.expect(self.lose_gpu(first_behind_the_trials, in_bf16))
        self.assertEqual(json.loads((self.run_directory / "status.json").read_text())["state"], "failed")
        self.assertFalse((self.run_directory / "events.jsonl").exists(), "no step was begun")
        self.assertEqual(self.train("--device=cuda", in_bf16, environment=EMULATED).returncode, 0)
        self.expect(self.lose_gpu(first_behind_the_trials, in_bf16, "--training.steps=8"))
        self.assertEqual(json.loads((self.run_directory / "status.json").read_text())["state"], "finished")

    def test_gpu_lost(self):
        self.expect(self.lose_gpu(1000, "--training.steps=40"))  # far behind the first step, far before the last
        status = json.loads((self.run_directory / "status.json").read_text())
        self.assertEqual((status["state"], status["exit_code"]), ("failed", 76))
        again = self.train("--device=cuda", "--training.steps=40", environment=EMULATED)
        self.assertEqual(again.returncode, 0)
        self.assertIn("resuming from run/checkpoints/", again.stdout)

    def test_memory_held(self):
        # Of a size between what is available and what there is: activations grow with the microbatch.
        held = 2 << 30
        if shutil.disk_usage("/dev/shm").free < 2 * held:
            self.skipTest("/dev/shm has no room for what is to be held")
        holder = tempfile.NamedTemporaryFile(dir="/dev/shm")
        self.addCleanup(holder.close)
        os.posix_fallocate(holder.fileno(), 0, held)
        text = Path("/proc/meminfo").read_text()
        total, available = (int(re.search(rf"^{name}: *([0-9]+) kB", text, re.MULTILINE)[1]) * 1024
                            for name in ("MemTotal", "MemAvailable"))
        for limit in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
            limit = Path(limit).read_text().strip() if os.path.exists(limit) else "max"
            if limit != "max" and int(limit) < total:
                self.skipTest("the memory of this machine is limited by a control group")

        def planned(size):
            said = self.holdfast("check", "run.toml", "--model.width=512", f"--training.microbatch_size={size}").stdout
            number, unit = re.search(r"([0-9.]+) ([KMG])iB per rank", said).groups()
            return float(number) * 1024 ** " KMG".index(unit)
        small, large = 4000, 40000
        each = (planned(large) - planned(small)) / (large - small)
        size = int(large + ((total + available) / 2 - planned(large)) / each)
        self.expect(self.train("--model.width=512", f"--training.microbatch_size={size}", "--elastic.memory_timeout=1s"))

    def test_does_not_fit(self):
        (self.folder / "run.toml").write_text(CONFIG.replace("layers = 1\nheads = 2\nwidth = 16", 'preset = "llama-8b"')
                                              .replace("[training]", "[training]\nmicrobatches_per_lane = 65536")
                                              .replace("lanes = 2", "lanes = 65536"))
        self.expect_nothing_made(self.train())

    def test_nothing_to_go_back_to(self):
        kept = ["--checkpoint.every_steps=19", "--checkpoint.keep=1", "--optimizer.schedule=constant"]
        self.assertEqual(self.train("--training.steps=38", *kept).returncode, 0)
        spoiled = ",".join(f"data.sample@{sample}=scramble" for sample in range(160, 164))
        self.expect(self.train("--training.steps=60", *kept, "--verdict.on_spike=rollback", "--verdict.rollback_steps=5",
                               "--verdict.norm_score=1", "--verdict.drift_steps=0", environment={"HOLDFAST_FAULTS": spoiled}))

    def test_rollback_recorded_late(self):
        """The writer dies before it has recorded what the verdict decided, and the next start finds it in shared memory."""
        words = ["--training.steps=60", "--checkpoint.every_steps=5", "--optimizer.schedule=constant", "--verdict.on_spike=rollback",
                 "--verdict.rollback_steps=5", "--verdict.norm_score=1", "--verdict.drift_steps=0"]
        spoiled = ",".join(f"data.sample@{sample}=scramble" for sample in range(160, 164))
        died = self.train(*words, environment={"HOLDFAST_FAULTS": f"{spoiled},generation.before_publish=kill"})
        self.assertEqual(died.returncode, -signal.SIGKILL, died.stdout)
        self.expect(self.train(*words))

    def test_host_computes_wrong(self):
        self.expect(self.mpirun(3, "train", "run.toml", "--parallel.lanes=3", "--training.steps=20", "--verdict.audit_every_steps=1",
                                environment={"HOLDFAST_FAULTS": "step.begin@5:1=wrong_product_always"}))

    def test_link_changes_gradients(self):
        faults = ",".join(f"reduce.received@{hit}:1=flip:gradients:20" for hit in range(60, 300))
        self.expect(self.mpirun(2, "train", "run.toml", "--training.steps=50", "--verdict.audit_every_steps=1",
                                environment={"HOLDFAST_FAULTS": faults}))

    def test_ends_by_verdict(self):
        words = ["--training.steps=60", "--optimizer.schedule=constant", "--verdict.on_spike=save_and_stop", "--verdict.norm_score=1", "--verdict.drift_steps=0"]
        spoiled = ",".join(f"data.sample@{sample}=scramble" for sample in range(160, 164))
        self.expect(self.train(*words, environment={"HOLDFAST_FAULTS": spoiled}))

    def test_not_finite(self):
        self.expect(self.mpirun(2, "train", "run.toml", "--optimizer.learning_rate=100", "--optimizer.gradient_clip=0",
                                "--training.steps=50", "--verdict.explosion_factor=0"))
        status = json.loads((self.run_directory / "status.json").read_text())
        self.assertEqual((status["state"], status["exit_code"]), ("failed", 20))


if __name__ == "__main__":
    if not os.access(PROGRAM, os.X_OK):
        sys.exit(f"HOLDFAST = {PROGRAM} is not a program; build it first: cmake --build --preset release --target holdfast")
    harness.main()
