#!/usr/bin/env python3
"""S2: a run of one host listens where machines of the network reach it, with a guard that believes who connects.

The victim trains with one rank. Looked for are ports of its processes at which the kernel takes connections from other hosts.
"""
import threading
import time

import attack
import listening

SETTLE_S = 20


def run_attack(scene):
    ended = threading.Event()

    def train():
        scene.train("--training.steps=20", HOLDFAST_FAULTS="step.begin=sleep:200", **listening.mark(scene.folder))
        ended.set()

    victim = threading.Thread(target=train)
    victim.start()
    found, seen, limit = set(), False, time.monotonic() + SETTLE_S
    while not ended.is_set() and time.monotonic() < limit and not found:
        found = listening.ports(scene.folder)
        seen = seen or len(list(listening.processes_of(scene.folder))) > 1
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
