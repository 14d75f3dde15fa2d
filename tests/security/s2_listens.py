#!/usr/bin/env python3
"""S2: a run of one host listens where machines of the network reach it, with a guard that believes who connects.

The victim trains with one rank. Looked for are ports of its processes at which the kernel takes connections from other hosts.
"""
import os
import threading
import time
from pathlib import Path

import attack

SETTLE_S = 20
MARK = "ATTACKED"
LISTENS = "0A"
LOOPBACK = ("0100007F", "00000000000000000000000001000000", "0000000000000000FFFF00000100007F")


def processes_of(folder):
    """Those that the victim has started, which have its environment."""
    mark = f"{MARK}={folder}".encode()
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and mark in (entry / "environ").read_bytes().split(b"\0"):
                yield entry
        except OSError:
            continue  # it has ended


def open_ports(folder):
    """(process, port) that listen at another address than loopback."""
    listening = {}
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            _, local, _, state, *rest = line.split()
            address, port = local.split(":")
            if state == LISTENS and address not in LOOPBACK:
                listening[f"socket:[{rest[5]}]"] = int(port, 16)
    found = set()
    for process in processes_of(folder):
        try:
            held = {os.readlink(descriptor) for descriptor in (process / "fd").iterdir()}
            name = (process / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        found |= {(" ".join(word.decode(errors="replace") for word in name[:2]), listening[socket]) for socket in held & set(listening)}
    return found


def run_attack(scene):
    ended = threading.Event()

    def train():
        scene.train("--training.steps=20", HOLDFAST_FAULTS="step.begin=sleep:200", **{MARK: str(scene.folder)})
        ended.set()

    victim = threading.Thread(target=train)
    victim.start()
    found, seen, limit = set(), False, time.monotonic() + SETTLE_S
    while not ended.is_set() and time.monotonic() < limit and not found:
        found = open_ports(scene.folder)
        seen = seen or len(list(processes_of(scene.folder))) > 1
        time.sleep(0.1)
    victim.join()
    if not seen:
        raise AssertionError("no process of the run was seen beside its rank: there is no guard to be attacked")
    for name, port in sorted(found):
        scene.succeeds(f"{name} listens at port {port} of every interface")
    if not found:
        scene.fails("no process of the run listens for other hosts")


if __name__ == "__main__":
    attack.main(run_attack, __doc__)
