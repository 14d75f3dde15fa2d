#!/usr/bin/env python3
"""tools/corpus.py DIRECTORY: a byte-level corpus of real text, for machines without a data set.

Writes DIRECTORY/train.txt and DIRECTORY/valid.txt from what the machine has: C and C++ headers, documentation, manual
pages. The same files on the machine give the same bytes: files are chosen by a hash of their content and written in path
order, and every fiftieth (by the same hash) is for validation. An existing corpus is left alone, so that the data of a
run does not change when software is installed.
"""
import argparse
import gzip
import hashlib
import os
import re
import sys
from pathlib import Path

# kind: (folder, which file names, bytes at most)
SOURCES = {
    "headers": ("/usr/include", re.compile(r".*\.(h|hh|hpp|tcc)$"), 14_000_000),
    "documentation": ("/usr/share/doc", re.compile(r".*(copyright|README[^/]*|NEWS[^/]*|\.(txt|md|rst|c|h|cc))(\.gz)?$"), 10_000_000),
    "manual pages": ("/usr/share/man", re.compile(r"/usr/share/man/man\d/.*\.gz$"), 6_000_000),
}
FILE_BYTES = range(400, 200_000)  # shorter ones say nothing, longer ones are mostly tables
PARAGRAPH_BYTES = 120             # from this length on, a paragraph seen before (a licence, mostly) is left out
MINIMUM_BYTES = 1_000_000
VALIDATION_SHARE = 50             # one file in so many


def read_text(path):
    """The text of a file, or None when it is not what a corpus wants."""
    try:
        data = path.read_bytes()
        if path.suffix == ".gz":
            data = gzip.decompress(data)
        data.decode("utf-8")
    except (OSError, EOFError, ValueError, gzip.zlib.error):
        return None
    return data if len(data) in FILE_BYTES and b"\0" not in data else None


def list_files(folder, name):
    """Regular files below folder whose path matches, sorted by bytes of the path."""
    found = []
    for directory, _, files in os.walk(folder):
        for file in files:
            path = Path(directory, file)
            if name.match(str(path)) and path.is_file() and not path.is_symlink():
                found.append(path)
    return sorted(found, key=os.fsencode)


def choose(paths, budget):
    """(path, hash, text) of files with different contents, at most `budget` bytes, spread over all folders."""
    by_hash = {}
    for path in paths:
        text = read_text(path)
        if text is not None:
            by_hash.setdefault(hashlib.sha256(text).hexdigest(), (path, text))
    chosen = []
    for digest, (path, text) in sorted(by_hash.items()):
        if len(text) <= budget:
            budget -= len(text)
            chosen.append((path, digest, text))
    return sorted(chosen, key=lambda item: os.fsencode(item[0]))


def without_repeats(text, seen):
    kept = []
    for paragraph in text.split(b"\n\n"):
        if len(paragraph) >= PARAGRAPH_BYTES:
            key = hashlib.sha256(b" ".join(paragraph.split())).digest()
            if key in seen:
                continue
            seen.add(key)
        kept.append(paragraph)
    return b"\n\n".join(kept).strip(b"\n") + b"\n\n"


def write_atomically(path, parts):
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    with open(temporary, "wb") as file:
        file.writelines(parts)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def main():
    parser = argparse.ArgumentParser(prog="tools/corpus.py", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", metavar="DIRECTORY", type=Path)
    directory = parser.parse_args().directory
    train, valid = directory / "train.txt", directory / "valid.txt"
    if train.exists() and valid.exists():
        print(f"corpus: {train} is there ({train.stat().st_size / 1e6:.1f} MB).")
        return
    seen, splits = set(), {train: [], valid: []}
    for folder, name, budget in SOURCES.values():
        for _, digest, text in choose(list_files(folder, name), budget):
            split = valid if int(digest[:8], 16) % VALIDATION_SHARE == 0 else train
            splits[split].append(without_repeats(text, seen))
    sizes = {path: sum(map(len, parts)) for path, parts in splits.items()}
    if sizes[train] < MINIMUM_BYTES or not sizes[valid]:
        sys.exit(f"corpus: only {sizes[train]} bytes of text were found below "
                 f"{', '.join(folder for folder, _, _ in SOURCES.values())}; at least {MINIMUM_BYTES} are needed. "
                 f"Put text of your own into {train} and {valid}.")
    directory.mkdir(parents=True, exist_ok=True)
    write_atomically(valid, splits[valid])
    write_atomically(train, splits[train])
    for path, parts in splits.items():
        print(f"corpus: wrote {path} ({len(parts)} files, {sizes[path] / 1e6:.1f} MB).")


if __name__ == "__main__":
    main()
