#!/usr/bin/env python3
"""bench disk: checkpoints on their way to a disk and back, in turns with fio.

fio moves the same number of bytes with O_DIRECT and io_uring, 4 MiB x 16, and its rate is the disk's peak. A round is fio's
writes and reads, then those of `holdfast bench disk`: its queue alone, a checkpoint, and writing through the page cache. Medians of
the rounds, and their ratios. Without fio only our own figures are there; tools/bootstrap --bench installs it.
"""
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from _common import HOLDFAST, fail, parser, positive, write_json

FIO = "fio, O_DIRECT, io_uring"


def run(command):
    outcome = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    if outcome.returncode != 0:
        fail(f"{' '.join(map(str, command))} ended with exit code {outcome.returncode}: {outcome.stdout}{outcome.stderr}")
    return outcome.stdout


def fio_rates(folder, options):
    """{name: bytes per second} of a write and a read, by fio's own clock."""
    rates = {}
    for direction in ("write", "read"):
        text = run(["fio", "--name=peak", f"--filename={folder / 'fio'}", f"--rw={direction}", "--bs=4M",
                    f"--iodepth={options.depth}", "--ioengine=io_uring", "--direct=1", f"--size={options.mebibytes}M",
                    "--fallocate=native", "--end_fsync=1", "--output-format=json"])
        job = json.loads(text[text.index("{"):])["jobs"][0]
        if job["error"] != 0:
            fail(f"fio ended with error {job['error']}; io_uring may be forbidden here")
        rates[f"{FIO}: {direction}"] = job[direction]["bw_bytes"]
    (folder / "fio").unlink()
    return rates


def our_rates(folder, options):
    """The result of one round of `holdfast bench disk`."""
    figures = folder / "figures.json"
    run([HOLDFAST, "bench", "disk", "--directory", folder, "--mebibytes", options.mebibytes, "--depth", options.depth,
         "--rounds", 1, "--io", options.io, "--json", figures])
    return json.loads(figures.read_text())["result"]


def main():
    arguments = parser(__doc__)
    arguments.add_argument("--directory", type=Path, help="on the disk in question; that of temporary files if left out")
    arguments.add_argument("--mebibytes", type=positive, default=1024)
    arguments.add_argument("--depth", type=positive, default=16)
    arguments.add_argument("--rounds", type=positive, default=5)
    arguments.add_argument("--io", choices=("auto", "io_uring", "threads"), default="auto")
    options = arguments.parse_args()
    has_fio = shutil.which("fio") is not None
    rounds, ours = {}, {}
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-", dir=options.directory) as name:
        for _ in range(options.rounds):
            ours = our_rates(Path(name), options)
            rates = fio_rates(Path(name), options) if has_fio else {}
            rates.update({key: value[0] for key, value in ours.items() if isinstance(value, list)})
            for key, rate in rates.items():
                rounds.setdefault(key, []).append(rate)
    print(f"{options.mebibytes} MiB, 4 MiB x {options.depth}, by {ours['backend']}; medians of {options.rounds} rounds in turns")
    if ours["buffered_reason"]:
        print(f"through the page cache: {ours['buffered_reason']}")
    if not has_fio:
        print("fio is not installed, so there is no peak of the disk here: tools/bootstrap --bench installs it")
    print("| | GB/s (10^9 bytes) | range | of fio's |\n|---|---|---|---|")
    for key, rates in rounds.items():
        peak = rounds.get(f"{FIO}: {'read' if 'read' in key else 'write'}")
        share = f"{100 * statistics.median(rates) / statistics.median(peak):.0f} %" if peak else ""
        print(f"| {key} | {statistics.median(rates) * 1e-9:.2f} | {min(rates) * 1e-9:.2f} to {max(rates) * 1e-9:.2f} | {share} |")
    write_json(options.json, "disk", {"backend": ours["backend"], "buffered_reason": ours["buffered_reason"],
                                      "bytes": options.mebibytes << 20, "bytes_per_second": rounds})
    return 0


if __name__ == "__main__":
    sys.exit(main())
