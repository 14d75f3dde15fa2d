#!/usr/bin/env python3
"""S12: a link that comes with a downloaded checkpoint, or stands in one of the run directory, sends the file that it leads to away.

Both commands are as people write them: one keeps links (cp -a, rsync, tar), the other follows them (cp -L, aws s3 cp).
"""
import shutil

import attack

SECRET = "this is nobody else's"
DOWNLOAD = 'cp -a ../backup/. "$HOLDFAST_DOWNLOAD"'
UPLOAD = 'mkdir -p ../sent && cp -rL "$HOLDFAST_CHECKPOINT" "../sent/$HOLDFAST_NAME"'
UPLOAD_FILE = 'mkdir -p ../sent && cp -L "$HOLDFAST_FILE" ../sent/'


def run_attack(scene):
    private = scene.folder / "private.txt"
    private.write_text(SECRET)
    sent = scene.folder.parent / f"{scene.folder.name}-sent"
    backup = scene.folder / "backup"

    def tell(what, done, directory=sent):
        found = [path for path in directory.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()]
        scene.expect(bool(found), f"{what}: {found[0].name if found else ''} was sent away", f"{what}: {attack.last_line(done)}")

    def commands(*lines):
        return [line.replace("../backup", str(backup)).replace("../sent", str(sent)) for line in lines]

    try:
        scene.train()
        shutil.move(sorted((scene.run / "checkpoints").iterdir())[-1], backup)
        shutil.rmtree(scene.run)
        (backup / "notes.txt").symlink_to(private)
        (backup / "more").mkdir()
        (backup / "more/notes.txt").symlink_to(private)
        (backup / "own.txt").write_text("a file that no manifest names")
        download, upload, upload_file = commands(DOWNLOAD, UPLOAD, UPLOAD_FILE)
        done = scene.holdfast("train", "run.toml", f"--checkpoint.download_command={download}", f"--checkpoint.upload_command={upload}")
        tell("a link in a download", done)
        kept = {path.name for path in sorted((scene.run / "checkpoints").iterdir())[-1].iterdir()}
        scene.expect(bool(kept & {"notes.txt", "more", "own.txt"}), f"a download keeps what is none of its files: {sorted(kept)}",
                     f"of a download are kept {sorted(kept)}")
        for key, line in (("upload_command", upload), ("upload_shard_command", upload_file)):
            shutil.rmtree(scene.run, ignore_errors=True)
            shutil.rmtree(sent, ignore_errors=True)
            scene.train("--training.steps=2")
            checkpoint = sorted((scene.run / "checkpoints").iterdir())[-1]
            if key == "upload_command":
                (checkpoint / "notes.txt").symlink_to(private)
                done = scene.holdfast("train", "run.toml", "--training.steps=2", f"--checkpoint.{key}={line}")
                tell(f"a link in the run directory, {key}", done)
            else:
                shard = next(checkpoint.glob("shard-*"))
                shutil.move(shard, scene.folder / "moved")
                shard.symlink_to(scene.folder / "moved")
                done = scene.holdfast("train", "run.toml", "--training.steps=2", f"--checkpoint.{key}={line}")
                scene.expect((sent / shard.name).exists(), f"{key} sends what a link leads to", f"{key}: {attack.last_line(done)}")
    finally:
        shutil.rmtree(sent, ignore_errors=True)


if __name__ == "__main__":
    attack.main(run_attack, __doc__)
