#!/usr/bin/env python3
"""Another user takes the names that a run will use in shared memory before it does, or plants links in a run directory that he
may write, which lead to files of the victim."""
import os
import socket
from pathlib import Path

import two_users

PIDS = 2000  # that the next start may have


def names_of_boards():
    """A board is named by what a start has in common: the process of a run that was started alone, its host, its namespace."""
    host, namespace = socket.gethostname(), os.readlink("/proc/self/ns/pid")
    for pid in range(os.getpid(), os.getpid() + PIDS):
        for start in (f"alone-{pid} {host}", f"alone-{pid} {host} {namespace}"):
            digest = two_users.digest_of(start)
            if digest is not None:
                yield f"holdfast-board-{digest}"


def squat():
    own = Path("/dev/shm/mine")
    own.mkdir(0o777)
    own.chmod(0o777)
    first = Path(f"/dev/shm/holdfast-{two_users.VICTIM}")
    first.mkdir(0o777)
    first.chmod(0o777)
    Path(f"{first}-1").symlink_to(own)
    os.mkfifo(f"{first}-2", 0o666)
    for name in names_of_boards():
        for folder in (Path("/dev/shm"), first, own):
            (folder / name).write_text("none of yours")
    return sorted(str(path) for path in (own, first))


def main():
    program = two_users.begin(__doc__)
    victim = two_users.Victim(program)
    folders = [Path(folder) for folder in two_users.as_other(squat)]
    evidence = []
    trained = victim.train()
    if trained.returncode != 0:
        evidence.append(f"the run does not start: {trained.stdout.strip()}")
    evidence += [line for line in trained.stdout.splitlines() if "without a watchdog" in line or "no RAM snapshots" in line]
    for folder in folders:
        evidence += [f"the run has {path} in a directory of user {two_users.OTHER}" for path in folder.iterdir() if path.stat().st_uid == two_users.VICTIM]

    precious = victim.folder / "precious"
    precious.write_text("years of work\n")
    run = victim.folder / "shared"
    run.mkdir()
    run.chmod(0o777)
    for path in (precious, run):
        os.chown(path, two_users.VICTIM, two_users.VICTIM)
    two_users.as_other(lambda: (run / "lock").symlink_to(precious))
    victim.train("--run.directory=shared")
    if precious.read_text() != "years of work\n":
        evidence.append(f"by a link under the name of its lock the run has written to another file of its user: {precious.read_text()!r}")
    two_users.end(evidence)


main()
