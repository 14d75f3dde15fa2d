"""What the documents say is what the program does."""

import os
import pathlib
import re
import subprocess
import sys
import unittest

import harness

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools/bench_peers"))
from cases import CASES  # noqa: E402

HOLDFAST = os.environ["HOLDFAST"]


def run(*arguments):
    return subprocess.run([HOLDFAST, *arguments], capture_output=True, text=True, timeout=60, check=False)


GOLDEN = ROOT / "tests/run/golden"
WRITE = "    HOLDFAST=build/release/bin/holdfast python3 tests/system/docs_test.py --write-events"


def number_of(version):
    return tuple(int(part) for part in version.split("."))


def version_of_events():
    return re.search(r"^This is version (\d+\.\d+) of", run("config", "events").stdout, re.MULTILINE)[1]


def list_of_events():
    """A line for each field: kind, name, type, and whether each event of the kind has it."""
    lines = []
    for section in run("config", "events").stdout.split("\n## `")[1:]:
        kind = section.partition("`")[0]
        rows = re.findall(r"^\| `(\w+)`( \(not always\))? \| (\w+) \|", section, re.MULTILINE)
        lines += [f"{kind} {name} {of_type} {'sometimes' if sometimes else 'always'}" for name, sometimes, of_type in rows]
    return sorted(lines)


class DocsTest(unittest.TestCase):
    def test_reference_is_generated(self):
        self.assertEqual(run("config", "docs").stdout, (ROOT / "docs/config.md").read_text(),
                         "run: build/release/bin/holdfast config docs > docs/config.md")

    def test_events_are_generated(self):
        self.assertEqual(run("config", "events").stdout, (ROOT / "docs/events.md").read_text(),
                         "run: build/release/bin/holdfast config events > docs/events.md")

    def test_events_keep_what_earlier_versions_had(self):
        """A reader that was written for a version goes on with each later one of the same major number."""
        current, fields = version_of_events(), list_of_events()
        lists = {path.stem.removeprefix("events_"): path.read_text().splitlines() for path in GOLDEN.glob("events_*.txt")}
        write = f"holdfast cannot take it back; if it must, raise the major number of event_schema_version, else its minor one, then write the list:\n{WRITE}"
        self.assertIn(current, lists, write)
        self.assertEqual(max(lists, key=number_of), current, "an older version than one that is kept")
        self.assertEqual(fields, lists[current], f"kinds or fields differ from those of version {current}: {write}")
        for version, kept in lists.items():
            if number_of(version)[0] == number_of(current)[0]:
                lost = [line for line in kept if line not in fields and line.replace(" sometimes", " always") not in fields]
                self.assertFalse(lost, f"readers of version {version} need these: {write}")

    def test_events_have_all_that_is_documented(self):
        options = ["--checkpoint.every_steps=4", "--checkpoint.ram_every_steps=2", "--checkpoint.replicas=on", "--evaluation.every_steps=5",
                   "--data.validation_fraction=0.1"]
        with harness.Scene(steps=60) as scene:  # so that a replica is there before the end, whatever else runs
            mine = scene.run("mine", options)
            mine.start(2).expect_exit(0)
            events = mine.events()
        self.assertLessEqual({"start", "step", "evaluation", "snapshot", "checkpoint", "finish"}, {each["event"] for each in events})
        for event in events:
            always, _ = harness.documented_events()[event["event"]]
            self.assertEqual(always - set(event), set(), event)

    def test_presets_in_configs_load(self):
        for path in sorted((ROOT / "configs").rglob("*.toml")):
            if path.parent.name == "clusters":  # of holdfast simulate
                continue
            with self.subTest(path.name):
                dumped = run("config", "dump", str(path))
                self.assertEqual(dumped.returncode, 0, dumped.stderr)

    def test_every_command_has_help_and_the_list_names_it(self):
        listing = run("--help").stdout
        commands = re.findall(r"^  ([a-z]+)  +\S", listing, re.MULTILINE)
        self.assertGreaterEqual(len(commands), 8, listing)
        for command in commands:
            with self.subTest(command):
                answer = run(command, "--help")
                self.assertEqual(answer.returncode, 0)
                self.assertTrue(answer.stdout.startswith(f"usage: holdfast {command}"), answer.stdout[:80])

    def test_models_of_the_peers_are_the_presets(self):
        rows = re.findall(r"^\| `([\w-]+)` \| (\w+) \| (\d+) \| (\d+) \| (\d+) \| (\d+) \| (\d+) \| (\d+) \| tied \|",
                          run("config", "docs").stdout, re.MULTILINE)
        presets = {name: (style, *map(int, numbers)) for name, style, *numbers in rows}
        compared = [case for case in CASES if case.preset]
        self.assertGreaterEqual(len(compared), 3)
        for case in compared:
            with self.subTest(case.name):
                shape = case.shape
                self.assertEqual(presets[case.preset], (shape.style, shape.layers, shape.heads, shape.kv_heads, shape.width,
                                                        shape.feed_forward, shape.vocabulary))

    def test_files_that_documents_link_to_exist(self):
        for document in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), ROOT / "configs/examples/README.md"]:
            prose = re.sub(r"^```.*?^```", "", document.read_text(), flags=re.DOTALL | re.MULTILINE)
            for target in re.findall(r"\]\(([^)#:]+)\)", prose):
                with self.subTest(document=document.name, target=target):
                    self.assertTrue((document.parent / target).exists())

    def test_the_gallery_is_small_and_shows_all_its_pictures(self):
        pictures = {path.name: path.stat().st_size for path in (ROOT / "docs/gallery").iterdir()}
        self.assertEqual(set(re.findall(r"\]\(gallery/([^)]+)\)", (ROOT / "docs/gallery.md").read_text())), set(pictures), "run: tools/gallery")
        self.assertLess(sum(pictures.values()), 400_000)

    def test_folders_of_the_architecture_exist(self):
        for document in [ROOT / "docs/architecture.md", ROOT / "docs/extending.md", *sorted((ROOT / "docs/internals").glob("*.md"))]:
            for name in re.findall(r"`((?:runtime|kernels|checkpoint|parallel|watchdog|tests|tools|configs)/[\w./]*)`", document.read_text()):
                with self.subTest(document=document.name, name=name):
                    self.assertTrue((ROOT / name).exists())


if __name__ == "__main__":
    if sys.argv[1:] == ["--write-events"]:
        (GOLDEN / f"events_{version_of_events()}.txt").write_text("\n".join(list_of_events()) + "\n")
        sys.exit(0)
    harness.main(at_once=1)
