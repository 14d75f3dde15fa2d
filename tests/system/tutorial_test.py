"""The commands of docs/tutorial.md, run as they stand."""
import os
import re
import subprocess
import time
import unittest

import harness

TUTORIAL = harness.ROOT / "docs/tutorial.md"
LIMIT_S = 400


def commands():
    """The blocks of the tutorial that are marked sh, in order, as one script."""
    return "\n".join(re.findall(r"^```sh\n(.*?)^```", TUTORIAL.read_text(), re.DOTALL | re.MULTILINE))


def lay_out_repository(directory):
    """Makes `directory` look like the root of the repository after a build."""
    for name in ("tools", "docs", "configs", ".deps"):
        (directory / name).symlink_to(harness.ROOT / name)
    (directory / "build/release").mkdir(parents=True)
    (directory / "build/release/bin").symlink_to(harness.PROGRAM.parent)


class TutorialTest(unittest.TestCase):
    def test_the_script_has_every_part(self):
        text = commands()
        for word in ("check", "train", "launch", "digest", "verify", "flight", "evaluate", "sample", "export"):
            self.assertIn(f"holdfast {word} ", text)

    @harness.full
    def test_the_commands_work(self):
        with harness.Scene() as scene:
            directory = scene.directory / "tutorial"
            directory.mkdir()
            lay_out_repository(directory)
            script = directory / "tutorial.sh"
            script.write_text("set -euo pipefail\n" + commands())
            begun = time.monotonic()
            done = subprocess.run(["bash", str(script)], cwd=directory, env={**os.environ, **scene.environment}, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, text=True, timeout=LIMIT_S, check=False)
            print(f"\n{done.stdout}{time.monotonic() - begun:.0f} s")
            self.assertEqual(done.returncode, 0, done.stdout)
            self.assertIn("not running: its last start was killed", done.stdout)
            self.assertRegex(done.stdout, r"resuming from .*step \d+")
            self.assertEqual(done.stdout.count("holdfast: all steps are done"), 2)
            self.assertIn('"ranks_before":3,"ranks_after":2', done.stdout.replace(" ", ""))
            self.assertEqual(len(set(re.findall(r"^weights +(\w+)$", done.stdout, re.MULTILINE))), 1)
            exported = directory / "runs/own_exported"
            self.assertTrue((exported / "config.json").exists() and (exported / "model.safetensors").exists())
            self.assertEqual(harness.processes_of(directory), [])


if __name__ == "__main__":
    harness.main(at_once=1)
