#!/usr/bin/env python3
"""S7: bytes that are no text, in files of a run directory, abort every start of the run."""
import signal

import attack

NO_TEXT = b"\xff\xfe\x00\x80"


def run_attack(scene):
    scene.train()
    id_ = (scene.run / "run_id").read_bytes()
    for name, content in (("run_id", NO_TEXT), ("run_id", id_ + b"\n"), ("run_place", id_ + b"\n" + NO_TEXT), ("launch/token", NO_TEXT),
                          ("status.json", NO_TEXT), ("lineage.json", NO_TEXT), ("history.json", NO_TEXT),
                          ("hardware.json", NO_TEXT)):
        path = scene.run / name
        path.parent.mkdir(exist_ok=True)
        before = path.read_bytes() if path.exists() else None
        path.write_bytes(content)
        for words in (["train", "run.toml", "--training.steps=5"], ["launch", "-np", "1", "run.toml", "--training.steps=5"], ["status", "run"],
                      ["clean", "run"]):
            done = scene.holdfast(*words)
            died = done.returncode is None or done.returncode < 0 or done.returncode == 128 + signal.SIGABRT or \
                "terminate called" in done.stderr or "bug:" in done.stderr
            scene.expect(died, f"{words[0]} aborts for what is in {name}: {attack.last_line(done)}",
                         f"{name}, {words[0]}: {attack.last_line(done)}")
        if before is None:
            path.unlink(missing_ok=True)
        else:
            path.write_bytes(before)


if __name__ == "__main__":
    attack.main(run_attack, __doc__)
