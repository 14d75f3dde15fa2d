"""tools/verdict_thresholds judges as the program does, and docs/verdict.md has what it prints."""
import re
import subprocess
import tempfile
import unittest
from pathlib import Path

import scripts

thresholds = scripts.load("verdict_thresholds")
FOLDER = scripts.ROOT / "tests/integrity"


def output_of(*arguments):
    return subprocess.run([scripts.ROOT / "tools/verdict_thresholds", *map(str, arguments)], capture_output=True, text=True, check=False)


class VerdictThresholdsTest(unittest.TestCase):
    def test_verdicts_are_those_of_the_program(self):
        lines = (FOLDER / "recorded_verdicts.txt").read_text().splitlines()
        recorded = {tuple(line.split()[:3]) for line in lines if not line.startswith("#")}
        found = {(path.stem, str(result["step"]), result["kind"]) for path in (FOLDER / "traces").glob("*.txt")
                 for result in thresholds.judge(thresholds.read_trace(path)[1]) if result["kind"] != "fine"}
        self.assertEqual(found, recorded)

    def test_the_page_has_the_output(self):
        page = (scripts.ROOT / "docs/verdict.md").read_text()
        blocks = re.findall(r"^```\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
        self.assertIn(output_of().stdout, blocks, "put the output of tools/verdict_thresholds into docs/verdict.md")

    def test_a_run_is_a_trace(self):
        with tempfile.TemporaryDirectory() as folder:
            event = '{{"event":"step","step":{},"loss":{},"grad_norm":{}}}\n'
            Path(folder, "events-0001.jsonl").write_text('{"event":"start"}\n' + event.format(1, 5.5, 1.25) + event.format(2, 7.0, 1.0))
            Path(folder, "events.jsonl").write_text(event.format(2, 5.25, 1.5) + event.format(3, "null", "null"))
            self.assertEqual(output_of("--as-trace", folder).stdout, "1 5.5 1.25\n2 5.25 1.5\n3 nan nan\n")

    def test_another_file_gets_a_sentence(self):
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
            file.write("no numbers here\n")
            file.flush()
            answer = output_of(file.name)
        self.assertEqual(answer.returncode, 2)
        self.assertIn("expected a file of", answer.stderr)


if __name__ == "__main__":
    unittest.main()
