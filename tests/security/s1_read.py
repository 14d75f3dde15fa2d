#!/usr/bin/env python3
"""Another user of the host reads what a run has in shared memory: weights, optimizer state, the board."""
import two_users


def readable():
    found = []
    for path in two_users.files_below("/dev/shm"):
        try:
            beginning = path.read_bytes()[:4096]
        except OSError:
            continue
        kind = "a RAM snapshot" if beginning.startswith(b"HFSNAP") else "a board" if b"hfboard" in beginning[:8] else "something"
        found.append(f"user {two_users.OTHER} reads {kind}: {path}")
    return found


def main():
    victim = two_users.Victim(two_users.begin(__doc__))
    victim.train_until_killed()
    snapshots = [path for path in two_users.files_below("/dev/shm") if path.read_bytes().startswith(b"HFSNAP")]
    assert snapshots, "the run has left no snapshot"
    two_users.end(two_users.as_other(readable))


main()
