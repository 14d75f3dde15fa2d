#!/usr/bin/env python3
"""S13: `holdfast replay` of a run directory from elsewhere opens devices and streams that its config names as training data.

Opening some devices has effects: that of a watchdog restarts the machine. Here a pipe stands for one: whoever opens it is noticed.
"""
import os

import attack


def run_attack(scene):
    scene.train()
    config = scene.run / "config.toml"
    text = config.read_text()
    stored = str(scene.folder / "text.txt") if str(scene.folder / "text.txt") in text else "text.txt"
    read, write = os.pipe()
    try:
        os.write(write, b"it trains, one step after the other.\n" * 200)
        for manifest in (scene.run / "checkpoints").glob("*"):  # so that the config of the directory counts
            for path in manifest.iterdir():
                path.unlink()
            manifest.rmdir()
        for name in (f"/proc/{os.getpid()}/fd/{read}", "/dev/zero"):
            config.write_text(text.replace(f'"{stored}"', f'"{name}"'))
            done = scene.holdfast("replay", "run", "--step", "3", patience_s=20)
            refused = done.returncode == 2 and "only where the command line names it" in done.stdout + done.stderr
            kind = "a device" if name.startswith("/dev") else "a pipe"
            scene.expect(not refused, f"replay opens {kind} that the config of the run names: {attack.last_line(done)}",
                         f"{kind} in the config of a run: {attack.last_line(done)}")
        config.write_text(text)
    finally:
        os.close(read)
        os.close(write)


if __name__ == "__main__":
    attack.main(run_attack, __doc__)
