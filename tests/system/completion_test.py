"""What the Tab key of bash offers behind `holdfast`: its commands, their options and the keys of a config, as the program's own help has
them (configs/completion/holdfast.bash)."""
import re
import shlex
import subprocess
import unittest

import harness

SCRIPT = harness.ROOT / "configs/completion/holdfast.bash"


def offered(*words):
    """What is offered where the last of the words is being typed."""
    lines = (f"compopt() {{ :; }}; source {SCRIPT}; COMP_WORDS=({shlex.join(map(str, words))}); COMP_CWORD={len(words) - 1}; "
             '_holdfast; printf "%s\\n" "${COMPREPLY[@]}"')
    done = subprocess.run(["bash", "-c", lines], capture_output=True, text=True, check=False, cwd=SCRIPT.parent)
    if done.returncode != 0 or done.stderr:
        raise AssertionError(done.stderr)
    return done.stdout.split("\n")[:-1]


class CompletionTest(unittest.TestCase):
    def test_commands(self):
        commands = re.findall(r"^  ([a-z]+) ", harness.program_output("--help"), re.MULTILINE)
        self.assertLessEqual({"train", "launch", "config"}, set(commands))
        self.assertEqual(set(offered(harness.PROGRAM, "")), {*commands, "help", "--help", "--version"})
        self.assertEqual(offered(harness.PROGRAM, "dr"), ["drain"])
        self.assertEqual(offered(harness.PROGRAM, "help", "tokeni"), ["tokenize"])

    def test_options_of_a_command(self):
        options = offered(harness.PROGRAM, "plan", "run.toml", "--")
        self.assertLessEqual({"--ranks", "--suggest", "--memory-gib", "--model.", "--parallel."}, set(options))
        self.assertNotIn("--section", options)
        self.assertEqual(offered(harness.PROGRAM, "plan", "run.toml", "--sug"), ["--suggest"])
        self.assertNotIn("--model.", offered(harness.PROGRAM, "status", "--"), "a command that takes no keys")

    def test_keys_of_a_config(self):
        self.assertEqual(offered(harness.PROGRAM, "train", "run.toml", "--parallel.tensor_l"), ["--parallel.tensor_lanes="])
        keys = set(offered(harness.PROGRAM, "train", "run.toml", "--training."))
        self.assertIn("--training.steps=", keys)
        self.assertTrue(all(key.startswith("--training.") for key in keys))

    def test_files(self):
        self.assertEqual(offered(harness.PROGRAM, "check", "holdf"), ["holdfast.bash"])
        self.assertEqual(offered(harness.PROGRAM, "train", "run.toml", "--run.directory", "=", "holdf"), ["holdfast.bash"])


if __name__ == "__main__":
    harness.main()
