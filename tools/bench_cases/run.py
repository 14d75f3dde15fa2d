#!/usr/bin/env python3
"""The cases of tools/bench, one after another, and all their figures as one JSON document.

A case NAME is tools/bench_cases/NAME.py where there is one, else `holdfast bench NAME`. Either takes its arguments and
`--json FILE`, prints for people, and writes its figures to FILE. HOLDFAST is the program.
"""
import json
import os
import re
import subprocess
import sys
import tempfile
from datetime import datetime, timezone
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
HOLDFAST = os.environ.get("HOLDFAST", str(ROOT / "build/release/bin/holdfast"))

# What runs without a case: short, and without other programs.
DEFAULT = [
    ["step"],
    ["step", "--training.precision=bf16"],
    ["optimizer"],
    ["loader"],
    ["startup"],
    ["lanes"],
    ["op", "all", "--shape", "gpt2-124m 4x64", "--milliseconds", "10"],
]
USAGE = """usage: tools/bench [CASE [ARGUMENTS]]... [--json FILE]

cases of `holdfast bench`, whose arguments its --help lists: {programs}
cases of tools/bench_cases: {scripts}
A word that is not a case is an argument of the case before it. Without a case: {default}.
"""


def fail(sentence):
    print(f"bench: {sentence}", file=sys.stderr)
    sys.exit(2)


def script_cases():
    return {path.stem: path for path in sorted(HERE.glob("*.py")) if path.stem != "run" and not path.stem.startswith("_")}


def program_cases():
    if not Path(HOLDFAST).exists():  # --help before the first build
        return []
    listing = subprocess.run([HOLDFAST, "bench", "--help"], capture_output=True, text=True, check=True).stdout
    return re.findall(r"^  ([a-z]+) ", listing, re.MULTILINE)


def split_cases(words, known):
    """[[case, argument...]...] and the file of --json."""
    cases, json_path = [], None
    words = list(words)
    while words:
        word = words.pop(0)
        if word == "--json" or word.startswith("--json="):
            if word == "--json" and not words:
                fail("--json has no value; write --json FILE")
            json_path = word.partition("=")[2] or words.pop(0)
        elif word in known:
            cases.append([word])
        elif cases:
            cases[-1].append(word)
        else:
            fail(f"there is no case {word}; there are {', '.join(sorted(known))}")
    return cases, json_path


def commit():
    found = subprocess.run(["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12"],
                           capture_output=True, text=True, check=False)
    return found.stdout.strip() if found.returncode == 0 else "unknown"


def run_case(words, scripts, folder):
    """The case's figures; None when it failed, and said why."""
    name, *arguments = words
    path = folder / "figures.json"
    path.unlink(missing_ok=True)
    command = [sys.executable, str(scripts[name])] if name in scripts else [HOLDFAST, "bench", name]
    print(f"== {' '.join(words)}", flush=True)
    code = subprocess.run([*command, *arguments, "--json", str(path)], cwd=ROOT, check=False,
                          env={**os.environ, "HOLDFAST": HOLDFAST}).returncode
    print(flush=True)
    if code != 0 or not path.exists():
        print(f"bench: the case {name} failed with exit code {code}; the reason is above", file=sys.stderr)
        return None
    return json.loads(path.read_text())


def main(words):
    scripts = script_cases()
    programs = program_cases()
    known = {*scripts, *programs}
    if "--help" in words or "-h" in words:
        default = ", ".join(" ".join(case) for case in DEFAULT)
        print(USAGE.format(programs=", ".join(programs), scripts=", ".join(scripts) or "none", default=default), end="")
        return 0
    cases, json_path = split_cases(words, known)
    document = {"command": ["tools/bench", *words], "commit": commit(),
                "date": datetime.now(timezone.utc).isoformat(timespec="seconds"), "cases": []}
    failed = 0
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        for case in cases or DEFAULT:
            figures = run_case(case, scripts, Path(folder))
            failed += figures is None
            if figures is not None:
                document["cases"].append(figures)
    if json_path is not None:
        Path(json_path).write_text(json.dumps(document, indent=1) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
