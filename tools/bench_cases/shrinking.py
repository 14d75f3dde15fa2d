#!/usr/bin/env python3
"""bench shrinking: measures what losing half of the ranks, one by one, costs of the work that a rank does in its time.

The same run trains three ways, each rank held to a part of a processor (--share, a control group for each): undisturbed; with a
rank killed every --between steps until half of them are left, which continue in place with the default config; and with the
same kills where the whole job dies with the rank and is started again from the disk on one rank less (checkpoint.ram_every_steps
= 0). Nobody comes back. All three end with the same digest, or the case fails.

The figure is tokens per rank-hour: tokens of the steps between the first and the last one, over the time of the ranks that were
not lost in between, recoveries and starts included. Every lane counts once, so ranks that have a lane less than others wait: `of
the lanes` is how much of the undisturbed figure that leaves. The default of 168 lanes goes into 8, 7, 6 and 4 ranks and nearly into 5.
On a machine with other work, or with fewer processors than ranks x share, the figures are noise.
"""
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from _common import HOLDFAST, MPIRUN, events, fail, parser, positive, write_case, write_json

SEQUENCE = {"small": 64, "llama-15m": 64}
PERIOD_US = 20_000
WAYS = {"undisturbed": [], "in place": ["--elastic.grow=off"],
        "from the disk": ["--elastic.grow=off", "--checkpoint.ram_every_steps=0"]}
# Command that mpirun starts for each rank: it enters the group of its rank, and becomes the program.
INTO_GROUP = 'echo $$ > "$0/$OMPI_COMM_WORLD_RANK/cgroup.procs" && exec "$@"'


@contextlib.contextmanager
def groups(ranks, share):
    """Yields a folder with a control group for each rank (version 1 or 2)."""
    first = Path("/sys/fs/cgroup/cpu/cpu.shares").exists()
    folder = Path("/sys/fs/cgroup/cpu" if first else "/sys/fs/cgroup") / f"holdfast-bench-{os.getpid()}"
    quota_us = int(share * PERIOD_US)
    try:
        folder.mkdir()
        if not first:
            (folder.parent / "cgroup.subtree_control").write_text("+cpu")
            (folder / "cgroup.subtree_control").write_text("+cpu")
        for rank in range(ranks):
            (folder / str(rank)).mkdir()
            if first:
                (folder / str(rank) / "cpu.cfs_period_us").write_text(str(PERIOD_US))
                (folder / str(rank) / "cpu.cfs_quota_us").write_text(str(quota_us))
            else:
                (folder / str(rank) / "cpu.max").write_text(f"{quota_us} {PERIOD_US}")
        yield folder
    except OSError as error:
        fail(f"ranks cannot be held to a part of a processor here: {error}")
    finally:
        for each in [*(folder / str(rank) for rank in range(ranks)), folder]:
            end_s = time.monotonic() + 10
            while each.exists() and time.monotonic() < end_s:
                with contextlib.suppress(OSError):
                    each.rmdir()
                time.sleep(0.02)


class Run:
    def __init__(self, folder, config, words, group, options):
        self.directory, self.config, self.words, self.group, self.options = folder / "run", config, words, group, options
        self.log, self.process = folder / "log.txt", None

    def start(self, ranks):
        words = [MPIRUN, "-np", str(ranks), "sh", "-c", INTO_GROUP, str(self.group), HOLDFAST, "train", str(self.config),
                 f"--run.directory={self.directory}", *self.words, *self.options.override]
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(words, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)

    def ranks(self):
        """Returns the pids of the ranks, by number."""
        found = {}
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError, StopIteration):
                words = (entry / "cmdline").read_bytes().split(b"\0") if entry.name.isdigit() else [b""]
                if words[0] == HOLDFAST.encode() and words[1] == b"train" and f"--run.directory={self.directory}".encode() in words:
                    variables = (entry / "environ").read_bytes().split(b"\0")
                    rank = next(value for value in variables if value.startswith(b"OMPI_COMM_WORLD_RANK="))
                    found[int(rank.partition(b"=")[2])] = int(entry.name)
        return found

    def steps(self):
        return [event for event in events(self.directory) if event["event"] == "step"]

    def wait_for_step(self, step):
        while max((event["step"] for event in self.steps()), default=0) < step:
            if self.process.poll() is not None:
                fail(f"the run ended with {self.process.returncode} before step {step}: {self.log.read_text()[-3000:]}")
            time.sleep(0.05)

    def kill(self, pids):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def end(self):
        self.kill(self.ranks().values())
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(30)
        self.process.kill()
        self.process.wait()

    def remove(self):
        self.end()
        subprocess.run([HOLDFAST, "clean", str(self.directory)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)


def train(run, way, options):
    """Trains to the end of the run, and returns when ranks were lost, in microseconds."""
    run.start(options.ranks)
    lost_us = []
    for left in range(options.ranks - 1, options.ranks // 2 - 1, -1) if way != "undisturbed" else ():
        run.wait_for_step(options.between * (options.ranks - left))
        time.sleep(0.1)
        lost_us.append(time.time() * 1e6)
        if way == "in place":
            victims = run.ranks()
            if not victims:
                fail(f"the run ended before it lost a rank at step {options.between * (options.ranks - left)}; it needs more steps (--between)")
            run.kill([victims[max(victims)]])
            continue
        run.end()
        run.start(left)
    if run.process.wait() != 0 and way == "undisturbed":
        fail(f"the run ended with {run.process.returncode}: {run.log.read_text()[-3000:]}")
    run.wait_for_step(options.steps)
    return lost_us


def rank_hours(begin_us, end_us, ranks, lost_us):
    return (ranks * (end_us - begin_us) - sum(max(0.0, end_us - max(at, begin_us)) for at in lost_us)) / 3.6e9


def measure(folder, config, way, group, options):
    folder.mkdir()
    run = Run(folder, config, WAYS[way], group, options)
    try:
        lost_us = train(run, way, options)
        steps = run.steps()
        digest = subprocess.run([HOLDFAST, "digest", str(run.directory)], capture_output=True, text=True, check=True).stdout
    finally:
        run.remove()
    # Time counts from the end of the first step: a start costs all three the same once.
    begin_us, end_us = steps[0]["time_us"], steps[-1]["time_us"]
    tokens = (options.steps - 1) * options.lanes * SEQUENCE[options.case]
    hours = rank_hours(begin_us, end_us, options.ranks, lost_us)
    return {"way": way, "tokens_per_rank_hour": tokens / hours, "seconds": (end_us - begin_us) / 1e6, "losses": len(lost_us),
            "steps_again": len(steps) - options.steps, "digest": digest}


def lanes_leave(options):
    """Returns the share of the undisturbed figure that is left where ranks wait for the one with most lanes."""
    spent = done = 0.0
    for left in range(options.ranks, options.ranks // 2 - 1, -1):
        spent += left * -(-options.lanes // left)
        done += options.lanes
    return done / spent / (options.lanes / (options.ranks * -(-options.lanes // options.ranks)))


def main():
    arguments = parser(__doc__)
    arguments.add_argument("--case", choices=SEQUENCE, default="llama-15m")
    arguments.add_argument("--ranks", type=positive, default=8)
    arguments.add_argument("--lanes", type=positive, default=168)
    arguments.add_argument("--between", type=positive, default=20, help="steps from one kill to the next")
    arguments.add_argument("--share", type=float, default=0.25, help="of a processor, for each rank")
    arguments.add_argument("--override", action="append", default=[], metavar="--KEY=VALUE")
    options = arguments.parse_args()
    if options.ranks < 2 or not 0.05 <= options.share <= 1.0:
        fail("--ranks must be at least 2, and --share from 0.05 to 1")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # nothing is left behind
    options.steps = options.between * (options.ranks - options.ranks // 2 + 1)
    print(f"{options.ranks} ranks of {options.share} processors, {options.lanes} lanes, {options.steps} steps, a rank lost every "
          f"{options.between}; of the lanes {100 * lanes_leave(options):.1f} % of the undisturbed figure are left")
    print("| way | seconds | ranks lost | steps again | tokens per rank-hour | of undisturbed |")
    print("|---|---|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as name, groups(options.ranks, options.share) as group:
        config = write_case(Path(name), options.case, options.steps, 1, options.lanes)
        # One sample of 64 tokens for each lane, and the saves of the default config.
        text = config.read_text().replace("sequence_length = 256", "sequence_length = 64")
        text = text.replace("microbatch_size = 2", "microbatch_size = 1").replace("microbatch_size = 4", "microbatch_size = 1")
        config.write_text(text.replace("[checkpoint]\nevery_steps = 0\nram_every_steps = 0\n", ""))
        figures = []
        for number, way in enumerate(WAYS):
            row = measure(Path(name) / str(number), config, way, group, options)
            figures.append(row | {"of_undisturbed": row["tokens_per_rank_hour"] / (figures or [row])[0]["tokens_per_rank_hour"]})
            print(f"| {way} | {row['seconds']:.1f} | {row['losses']} | {row['steps_again']} | {row['tokens_per_rank_hour']:.0f} | "
                  f"{figures[-1]['of_undisturbed']:.3f} |", flush=True)
    if len({row["digest"] for row in figures}) != 1:
        fail("the three runs do not end with the same bits")
    write_json(options.json, "shrinking", figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
