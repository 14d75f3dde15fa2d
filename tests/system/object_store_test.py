"""Checkpoints in an object store: a run that loses all that it has on its machine goes on from there, and what is killed on the way to
the store or back is never taken for a checkpoint. The server is moto's, the client configs/object_store/s3.py with boto3; both are in
.deps/object_store (tools/bootstrap --tests).
"""
import contextlib
import os
import shutil
import signal
import subprocess
import unittest
from pathlib import Path

import harness

STEPS = 40
PYTHON = harness.ROOT / ".deps/object_store/bin/python"
CLIENT = harness.ROOT / "configs/object_store/s3.py"
BUCKET = "checkpoints"
SLOW = harness.slow_steps(8, count=200, milliseconds=300)  # time for uploads
MAKE_BUCKET = "import sys, urllib.request as http; http.urlopen(http.Request(sys.argv[1], method='PUT'), timeout=30).close()"


def why_not():
    """Why there is no S3 server here; None where there is one."""
    return None if PYTHON.exists() else "tools/bootstrap --tests could not install an S3 server and client"


class Server:
    """The S3 server, which dies with this process. `enter`: words before a command, for another network that it is in."""

    def __init__(self, directory, enter=(), address="127.0.0.1"):
        self.directory, self.enter = directory, [*enter]
        directory.mkdir()
        self.log = open(directory / "log", "wb")
        words = [*enter, "setpriv", "--pdeathsig", "KILL", str(PYTHON), str(Path(__file__).with_name("object_store_server.py")),
                 str(directory), address]
        variables = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        self.process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=self.log, stderr=subprocess.STDOUT, env=variables)
        harness.wait_until((directory / "port").exists, 60, lambda: self.process.poll() is not None, "no S3 server", self.log_text)
        if self.process.poll() is not None:
            raise AssertionError(self.log_text())
        self.url = f"http://{address}:{(directory / 'port').read_text()}"
        subprocess.run([*enter, str(PYTHON), "-c", MAKE_BUCKET, f"{self.url}/{BUCKET}"], check=True)

    def log_text(self):
        return (self.directory / "log").read_text(errors="replace")

    def close(self):
        self.process.kill()
        self.process.wait()
        self.log.close()

    def variables(self):
        """For boto3."""
        return {"AWS_ENDPOINT_URL": self.url, "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test",
                "AWS_DEFAULT_REGION": "us-east-1", "AWS_EC2_METADATA_DISABLED": "true"}

    def client(self, deed, name, *words, **variables):
        environment = {**os.environ, **self.variables(), **variables}
        done = subprocess.run([*self.enter, str(PYTHON), str(CLIENT), deed, f"s3://{BUCKET}/{name}", *words], capture_output=True,
                              text=True, timeout=60, check=False, env=environment)
        if done.returncode != 0:
            raise AssertionError(done.stderr)
        return done.stdout

    def whole(self, name):
        """The names of what counts in the store, the newest last."""
        return self.client("list", name).split()

    @contextlib.contextmanager
    def holding(self, name, method, part):
        """Requests like this for what has the name are held in the middle of what they carry, until the end of the block. Yields a
        function that waits for the first."""
        held = self.directory / f"{name}.held"
        held.unlink(missing_ok=True)
        (self.directory / f"{name}.new").write_text(f"{method} {part}\n")
        (self.directory / f"{name}.new").rename(self.directory / f"{name}.hold")
        try:
            yield lambda start: self.wait_for(held.exists, start)
        finally:
            (self.directory / f"{name}.hold").unlink(missing_ok=True)

    @staticmethod
    def wait_for(condition, start):
        if not harness.wait_until(condition, harness.HANG_S, lambda: not start.alive(), "it did not happen", start.tail):
            raise AssertionError(f"the run ended before\n{start.tail()}")


class ObjectStoreTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if reason := why_not():
            harness.skip(reason)
        cls.scene = harness.Scene(steps=STEPS)
        cls.addClassCleanup(cls.scene.close)
        cls.server = Server(cls.scene.directory / "server")
        cls.addClassCleanup(cls.server.close)
        cls.scene.environment.update(cls.server.variables())
        cls.reference = harness.reference_digest(cls.scene)

    def run_of(self, name, upload="upload_shard_command", options=()):
        command = f"exec {PYTHON} {CLIENT} {{}} s3://{BUCKET}/{name}"
        return self.scene.run(name, [f"--checkpoint.{upload}={command.format('put')} --keep 3",
                                     f"--checkpoint.download_command={command.format('get')}",
                                     "--checkpoint.ram_every_steps=2", *options])

    def lose_all(self, run):
        """As when its machine is gone: snapshots in RAM and all that is on the disk."""
        harness.program_output("clean", run.directory)
        shutil.rmtree(run.directory)

    def check_store(self, name):
        """The newest that counts there is whole, to the last byte. Returns the names of all."""
        found = self.server.whole(name)
        if found:
            target = self.scene.directory / f"{name}-fetched"
            target.mkdir()
            self.server.client("get", name, HOLDFAST_DOWNLOAD=str(target))
            harness.program_output("verify", target)
            shutil.rmtree(target)
            target.mkdir()
            oldest = int(found[0].split("-")[3])
            self.server.client("get", name, HOLDFAST_DOWNLOAD=str(target), HOLDFAST_BEFORE_STEP=str(oldest))
            self.assertEqual(list(target.iterdir()), [], "nothing is older")
            fetched = self.server.client("get", name, HOLDFAST_DOWNLOAD=str(target), HOLDFAST_BEFORE_STEP=str(oldest + 1))
            self.assertIn(f"-step-{oldest:08}-", fetched)
            harness.program_output("verify", target)
            shutil.rmtree(target)
        return found

    def finish(self, run, ranks=2, resumes=True):
        """Ends with the bits of the run that nothing disturbs; says where it went on."""
        printed = run.start(ranks).expect_exit(0)
        self.assertEqual(run.digest(), self.reference)
        resumed = run.events("start")[0]["resumed_from_step"]
        if resumes:
            self.assertIn(f"downloaded the checkpoint of step {resumed}: ", printed)
        harness.expect_no_processes(run)
        found = self.check_store(run.directory.name)
        self.assertIn(f"-step-{STEPS:08}-", found[-1])
        self.assertLessEqual(len(found), 3)
        return resumed

    def begin_until_stored(self, run, ranks=2):
        start = run.start(ranks, faults=SLOW)
        name = run.directory.name
        harness.wait_until(lambda: self.server.whole(name), harness.HANG_S, lambda: not start.alive(), "nothing was uploaded", start.tail)
        start.kill_all()
        return int(self.server.whole(name)[-1].split("-")[3])

    def kill_while_held(self, run, method, part, **more):
        with self.server.holding(run.directory.name, method, part) as wait_for_it:
            start = run.start(2, **more)
            wait_for_it(start)
            start.kill_all()

    def test_all_local_state_is_lost(self):
        """Again and again: in the middle of the first upload, beside training, in the middle of the way back. Then the run goes on with
        another number of ranks."""
        run = self.run_of("lost")
        self.kill_while_held(run, "PUT", "shard-00001.hfs", faults=SLOW)
        self.assertEqual(self.server.whole("lost"), [])
        self.lose_all(run)
        stored = self.begin_until_stored(run)
        self.assertIsNone(run.events("start")[0]["resumed_from_step"], "half of a checkpoint is none")
        self.lose_all(run)
        self.kill_while_held(run, "GET", "shard-00001.hfs")
        self.assertEqual(run.checkpoints(), [])
        self.assertGreaterEqual(self.finish(run, ranks=4), stored)

    @harness.full
    def test_sent_whole_by_one_rank(self):
        run = self.run_of("whole", "upload_command")
        stored = self.begin_until_stored(run)
        self.lose_all(run)
        self.assertGreaterEqual(self.finish(run, ranks=1), stored)

    @harness.full
    def test_killed_in_the_middle_of_a_manifest(self):
        """Of either way: all shards are there, and nothing counts."""
        run = self.run_of("manifest")
        self.kill_while_held(run, "PUT", "manifest.json", faults=SLOW)
        self.assertEqual(self.server.whole("manifest"), [])
        self.lose_all(run)
        self.begin_until_stored(run)
        self.lose_all(run)
        self.kill_while_held(run, "GET", "manifest.json")
        self.assertEqual(run.checkpoints(), [])
        self.assertGreater(self.finish(run), 0)

    @harness.full
    def test_killed_at_every_point(self):
        """Of either way: the next start ends with the same bits, and what counts in the store is whole."""
        for point in ("upload.before_file", "upload.before_file@2", "upload.before_manifest", "upload.before_manifest@2"):
            with self.subTest(point):
                run = self.run_of(point.replace("@", "-"))
                start = run.start(1, faults=f"{point}=kill,{SLOW}")
                self.assertEqual(start.wait(), -signal.SIGKILL)
                self.check_store(run.directory.name)
                self.lose_all(run)
                self.finish(run, resumes=point.endswith("before_manifest@2"))
        for point in ("before_command", "after_command", "before_rename", "after_rename"):
            with self.subTest(point):
                run = self.run_of(f"download-{point}")
                stored = self.begin_until_stored(run, 1)
                self.lose_all(run)
                self.assertEqual(run.start(1, faults=f"download.{point}=kill").wait(), -signal.SIGKILL)
                self.assertEqual(len(run.checkpoints()), 1 if point == "after_rename" else 0)
                self.assertGreaterEqual(self.finish(run, resumes=point != "after_rename"), stored)

    @harness.full
    def test_the_last_upload_is_made_up_for(self):
        """Of a run that was killed when nothing else was left to do."""
        run = self.run_of("last", options=["--checkpoint.every_steps=0"])
        with self.server.holding("last", "PUT", "manifest.json") as wait_for_it:
            start = run.start(2)
            wait_for_it(start)
            start.kill_all()
        self.assertEqual(self.server.whole("last"), [])
        self.assertIn("is finished", run.start(2).expect_exit(0))
        self.assertIn(f"-step-{STEPS:08}-", self.check_store("last")[-1])

    @harness.full
    def test_the_launcher_starts_a_download_again(self):
        run = self.run_of("launched")
        self.begin_until_stored(run)
        self.lose_all(run)
        words = [str(harness.PROGRAM), "launch", "-np", "2", *run.train_arguments()[2:]]
        with self.server.holding("launched", "GET", "shard-00000.hfs") as wait_for_it:
            start = run.start_command(words)
            wait_for_it(start)
            for pid in start.ranks():
                if b"\0train\0" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    harness.kill(pid, signal.SIGKILL)
        start.expect_exit(0)
        self.assertEqual(run.digest(), self.reference)
        self.assertIn("downloaded the checkpoint", start.output())


if __name__ == "__main__":
    harness.main()
