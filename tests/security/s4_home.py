#!/usr/bin/env python3
"""S4: without HOME, Open MPI reads its settings from /tmp, where anybody may put some: they name files to write and libraries to load.

In a mount namespace with a /tmp of its own lies the attacker's /tmp/.openmpi/mca-params.conf; the victim starts a run without HOME, by
holdfast launch and by tools/mpirun, as root and as a user whom no database knows.
"""
import os
import shutil

import attack

SHOWN = "shown-by-open-mpi"
INSIDE = """
set -e
mkdir "$3"
mount --bind "$2" "$3"
mount -t tmpfs none /tmp
if [ ! -e "$2" ]; then # the tree itself is below /tmp
  mkdir -p "$2"
  mount --bind "$3" "$2"
fi
mkdir -p /tmp/.openmpi /tmp/.prte /tmp/.pmix
echo 'mpi_show_mca_params = all
mpi_show_mca_params_file = '"$1" > /tmp/.openmpi/mca-params.conf
chmod -R a+rX /tmp/.openmpi
shift 3
unset HOME
exec "$@"
"""
UNKNOWN = "54321"


def run_attack(scene):
    if os.geteuid() != 0 or not all(map(shutil.which, ("unshare", "setpriv", "mount"))):
        raise attack.Cannot("it takes root, unshare and setpriv")
    place = "/var/tmp" if str(scene.folder).startswith("/tmp/") else None
    if place:  # the folder has to be seen beside the other /tmp
        seen = attack.Path(attack.tempfile.mkdtemp(prefix="holdfast-attack-", dir=place))
        shutil.copytree(scene.folder, seen, dirs_exist_ok=True)
        shutil.rmtree(scene.folder)
        scene.folder, scene.run = seen, seen / "run"
    try:
        attack_from(scene)
    finally:
        shutil.rmtree(scene.folder, ignore_errors=True)


def attack_from(scene):
    os.chmod(scene.folder, 0o777)
    scratch = scene.folder / "scratch"
    scratch.mkdir()
    scratch.chmod(0o1777)
    shown = scene.folder / SHOWN
    train = [scene.program, "train", "run.toml"]
    launch = [scene.program, "launch", "-np", "2", "run.toml"]
    as_nobody = ["setpriv", "--reuid", UNKNOWN, "--regid", UNKNOWN, "--clear-groups", "--"]
    ways = {"holdfast launch": launch, "tools/mpirun": [attack.ROOT / "tools/mpirun", "-np", "2", *train]}
    if scene.call([*as_nobody, "test", "-x", scene.program]).returncode == 0:
        ways["holdfast launch of a user without a home"] = [*as_nobody, *launch]
    for index, (way, words) in enumerate(ways.items()):
        shown.unlink(missing_ok=True)
        done = scene.call(["unshare", "-m", "sh", "-c", INSIDE, "sh", shown, attack.ROOT, scene.folder / f"tree-{index}", *words, f"--run.directory=run-{index}"],
                          TMPDIR=str(scratch), PRTE_MCA_prte_tmpdir_base=None)
        scene.expect(shown.exists(), f"{way}: Open MPI wrote {shown}, as the settings in /tmp told it to",
                     f"{way}: the settings in /tmp were not read; {attack.last_line(done)}")
        if done.returncode != 0 and not shown.exists():
            raise AssertionError(f"{way} does not even train: {done.returncode}: {(done.stdout + done.stderr)[-1500:]}")


if __name__ == "__main__":
    attack.main(run_attack, __doc__)
