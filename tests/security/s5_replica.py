#!/usr/bin/env python3
"""S5: a stranger who connects to the ports at which ranks take replicas, and says nothing, keeps the run from confirming snapshots.

The victim trains with two ranks that keep replicas for each other. Once a snapshot is confirmed each port of its ranks gets silent
connections; looked for is a snapshot that is confirmed while they are there.
"""
import contextlib
import json
import socket
import threading
import time
from pathlib import Path

import attack
import listening

SETTLE_S, LOOK_S = 40, 10
CALLERS = 8  # to each port
# Those below are of Open MPI's transport.
FIRST_OWN_PORT = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
STEPS = 150
SLOW_STEPS = ",".join(f"step.begin@{step}=sleep:100" for step in range(1, STEPS))
OPTIONS = [f"--training.steps={STEPS}", "--checkpoint.every_steps=1000", "--checkpoint.ram_every_steps=2", "--checkpoint.replicas=on"]


def snapshots(scene):
    """The steps of those that the run has confirmed."""
    with contextlib.suppress(OSError):
        lines = (scene.run / "events.jsonl").read_text().splitlines(keepends=True)
        events = [json.loads(line) for line in lines if line.endswith("\n")]
        return [event["step"] for event in events if event["event"] == "snapshot"]
    return []


def silent_callers(places):
    for port in sorted({port for _, port in places if port >= FIRST_OWN_PORT}):
        for _ in range(CALLERS):
            with contextlib.suppress(OSError):
                yield socket.create_connection(("127.0.0.1", port), timeout=2)


def run_attack(scene):
    ended = []

    def train():
        words = [attack.ROOT / "tools/mpirun", "-np", "2", scene.program, "train", "run.toml", *OPTIONS]
        ended.append(scene.call(words, HOLDFAST_FAULTS=SLOW_STEPS, **listening.mark(scene.folder)))

    victim = threading.Thread(target=train)
    victim.start()
    limit = time.monotonic() + SETTLE_S
    while not ended and time.monotonic() < limit and not snapshots(scene):
        time.sleep(0.1)
    callers = list(silent_callers(listening.ports(scene.folder, at_loopback=True)))
    before = snapshots(scene)
    time.sleep(1)  # what was under way may end
    calm = snapshots(scene)
    time.sleep(LOOK_S)
    after = snapshots(scene)
    running = not ended
    for caller in callers:
        caller.close()
    victim.join()
    if not before or not callers or not running:
        raise AssertionError(f"nothing to attack: {len(before)} snapshots, {len(callers)} connections; {attack.last_line(ended[0])}")
    scene.expect(after == calm, f"{len(callers)} silent connections, and for {LOOK_S} s no snapshot of the run is confirmed",
                 f"{len(after) - len(calm)} snapshots are confirmed in {LOOK_S} s beside {len(callers)} silent connections")


if __name__ == "__main__":
    attack.main(run_attack, __doc__)
