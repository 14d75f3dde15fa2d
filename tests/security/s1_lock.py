#!/usr/bin/env python3
"""Another user who may read the run directory holds the locks in it, and what is locked in shared memory, and the run cannot
start."""
import fcntl
import os

import two_users

held = []


def hold_all(run):
    locked = []
    for path in [*two_users.files_below(run), *two_users.files_below("/dev/shm")]:
        try:
            descriptor = os.open(path, os.O_RDONLY)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            continue
        held.append(descriptor)
        if path.name == "lock" or str(path).startswith("/dev/shm"):
            locked.append(str(path))
    return locked


def main():
    victim = two_users.Victim(two_users.begin(__doc__))
    victim.train_until_killed()
    other = two_users.Other(lambda: hold_all(victim.folder / "run"))
    evidence = [f"user {two_users.OTHER} holds {path}" for path in other.result]
    again = victim.train()
    if again.returncode != 0:
        evidence.append(f"the run does not start: {again.stdout.strip().splitlines()[-1]}")
    other.end()
    two_users.end(evidence)


main()
