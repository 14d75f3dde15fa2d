"""Every run directory that is kept in tests/upgrade/ goes on with this program: what the program that wrote it had saved is read, and
the end has the bits to which that program came. tests/upgrade/README.md says how one is added."""
import json
import tarfile
import unittest

import harness

KEPT = sorted((harness.ROOT / "tests/upgrade").glob("*.tar.xz"))


class UpgradeTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scene = harness.Scene()
        cls.addClassCleanup(cls.scene.close)

    def unpacked(self, archive, purpose):
        """A directory with the run as it was left, and the run."""
        place = self.scene.directory / purpose
        with tarfile.open(archive) as file:
            file.extractall(place)
        place /= archive.name.removesuffix(".tar.xz")
        return place, self.scene.run(place.relative_to(self.scene.directory) / "run")

    def go_on(self, archive, purpose, ranks, config):
        """Resumes the run of an archive to its end: (its output, where it is, the run)."""
        place, run = self.unpacked(archive, purpose)
        words = harness.command("ft" if ranks > 1 else "alone", ranks) + [
            str(harness.PROGRAM), "train", str(place / config), f"--run.directory={run.directory}", "--run.resume=must", "--threads=1"]
        start = harness.Start(run, words, place / "log", self.scene.environment, place)
        code, writer = start.wait(), (place / "program.txt").read_text().strip()
        self.assertEqual(code, 0, f"this program cannot go on with {archive.name} ({writer}), which it must: users have such runs. It "
                                  f"says:\n{start.tail()}")
        return start.output(), place, run

    def test_there_is_one_of_every_format(self):
        """From version 2, the first that is read, to the one that FORMAT.md describes: a new version is kept, too, before it is
        released."""
        page = (harness.ROOT / "checkpoint/FORMAT.md").read_text().splitlines()[0]
        current = int(page.removeprefix("# Checkpoint format, version "))
        found = {}
        for archive in KEPT:
            _, run = self.unpacked(archive, "formats")
            text = (run.checkpoints()[-1] / "manifest.json").read_bytes()[:-16]
            found[archive.name] = json.loads(text)["holdfast_manifest"]
        self.assertEqual(set(found.values()), set(range(2, current + 1)), f"add one with tests/upgrade/make_run.py: {found}")

    def test_what_was_saved_is_read(self):
        for archive in KEPT:
            with self.subTest(archive.name):
                place, run = self.unpacked(archive, "read")
                saved = (place / "saved.txt").read_text()
                self.assertEqual(harness.program_output("digest", run.directory), saved)
                self.assertIn("whole", harness.program_output("verify", run.directory))
                found = json.loads(harness.program_output("inspect", run.directory, "--json"))
                lineage = run.directory / "lineage.json"
                self.assertEqual(f"step {found['step']}", saved.splitlines()[0])
                self.assertEqual(found["generation"], json.loads(lineage.read_text())["newest_checkpoint"]["generation"] if lineage.exists() else 0)
                # The curves are those of the old log.
                harness.program_output("report", run.directory)
                self.assertIn("svg", (run.directory / "report.html").read_text())

    def test_goes_on_to_the_same_end(self):
        for archive in KEPT:
            for ranks, config in ((1, "run.toml"), (2, "run.toml"), (1, "run/config.toml")):
                with self.subTest(archive.name, ranks=ranks, config=config):
                    self.check_end(archive, ranks, config)

    def check_end(self, archive, ranks, config):
        told, place, run = self.go_on(archive, f"{ranks}-{config.replace('/', '-')}", ranks, config)
        before = int((place / "saved.txt").read_text().split()[1])
        end = (place / "at_end.txt").read_text()
        self.assertEqual(run.digest(), end, f"the bits are not those of {(place / 'program.txt').read_text().strip()}\n{told}")
        self.assertNotIn("generation", told)
        self.assertTrue(run.finished())
        starts = run.events("start")
        self.assertEqual(starts[-1]["resumed_from_step"], before)
        self.assertEqual([event["step"] for event in run.events("step")], list(range(1, int(end.split()[1]) + 1)), "with the steps of the old log")
        self.assertEqual({event["run"] for event in starts}, {starts[-1]["run"]})
        self.assertEqual(json.loads((run.directory / "lineage.json").read_text())["run_id"], starts[-1]["run"])

    def test_says_what_it_cannot_read(self):
        """A run of a later version, made of the newest by its numbers alone: a sentence that names the version, and exit 5."""
        for key, version in (("holdfast_manifest", 99), ("holdfast_lineage", 98)):
            def later(path):
                text = path.read_text()
                body = text[:-16] if key == "holdfast_manifest" else text
                number = json.loads(body)[key]
                body = body.replace(f'"{key}": {number}', f'"{key}": {version}')
                path.write_text(body + (f"crc32c {crc32c(body.encode()):08x}\n" if key == "holdfast_manifest" else ""))
            place, run = self.unpacked(KEPT[-1], f"later-{key}")
            later(run.checkpoints()[-1] / "manifest.json" if key == "holdfast_manifest" else run.directory / "lineage.json")
            done = harness.call_program("train", place / "run.toml", f"--run.directory={run.directory}", "--run.resume=must",
                                        f'--data.sources=[{{path="{place}/train.txt"}}]')
            self.assertEqual(done.returncode, 5, done.stdout)
            self.assertRegex(done.stdout, rf"version {version}|version 1 of it")


def crc32c(data):
    value = 0xFFFFFFFF
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
    return value ^ 0xFFFFFFFF


if __name__ == "__main__":
    harness.main()
