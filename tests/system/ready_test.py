"""The proof of one host that it is ready for a start (`holdfast launch --on-host ready`), as the launcher asks for it: the exit code,
and the sentence in the last line."""
import os
import secrets
import socket
import subprocess
import sys
import time
import unittest

import errors_test
import harness

TINY_S = 5 if harness.SANITIZED else 2  # it takes a twentieth of this; a machine that is busy is none that is slow


class ReadyTest(unittest.TestCase):
    def setUp(self):
        self.scene = harness.Scene()
        self.addCleanup(self.scene.close)
        self.run_directory = self.scene.directory / "run"
        self.token, self.nonce = secrets.token_hex(8), secrets.token_hex(16)
        self.nonce_file = self.run_directory / "launch" / f"{self.token}-ready"
        self.nonce_file.parent.mkdir(parents=True)
        self.nonce_file.write_text(self.nonce)

    def ask(self, *overrides, shared=True, digest="-", ranks=2, ranks_here=1, meeting=("-", "0", "-", "-"), directory=None, config=None,
            **variables):
        words = ["ready", self.token, self.nonce, "shared" if shared else "local", digest, str(ranks), str(ranks_here), *meeting,
                 str(directory or self.scene.directory), "--", config or self.scene.config.name,
                 f"--run.directory={self.run_directory.name}", *overrides]
        environment = {**self.scene.environment, **variables}
        return subprocess.run([str(harness.PROGRAM), "launch", "--on-host", *words], env=environment, cwd="/", timeout=harness.HANG_S,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)

    def expect_unfit(self, outcome, code, *parts):
        last = outcome.stdout.rstrip().splitlines()[-1]
        self.assertEqual(outcome.returncode, code, outcome.stdout)
        self.assertTrue(last.startswith("holdfast: "), outcome.stdout)
        for part in parts:
            self.assertIn(part, last)

    def test_ready(self):
        before = sorted(path for path in self.run_directory.rglob("*"))
        began = time.monotonic()
        outcome = self.ask()
        self.assertLess(time.monotonic() - began, TINY_S)
        self.assertEqual((outcome.returncode, outcome.stdout), (0, f"here {socket.gethostname()}\nready\n"))
        self.assertEqual(sorted(path for path in self.run_directory.rglob("*")), before, "a proof leaves something")

    def test_data_missing(self):
        self.scene.text.unlink()
        self.expect_unfit(self.ask(), 4, "train.txt", "does not exist")

    def test_data_empty(self):
        self.scene.text.write_text("")
        self.expect_unfit(self.ask(), 4, "train.txt", "is empty")

    def test_all_that_is_wrong_with_the_data_is_in_the_last_line(self):
        self.expect_unfit(self.ask('--data.sources=[{path="a.txt",format="text"},{path="b.txt",format="text"}]'), 4, "a.txt", "; ", "b.txt")

    def test_tokens_that_are_not_of_the_model(self):
        errors_test.token_file(self.scene.directory / "tokens.bin", [60_000] * 1000)
        self.expect_unfit(self.ask('--data.sources=[{path="tokens.bin",format="llmc"}]'), 4, "tokens.bin: token 0 is 60000")

    def test_run_directory_is_not_mounted(self):
        self.nonce_file.unlink()
        self.expect_unfit(self.ask(), 5, "run.directory run is not on this host what it is on the host of the launcher", "is missing")
        self.nonce_file.write_text("0" * 32)
        self.expect_unfit(self.ask(), 5, "it is another directory, or an older state of it")

    def test_run_directory_of_its_own(self):
        self.nonce_file.unlink()
        outcome = self.ask(shared=False)
        self.assertEqual((outcome.returncode, outcome.stdout), (0, f"here {socket.gethostname()}\nready, with a run directory of its own\n"))

    def test_config_missing(self):
        self.expect_unfit(self.ask(config="other.toml"), 2, "other.toml")

    def test_config_with_several_errors(self):
        self.scene.config.write_text(self.scene.config.read_text().replace("layers", "layer").replace("heads", "head"))
        self.expect_unfit(self.ask(), 2, "layer", "; ", "head")

    def test_config_differs(self):
        self.expect_unfit(self.ask(digest="0" * 32), 2, "run.toml on this host is not what it is on the host of the launcher")

    def test_working_directory_missing(self):
        self.expect_unfit(self.ask(directory="/no/such/place"), 2, "the working directory /no/such/place cannot be entered on this host")

    def test_device_missing(self):
        self.expect_unfit(self.ask("--device=cuda", "--elastic.memory_timeout=0s"), 2, 'device = "cuda", but')

    def test_too_large(self):
        outcome = self.ask("--model.width=65536", "--model.heads=512", "--model.kv_heads=512", "--model.layers=20")
        self.expect_unfit(outcome, 3, "a rank of this run does not fit into the memory of this host", "holdfast plan --ranks 2")

    def expect_room(self, outcome, line):
        self.assertEqual(outcome.returncode, 0, outcome.stdout)
        self.assertRegex(outcome.stdout, f"^here {socket.gethostname()}\n{line}\nready\n$")

    def test_memory_for_fewer_ranks_than_planned(self):
        self.expect_room(self.ask(ranks_here=1_000_000), r"room for [1-9]\d+: a rank needs .*, and this host has .*")

    def test_gpus_of_all_ranks(self):
        gpus = {**errors_test.EMULATED, "EMULATED_GPUS": "2"}
        ready = f"here {socket.gethostname()}\nready\n"
        self.assertEqual(self.ask("--device=cuda", ranks_here=4, **gpus).stdout, ready)
        own = ["--device=cuda", "--parallel.ranks_per_gpu=1"]
        self.assertEqual(self.ask(*own, ranks_here=2, **gpus).stdout, ready)
        self.expect_room(self.ask(*own, ranks_here=4, **gpus), r"room for 2: GPU-\S+ is for 1 rank \(parallel.ranks_per_gpu\)")
        self.expect_room(self.ask("--device=cuda", ranks_here=1_000_000, **gpus), r"room for [1-9]\d+: a rank needs .*, and GPU-\S+ has 8.00 GiB")
        broken = {**gpus, "EMULATED_BROKEN_GPU": "1"}
        self.assertEqual(self.ask("--device=cuda", ranks_here=1, **broken).stdout, ready)
        self.expect_room(self.ask("--device=cuda", ranks_here=2, **broken), "room for 1: .*GPU 1.*")

    def test_a_meeting_to_which_it_cannot_come(self):
        """Nobody listens there: that is no fault of this host."""
        with socket.create_server(("127.0.0.1", 0)) as closed:
            port = closed.getsockname()[1]
        outcome = self.ask(meeting=(f"{port}@127.0.0.1", "0", "^lo", "-"))
        self.assertEqual((outcome.returncode, outcome.stdout), (0, f"here {socket.gethostname()}\nready\n"))

    def test_what_an_earlier_start_left_is_ended_first(self):
        left = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"],
                                env={**os.environ, "HOLDFAST_LAUNCH": str(self.run_directory / "launch" / f"{self.token}-1")}, start_new_session=True)
        self.addCleanup(left.kill)
        time.sleep(0.3)  # until it is the program that it becomes
        self.expect_unfit(self.ask(config="other.toml"), 2, "other.toml")
        self.assertEqual(left.wait(10), -9)


if __name__ == "__main__":
    harness.main()
