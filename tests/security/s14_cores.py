#!/usr/bin/env python3
"""S14: the kernel writes the memory of a process that crashes into its directory, with weights, data, the secret of the run and the
environment. This looks at the limit on core files of every process of a run that began with none."""
import os
import resource
import signal
import subprocess
import time
from pathlib import Path

import attack

COMMANDS = ("launch", "train", "guard")
MARK = "HOLDFAST_TEST_ATTACK_MARK"


def limits(mark):
    """{command: soft limit on core files} of the processes of the run."""
    found = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if mark.encode() not in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                continue
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            for line in Path(f"/proc/{pid}/limits").read_text().splitlines():
                if line.startswith("Max core file size") and len(words) > 1 and b"holdfast" in words[0]:
                    found[words[1].decode(errors="replace")] = line.split()[4]
        except OSError:
            continue
    return found


def run_attack(scene):
    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    if hard == 0:
        raise attack.Cannot("core files are forbidden for good here")
    process = subprocess.Popen([scene.program, "launch", "-np", "2", "run.toml", "--training.steps=100000"], cwd=scene.folder,
                               env=scene.environment(**{MARK: str(scene.folder)}), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                               start_new_session=True,
                               preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CORE, (hard, hard)))
    seen, end_s = {}, time.monotonic() + attack.PATIENCE_S
    while time.monotonic() < end_s and process.poll() is None and not {"train", "guard"} <= set(seen):
        seen.update({name: limit for name, limit in limits(f"{MARK}={scene.folder}").items() if name in COMMANDS})
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    process.wait(attack.PATIENCE_S)
    if "train" not in seen:
        raise AssertionError(f"no rank was seen: {seen}")
    for name, limit in sorted(seen.items()):
        scene.expect(limit != "0", f"holdfast {name} leaves core files of {limit} bytes", f"holdfast {name} leaves no core file")


if __name__ == "__main__":
    attack.main(run_attack, __doc__)
