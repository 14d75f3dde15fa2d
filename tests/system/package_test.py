"""What tools/package makes is used where nothing else is: in a root with the C library, a shell and what the package itself asks for.
There a run of two ranks ends with the bits of this tree's program, and it does so wherever the folder is moved."""
import os
import re
import shutil
import subprocess
import sys
import unittest
from pathlib import Path

import harness

BUILD = harness.PROGRAM.parent.parent
C_LIBRARY = ["libc6", "dash"]  # and a shell, as every system has one
PYTHON = ["python3-minimal", "python3.11-minimal", "libpython3.11-minimal", "libpython3.11-stdlib", "zlib1g", "libexpat1", "libffi8"]
NUMPY = harness.ROOT / ".deps/metrics/bin/python"  # which has it
ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root"}


def files_of(package):
    """The files and links of a Debian package that is installed here, without what it says about itself."""
    listed = subprocess.run(["dpkg-query", "--listfiles", package], capture_output=True, text=True, check=False)
    if listed.returncode != 0:
        raise unittest.SkipTest(f"the root for this test is made of {package}, which is not installed here")
    paths = [Path(line) for line in listed.stdout.splitlines()]
    return [path for path in paths if (path.is_symlink() or path.is_file()) and "/usr/share/" not in f"{path}/"]


class Root:
    """A root directory with files of packages that are installed here."""

    def __init__(self, place, packages):
        self.place = place
        for name in ("usr/lib", "usr/lib64", "usr/bin", "usr/sbin", "proc", "sys", "dev", "tmp", "root", "srv", "etc"):
            (place / name).mkdir(parents=True)
        for name in ("lib", "lib64", "bin", "sbin"):
            (place / name).symlink_to(f"usr/{name}")
        (place / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
        (place / "etc/hosts").write_text("127.0.0.1 localhost\n")
        paths = [str(path).lstrip("/") for package in packages for path in files_of(package)]
        packed = subprocess.run(["tar", "-C", "/", "-cf", "-", "-T", "-"], input="\n".join(paths).encode(), stdout=subprocess.PIPE, check=True)
        subprocess.run(["tar", "-C", str(place), "--keep-directory-symlink", "-xf", "-"], input=packed.stdout, check=True)

    def call(self, *words, code=0):
        """What a command says that runs inside, in namespaces of its own."""
        mounts = ("mount -t proc proc proc && mount --rbind /sys sys && mount --rbind /dev dev && mount -t tmpfs shm dev/shm && "
                  'exec chroot . "$@"')
        done = subprocess.run(["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", mounts, "sh", *map(str, words)],
                              cwd=self.place, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300, check=False)
        if done.returncode != code:
            raise AssertionError(f"{' '.join(map(str, words))}: exit code {done.returncode}\n{done.stdout}")
        return done.stdout


class PackageTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if os.geteuid() != 0 or not harness.can_unshare_pids():
            harness.skip("a root of its own needs namespaces, and so root")
        cls.scene = harness.Scene(steps=20)
        cls.addClassCleanup(cls.scene.close)
        run = cls.scene.run("here")
        run.start(ranks=2).expect_exit(0)
        cls.digest = run.digest()

    def root_of(self, name, packages=()):
        root = Root(self.scene.directory / f"root of {name}", [*C_LIBRARY, *packages])
        shutil.copy(self.scene.text, root.place / "srv/train.txt")
        text = self.scene.config.read_text().replace(str(self.scene.text), "/srv/train.txt")
        (root.place / "srv/run.toml").write_text(text.replace('"unset"', '"/srv/run"'))
        return root

    def package(self, kind, pattern):
        """The file that tools/package makes of this kind."""
        output = self.scene.directory / kind
        made = subprocess.run([harness.ROOT / "tools/package", "--build", BUILD, "--output", output, "--only", kind], capture_output=True, text=True,
                              check=False)
        self.assertEqual(made.returncode, 0, made.stdout + made.stderr)
        found = list(output.glob(pattern))
        self.assertEqual(len(found), 1, f"{pattern}: {sorted(output.iterdir())}")
        return found[0]

    def trains(self, root, program):
        """Two ranks under the launcher of the package come to the bits of this tree."""
        version = root.call(program, "--version")
        self.assertRegex(version, r"mpi +Open MPI .* with ULFM")
        self.assertRegex(version, r"source +[0-9a-f]{12}(-dirty)?, [0-9a-f]{16}\n", "it tells what it was built from")
        said = root.call(program, "launch", "-np", "2", "/srv/run.toml")
        self.assertIn("on 2 ranks", said)
        self.assertEqual(root.call(program, "digest", "/srv/run"), self.digest)

    def test_a_tarball_runs_where_it_is_unpacked(self):
        root = self.root_of("the tarball")
        subprocess.run(["tar", "-C", str(root.place / "srv"), "-xf", str(self.package("tarball", "holdfast-*-linux-*.tar.gz"))], check=True)
        unpacked = next(root.place.glob("srv/holdfast-*"))
        moved = root.place / "srv/a place"
        unpacked.rename(moved)
        self.trains(root, "/srv/a place/bin/holdfast")
        # A library of the system's, other than the C library, is in the tarball, with its terms.
        for file in (moved / "lib/holdfast/lib").glob("libfmt.so.*"):
            self.assertTrue(list((moved / "share/doc/holdfast/licences").glob("libfmt*")), file)
        # What a user reads is there, and the words of it hold for what is installed.
        self.assertTrue((moved / "share/doc/holdfast/docs/install.md").exists())
        for script in ("notice/slurm", "examples/slurm_object_store.sh"):
            self.assertTrue(os.access(moved / "share/holdfast/configs" / script, os.X_OK), script)
        self.assertIn("fits", root.call("/srv/a place/bin/holdfast", "plan", "/srv/run.toml", "--ranks", "2"))

    @harness.full
    def test_a_deb_needs_what_it_says(self):
        if not shutil.which("dpkg-shlibdeps"):
            harness.skip("a .deb needs the package dpkg-dev; tools/bootstrap --tests installs it")
        deb = self.package("deb", "holdfast_*.deb")
        field = subprocess.run(["dpkg-deb", "--field", deb, "Depends"], capture_output=True, text=True, check=True).stdout
        needs = re.findall(r"(?:^|, )([a-z0-9.+-]+)", field)
        self.assertIn("libzstd1", needs)
        # And what those need in their turn: what dnnl is linked to.
        root = self.root_of("the deb", [*needs, "ocl-icd-libopencl1", "libgomp1"])
        subprocess.run(["dpkg-deb", "--extract", deb, root.place / "srv/deb"], check=True)
        subprocess.run(["cp", "-a", f"{root.place}/srv/deb/usr/.", f"{root.place}/usr/"], check=True)
        self.assertFalse((root.place / "usr/lib/holdfast/lib").exists(), "libraries of other packages")
        self.trains(root, "holdfast")

    def test_the_unit_of_systemd(self):
        """systemd takes it, and what it counts as a success, and as an error that needs a person, are exit codes of docs/errors.md."""
        unit = harness.ROOT / "configs/systemd/holdfast@.service"
        text = unit.read_text()
        meanings = dict(re.findall(r"^\| (\d+) \| (.*) \|$", (harness.ROOT / "docs/errors.md").read_text(), re.MULTILINE))
        self.assertIn("saved and stopped", meanings[re.search(r"SuccessExitStatus=(\d+)$", text, re.MULTILINE)[1]])
        prevented = re.search(r"RestartPreventExitStatus=([\d ]+)$", text, re.MULTILINE)[1].split()
        self.assertEqual(set(prevented), {code for code in meanings if 2 <= int(code) <= 20})
        if not shutil.which("systemd-analyze"):
            self.skipTest("there is no systemd-analyze")
        copy = self.scene.directory / "holdfast@test.service"
        copy.write_text(text.replace("/usr/bin/holdfast", str(harness.PROGRAM)).replace("User=holdfast", "User=root"))
        checked = subprocess.run(["systemd-analyze", "verify", "--man=no", copy], capture_output=True, text=True, check=False)
        said = [line for line in checked.stderr.splitlines() if copy.name in line]
        self.assertEqual((checked.returncode, said), (0, []), checked.stderr)

    @harness.full
    def test_a_wheel_brings_the_program_and_reads_what_it_writes(self):
        root = self.root_of("the wheel", PYTHON)
        site = root.place / "usr/lib/python3/dist-packages"
        subprocess.run([sys.executable, "-m", "venv", self.scene.directory / "venv"], check=True)
        subprocess.run([self.scene.directory / "venv/bin/pip", "install", "--quiet", "--disable-pip-version-check", "--no-index", "--no-deps",
                        "--target", site, self.package("wheel", "holdfast-*-py3-none-manylinux_*.whl")], check=True)
        (site / "bin/holdfast").write_text((site / "bin/holdfast").read_text().replace(str(self.scene.directory / "venv"), "/usr"))
        self.trains(root, f"/{(site / 'bin/holdfast').relative_to(root.place)}")
        looks = ("import holdfast; run = '/srv/run'; steps = holdfast.read_events(run, kind='step'); "
                 "print(len(steps), steps[-1]['step'], holdfast.read_status(run)['step'])")
        self.assertEqual(root.call("python3", "-c", looks), "20 20 20\n")
        refused = ("import holdfast\ntry: holdfast.read_events('/srv/nothing')\n"
                   "except holdfast.Error as error: print(error.code, error)")
        self.assertRegex(root.call("python3", "-c", refused), r"^2 .*/srv/nothing")
        if not NUMPY.exists():
            self.skipTest("numpy is not there; tools/bootstrap --tests gets it")
        # The same numbers as transformers would read, counted; numpy needs more than that root has.
        counts = (f"import holdfast; weights = holdfast.read_checkpoint('{root.place}/srv/run'); "
                  "print(sum(array.size for array in weights.values()), {str(array.dtype) for array in weights.values()})")
        counted = subprocess.run([NUMPY, "-c", counts], env={**os.environ, "PYTHONPATH": str(site)}, capture_output=True, text=True, check=False)
        self.assertEqual(counted.stdout, f"{self.scene.run('here').events('start')[0]['parameters']} {{'float32'}}\n", counted.stderr)


if __name__ == "__main__":
    harness.main(at_once=1)
