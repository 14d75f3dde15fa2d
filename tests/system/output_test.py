"""Nobody reads what a run prints: a pipe without a reader, a terminal that is stopped. Training goes on, to the bits of the
run whose output went to a file, and what could be kept is there when somebody reads again."""
import fcntl
import os
import re
import termios
import threading
import time
import unittest

import harness

STEPS = 600
# A line for each of many short steps: more than a pipe of this size holds, many times over.
PIPE_BYTES = 4096
SHORT = ["--training.sequence_length=16", "--training.microbatch_size=1", "--training.microbatches_per_lane=1",
         "--evaluation.every_steps=0", "--checkpoint.every_steps=200", f"--training.steps={STEPS}", "--log.every_steps=1"]


def read_all(descriptor):
    parts = []
    while True:
        try:
            part = os.read(descriptor, 65536)
        except OSError:  # a terminal whose other end is closed
            break
        if not part:
            break
        parts.append(part)
    return b"".join(parts).decode()


class Piped(harness.Start):
    """A start whose output goes to this descriptor; the reader is whoever has the other end."""

    def __init__(self, run, arguments, descriptor):
        self.run, self.log = run, None
        self.begun = time.monotonic()
        environment = {**run.scene.environment, harness.RUN_MARK: str(run.directory)}
        self.process = harness.subprocess.Popen(arguments, stdout=descriptor, stderr=descriptor, env=environment,
                                                stdin=harness.subprocess.DEVNULL, start_new_session=True)
        os.close(descriptor)

    def tail(self, lines=25):
        return "its output is in a pipe"


class OutputTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scene = harness.Scene()
        cls.addClassCleanup(cls.scene.close)
        straight = cls.scene.run("straight", SHORT)
        straight.start().expect_exit(0)
        cls.digest = straight.digest()

    def start(self, name, descriptor):
        run = self.scene.run(name, SHORT)
        run.starts += 1
        return Piped(run, run.train_arguments(), descriptor)

    def pipe(self):
        reader, writer = os.pipe()
        fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self.addCleanup(os.close, reader)
        return reader, writer

    def check(self, run):
        self.assertTrue(run.finished())
        self.assertEqual(run.digest(), self.digest)
        self.assertEqual([event["step"] for event in run.events("step")], list(range(1, STEPS + 1)))
        self.assertEqual(run.events("fault"), [])

    def check_lines(self, text):
        """Every line is there, or a count stands in their place."""
        shown = {int(step) for step in re.findall(rf"^step (\d+)/{STEPS} ", text, re.MULTILINE)}
        left_out = sum(int(count) for count in re.findall(r"^holdfast: (\d+) lines are left out here", text, re.MULTILINE))
        self.assertEqual(len(shown) + left_out, STEPS, text[-2000:])
        self.assertIn("holdfast: all steps are done", text)

    def test_a_pipe_that_nobody_reads(self):
        _, writer = self.pipe()
        start = self.start("unread", writer)
        self.assertEqual(start.wait(), 0)
        self.check(start.run)

    def test_a_reader_that_comes_late(self):
        reader, writer = self.pipe()
        start = self.start("late", writer)
        self.assertTrue(start.wait_for_step(STEPS // 2))  # the pipe has been full for hundreds of steps
        self.check_lines(read_all(reader))
        self.assertEqual(start.wait(), 0)
        self.check(start.run)

    def test_a_terminal_that_is_stopped(self):
        terminal, program = os.openpty()
        self.addCleanup(os.close, terminal)
        termios.tcflow(program, termios.TCOOFF)  # as Ctrl-S does
        held = os.dup(program)
        start = self.start("stopped", program)
        self.assertTrue(start.wait_for_step(STEPS // 2))
        termios.tcflow(held, termios.TCOON)
        os.close(held)
        texts = []
        reader = threading.Thread(target=lambda: texts.append(read_all(terminal)))
        reader.start()
        self.assertEqual(start.wait(), 0)
        reader.join(harness.HANG_S)
        self.check_lines(texts[0].replace("\r\n", "\n"))
        self.check(start.run)


if __name__ == "__main__":
    harness.main(at_once=1)
