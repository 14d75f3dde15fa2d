"""Snapshots of a killed run whose slots are lost or damaged: the replicas that its ranks kept for each other stand for them,
and the run that is started again ends with the bits of the run that was never disturbed."""
import os
import re
import shutil
import signal
import subprocess
import unittest

import harness

OPTIONS = ["--checkpoint.every_steps=20", "--checkpoint.ram_every_steps=2", "--checkpoint.replicas=on"]
SAVED_STEP = 20
LAST_STEP = 35  # before the kill, at the earliest: it waits for the checkpoint, and the steps go slowly till then
SLOW_STEPS = ",".join(f"step.begin@{step}=sleep:150" for step in range(25, 100))
PIECES = 4096   # where the content of a slot begins
MOST_BYTES = 16 << 20  # more than a slot of these runs has; those of other runs are not read


class ReplicasTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scene = harness.Scene()
        cls.addClassCleanup(cls.scene.close)
        cls.reference = harness.reference_digest(cls.scene)

    def killed(self, name, ranks=2):
        """A run whose ranks were killed all together; the newest snapshot that was confirmed before."""
        run = self.scene.run(name, OPTIONS)
        start = run.start(ranks, faults=SLOW_STEPS)
        self.assertTrue(start.wait_for_step(LAST_STEP) and start.wait_for_checkpoint(SAVED_STEP), start.tail())
        for pid in start.ranks():
            harness.kill(pid, signal.SIGKILL)
        start.wait()
        harness.expect_no_processes(run)
        confirmed = [event["step"] for event in run.events("snapshot")]
        self.assertTrue(confirmed, start.tail())
        self.assertEqual(run.events("fault"), [])
        return run, confirmed[-1]

    def slots(self, run, rank, replicas):
        """Of one rank in shared memory: its own, or the replicas of them."""
        known = {path.name.split("-")[1] for path in harness.shared_memory().glob("holdfast-*-00000-0")}
        mine = [name for name in known if self.is_of(name, run)]
        self.assertEqual(len(mine), 1, mine)
        part = "-replica-" if replicas else "-"
        found = sorted(harness.shared_memory().glob(f"holdfast-{mine[0]}-*-{rank:05d}{part}[0-9]"))
        self.assertTrue(found, f"rank {rank} has none")
        return found

    def is_of(self, digest, run):
        """The slots name the run by a digest; inside they name its directory."""
        mark = str(run.directory).encode()
        for path in harness.shared_memory().glob(f"holdfast-{digest}-*"):
            try:
                if path.stat().st_size < MOST_BYTES and mark in path.read_bytes():
                    return True
            except FileNotFoundError:  # of a run beside this one, which goes on
                pass
        return False

    def damage(self, path):
        with open(path, "r+b") as file:
            file.seek(PIECES + 10)
            byte = file.read(1)[0]
            file.seek(PIECES + 10)
            file.write(bytes([byte ^ 64]))

    def resume(self, run, ranks=2):
        output = run.start(ranks).expect_exit(0)
        self.assertEqual(run.digest(), self.reference)
        harness.expect_no_snapshots(run)
        start = run.events("start")[-1]
        return output, start["resumed_from"], start["resumed_from_step"]

    def test_slots_that_are_gone(self):
        for ranks in (2, 3):
            with self.subTest(ranks=ranks):
                run, confirmed = self.killed(f"gone-{ranks}", ranks)
                for path in self.slots(run, 1, replicas=False):
                    path.unlink()
                _, where, step = self.resume(run, ranks)
                self.assertEqual(where, "ram")
                self.assertGreaterEqual(step, confirmed)

    def test_slots_that_are_damaged(self):
        run, confirmed = self.killed("damaged")
        for path in self.slots(run, 0, replicas=False):
            self.damage(path)
        output, where, step = self.resume(run)
        self.assertEqual(where, "ram")
        self.assertGreaterEqual(step, confirmed)
        self.assertRegex(output, r"the RAM snapshot holdfast-\S+-00000-\d is damaged: tensor '.*' \(weight and moments\) has a wrong checksum; "
                                 r"it is skipped; the replica of its rank's snapshot is sound and is used")

    def test_damaged_replicas_leave_the_disk(self):
        run, _ = self.killed("both")
        for path in self.slots(run, 1, replicas=False) + self.slots(run, 1, replicas=True):
            self.damage(path)
        saved = run.newest_step()
        output, where, step = self.resume(run)
        self.assertEqual((where, step), ("disk", saved))
        self.assertRegex(output, r"RAM snapshot skipped: .*has a wrong checksum")

    @harness.full
    def test_they_are_removed_with_the_rest(self):
        run, _ = self.killed("cleaned")
        replicas = self.slots(run, 0, replicas=True) + self.slots(run, 1, replicas=True)
        printed = harness.program_output("clean", run.directory)
        removed = int(re.search(r"(\d+) snapshots removed", printed).group(1))
        self.assertEqual(removed, 6 + len(replicas), "three slots of each rank, two replicas of each")
        self.assertEqual([path for path in replicas if path.exists()], [])

    @harness.needs(os.geteuid() == 0 and shutil.which("unshare"), "it takes root and unshare to mount another /dev/shm")
    def test_orphans_are_found_without_their_directory(self):
        """In a /dev/shm of its own with copies of the snapshots, because others may run beside this."""
        gone, _ = self.killed("gone")
        there, _ = self.killed("there")
        memory = self.scene.directory / "memory"
        shutil.copytree(harness.shared_memory(), memory / harness.shared_memory().name,
                        ignore=lambda _, names: [name for name in names if not name.startswith(tuple(self.prefixes(gone, there)))])
        shutil.rmtree(gone.directory)

        def clean(*words):
            line = ["unshare", "--mount", "sh", "-c", 'mount --bind "$0" /dev/shm && exec "$@"', memory, harness.PROGRAM, "clean", *words]
            return subprocess.run([str(word) for word in line], check=True, capture_output=True, text=True).stdout
        count = len(list(memory.glob("*/*")))
        listed = clean("--list")
        self.assertRegex(listed, rf"\d+ snapshots, .*, newest step \d+, of {re.escape(str(gone.directory))}: orphaned\n")
        self.assertRegex(listed, rf"\d+ snapshots, .*, newest step \d+, of {re.escape(str(there.directory))}: the directory is there\n")
        self.assertEqual(len(listed.splitlines()), 2, listed)
        self.assertIn(f"{count // 2} snapshots removed from shared memory", clean("--orphans"))
        self.assertEqual(len(list(memory.glob("*/*"))), count - count // 2)
        self.assertNotIn("orphaned", clean("--list"))
        harness.program_output("clean", there.directory)
        for path in self.paths_of(gone):
            path.unlink()

    def prefixes(self, *runs):
        digests = {path.name.split("-")[1] for path in harness.shared_memory().glob("holdfast-*-00000-0")}
        return [f"holdfast-{digest}-" for digest in digests if any(self.is_of(digest, run) for run in runs)]

    def paths_of(self, run):
        return [path for prefix in self.prefixes(run) for path in harness.shared_memory().glob(prefix + "*")]

    def all_slots(self, run):
        return [path for rank in (0, 1) for replicas in (False, True) for path in self.slots(run, rank, replicas)]

    @harness.full
    def test_a_copy_has_none(self):
        """They belong to the run directory that was copied, and are neither taken nor removed, whichever goes on first."""
        run, confirmed = self.killed("original")
        copy = self.scene.run("copy", OPTIONS)
        subprocess.run(["cp", "-a", run.directory, copy.directory], check=True)
        snapshots = self.all_slots(run)
        printed = harness.program_output("clean", copy.directory)
        self.assertIn(f"{copy.directory} is a copy of {run.directory}, which is still there and keeps its snapshots\n", printed)
        output, where, step = self.resume(copy)
        self.assertIn(f"{copy.directory} is a copy of {run.directory}, which is still there: RAM snapshots belong to that one\n",
                      output)
        self.assertEqual((where, step), ("disk", SAVED_STEP))
        self.assertTrue(copy.events("snapshot")[-1]["step"] > confirmed, "it had snapshots of its own")
        self.assertEqual([path for path in snapshots if not path.exists()], [])
        output, where, step = self.resume(run)
        self.assertNotIn("is a copy", output)
        self.assertEqual(where, "ram")
        self.assertGreaterEqual(step, confirmed)

    def test_a_run_that_was_moved_has_them(self):
        """Its old path leads to it, as where hosts mount it elsewhere; later it leads nowhere."""
        run, confirmed = self.killed("here")
        moved = self.scene.run("there", OPTIONS)
        shutil.move(run.directory, moved.directory)
        run.directory.symlink_to(moved.directory)
        step = max(confirmed + 4, moved.last_step() + 1)  # one that this start makes
        start = moved.start(2, faults=SLOW_STEPS)
        self.assertTrue(start.wait_for_step(step), start.tail())
        start.kill_all()
        self.assertEqual(moved.events("start")[-1]["resumed_from"], "ram", start.tail())
        run.directory.unlink()
        again = self.scene.run("elsewhere", OPTIONS)
        shutil.move(moved.directory, again.directory)
        output, where, _ = self.resume(again)
        self.assertNotIn("is a copy", output)
        self.assertEqual(where, "ram")


if __name__ == "__main__":
    harness.main(at_once=1)
