"""Starts programs with a deadline and a log, and leaves none of them."""
import os
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

from .results import Failure

POLL_S = 0.05
UNKILLABLE_S = 20
LAST_LINES = 8


@contextmanager
def signals_wait():
    """Holds back SIGINT and SIGTERM of this program until the end, so that no process is started and then lost. They are not
    blocked, which the process would inherit."""
    numbers = (signal.SIGINT, signal.SIGTERM) if threading.current_thread() is threading.main_thread() else ()
    caught = []
    before = {number: signal.signal(number, lambda number, _: caught.append(number)) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for number in caught:
            signal.raise_signal(number)


def own_group():
    """Arguments of Popen: the group of a program can be killed as one. It stays in the session of this program, so that whoever
    ends that session ends it too."""
    return {"process_group": 0} if sys.version_info >= (3, 11) else {"preexec_fn": os.setpgrp}


def kill_group(process):
    """Ends a program and what it started. One that hangs in the driver cannot be ended: it is left after a while."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass
    try:
        process.wait(UNKILLABLE_S)
    except subprocess.TimeoutExpired:
        pass


def kill_named(folder):
    """Kills every process whose command line names something in the folder (ranks have groups of their own). Their pids."""
    mark = re.compile(re.escape(str(folder).encode()) + rb"(?![\w.-])")
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        try:
            line = Path(f"/proc/{entry}/cmdline").read_bytes()
            if mark.search(line):
                os.kill(int(entry), signal.SIGKILL)
                found.append(int(entry))
        except (OSError, ValueError):
            continue
    return found


def last_lines(path, count=LAST_LINES):
    return "\n    ".join(path.read_text(errors="replace").splitlines()[-count:])


class Runner:
    """Runs programs of one item after another: each in `root`, with `environment`, and a log in `logs`."""

    def __init__(self, root, logs, environment):
        self.root, self.logs, self.environment = Path(root), Path(logs), dict(environment)
        self.deadline = float("inf")  # of the item that runs, as time.monotonic() has it
        self.started = []  # those that may run still

    def left(self):
        return max(0.0, self.deadline - time.monotonic())

    def log_of(self, name):
        return self.logs / f"{re.sub(r'[^A-Za-z0-9._-]+', '-', name)}.log"

    def start(self, name, words, more_environment=None):
        """(process, path of its log)"""
        path = self.log_of(name)
        try:
            with open(path, "wb") as log, signals_wait():
                process = subprocess.Popen([str(word) for word in words], cwd=self.root, stdout=log, stderr=subprocess.STDOUT,
                                           stdin=subprocess.DEVNULL, env={**self.environment, **(more_environment or {})},
                                           **own_group())
                self.started = [each for each in self.started if each.poll() is None] + [process]
            return process, path
        except OSError as error:
            raise Failure(f"{words[0]} could not be started: {error.strerror}") from error

    def end_started(self):
        """Ends what runs still: a signal may come before anybody has the process in hand."""
        for process in self.started:
            if process.poll() is None:
                kill_group(process)

    def outcome(self, name, words, seconds=float("inf"), more_environment=None):
        """(exit code, output). A program that takes longer than `seconds`, or than the item may, is killed: a Failure."""
        process, path = self.start(name, words, more_environment)
        begun = time.monotonic()
        limit = min(seconds, self.left())
        try:
            while process.poll() is None:
                if time.monotonic() - begun > limit:
                    raise Failure(f"{name} took longer than {limit:.0f} s; it ended with:\n    {last_lines(path)}")
                time.sleep(POLL_S)
        finally:
            kill_group(process)
        return process.returncode, path.read_text(errors="replace")

    def run(self, name, words, seconds=float("inf"), more_environment=None):
        """The output of a program; fails with its last lines when its exit code is not 0."""
        code, output = self.outcome(name, words, seconds, more_environment)
        if code != 0:
            raise Failure(f"{name}: exit code {code}:\n    {last_lines(self.log_of(name))}")
        return output

    def wait_until(self, name, process, condition, seconds=float("inf")):
        """Returns what condition() returns as soon as that is true. Fails when the program ends or the time is over before."""
        limit = time.monotonic() + min(seconds, self.left())
        while True:
            ended = process.poll() is not None
            found = condition()
            if found:
                return found
            if ended:
                raise Failure(f"{name}: exit code {process.returncode}:\n    {last_lines(self.log_of(name))}")
            if time.monotonic() > limit:
                raise Failure(f"{name} took too long; it ended with:\n    {last_lines(self.log_of(name))}")
            time.sleep(POLL_S)
