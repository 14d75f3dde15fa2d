#!/usr/bin/env python3
"""S9: a token in a command of the config is in files that others read: those of the run directory, manifests that are uploaded, reports.

Whoever may read the run directory, or an uploaded checkpoint, has it then.
"""
import attack

TOKEN = "s3cr3t-t0k3n"


def run_attack(scene):
    command = f"TOKEN={TOKEN} true"
    keys = scene.holdfast("config", "docs").stdout  # an older program has fewer
    scene.train(*[f"--{key}={value}" for key, value in (("checkpoint.upload_command", command), ("checkpoint.download_command", command),
                                                        ("elastic.notice_command", f"false # {TOKEN}"), ("notify.command", f"false # {TOKEN}")) if f"`{key}`" in keys])
    again = scene.train("--training.steps=6", f"--checkpoint.upload_command={command} again")
    scene.holdfast("report", "run")
    told = [str(path.relative_to(scene.folder)) for path in sorted(scene.run.rglob("*"))
            if path.is_file() and TOKEN.encode() in path.read_bytes()]
    scene.expect(bool(told), f"the token is in {', '.join(told)}", "the token is in no file of the run directory")
    for words in (["inspect", "run", "--json"], ["inspect", "run"], ["status", "run", "--json"]):
        done = scene.holdfast(*words)
        scene.expect(TOKEN in done.stdout + done.stderr, f"{' '.join(words)} shows it", f"{' '.join(words)} does not show it")
    scene.expect(TOKEN in again.stdout + again.stderr, "a resume tells which command it was before, and is now", "nor does a resume")


if __name__ == "__main__":
    attack.main(run_attack, __doc__)
