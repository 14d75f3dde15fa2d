"""Makes a Python wheel of an installed tree (cmake --install) and tools/python/holdfast; run by tools/package.

    python3 tools/package_wheel.py INSTALLED OUTPUT

A wheel is a zip file (PEP 427). It keeps no links, so what the tree links to is stored in their place, under the names that
programs ask for; files that can be run keep that.
"""
import base64
import hashlib
import os
import platform
import re
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NEEDS_PYTHON = "3.9"
MADE = (1980, 1, 1, 0, 0, 0)  # the same files give the same wheel


def version():
    return re.search(r"project\(holdfast VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text())[1]


def platform_tag():
    """The C library is the one thing that the wheel takes from the system: no older one will do."""
    name, number = platform.libc_ver()
    if name != "glibc":
        sys.exit(f"package_wheel: wheels are made on systems with glibc, and this one has {name or 'another C library'}")
    return f"manylinux_{number.replace('.', '_')}_{platform.machine()}"


def needed_libraries(program):
    """The names under which a program or library asks for others."""
    table = subprocess.run(["readelf", "-d", str(program)], capture_output=True, text=True, check=True).stdout
    return set(re.findall(r"\(NEEDED\).*\[(.+)\]", table))


def files_of(installed):
    """(path in the tree, file) of what the wheel holds: the programs with their folder, and the examples."""
    home = installed / "lib/holdfast"
    wanted = {name for path in home.rglob("*") if path.is_file() and path.read_bytes()[:4] == b"\x7fELF" for name in needed_libraries(path)}
    for path in sorted(home.rglob("*")) + sorted((installed / "share/holdfast").rglob("*")) + sorted((installed / "share/doc/holdfast/licences").rglob("*")):
        if not path.is_file() or (path.parent == home / "lib" and path.name not in wanted):
            continue
        yield path.relative_to(installed), path


class Wheel:
    def __init__(self, path):
        self.zip = zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED)
        self.record = []

    def add(self, name, content, runs=False):
        entry = zipfile.ZipInfo(name, MADE)
        entry.external_attr = (0o100755 if runs else 0o100644) << 16
        entry.compress_type = zipfile.ZIP_DEFLATED
        self.zip.writestr(entry, content)
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        self.record.append(f"{name},sha256={digest},{len(content)}")

    def close(self, info):
        lines = "\n".join([*self.record, f"{info}/RECORD,,"]) + "\n"
        entry = zipfile.ZipInfo(f"{info}/RECORD", MADE)
        entry.external_attr = 0o100644 << 16
        self.zip.writestr(entry, lines)
        self.zip.close()


def main(installed, output):
    number, tag = version(), f"py3-none-{platform_tag()}"
    info = f"holdfast-{number}.dist-info"
    wheel = Wheel(output / f"holdfast-{number}-{tag}.whl")
    for path in sorted((ROOT / "tools/python/holdfast").glob("*.py")):
        wheel.add(f"holdfast/{path.name}", path.read_bytes())
    for name, path in files_of(installed):
        wheel.add(f"holdfast/program/{name}", path.read_bytes(), runs=os.access(path, os.X_OK))
    wheel.add(f"{info}/METADATA", (
        f"Metadata-Version: 2.1\nName: holdfast\nVersion: {number}\n"
        "Summary: Trains transformers and keeps training when things fail\n"
        f"Requires-Python: >={NEEDS_PYTHON}\nProvides-Extra: numpy\nRequires-Dist: numpy; extra == 'numpy'\n").encode())
    wheel.add(f"{info}/WHEEL", f"Wheel-Version: 1.0\nGenerator: holdfast\nRoot-Is-Purelib: false\nTag: {tag}\n".encode())
    wheel.add(f"{info}/entry_points.txt", b"[console_scripts]\nholdfast = holdfast:main\n")
    wheel.close(info)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
