"""Which source this is: the commit, and a digest of the files that are built, for trees that travel without git.

    python3 tools/gpu_check/source.py    # prints both; tools/bootstrap packs them as .deps/source
"""
import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
CARRIED = ROOT / ".deps/source"
FOLDERS = ["cmake", "kernels", "parallel", "checkpoint", "runtime", "watchdog", "tests", "tools"]
IGNORED = ("__pycache__",)


def digest(root=ROOT):
    """The first 16 hex digits of SHA-256 over names and bytes of all files that are built or run."""
    total = hashlib.sha256()
    paths = [root / "CMakeLists.txt", root / "CMakePresets.json"]
    paths += [path for folder in FOLDERS for path in (root / folder).rglob("*")]
    for path in sorted(paths):
        if path.is_file() and not any(part in IGNORED for part in path.parts):
            total.update(f"{path.relative_to(root)}\0".encode())
            total.update(hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()[:16]


def git_commit(root=ROOT):
    """None where there is no git or no repository."""
    if shutil.which("git") is None or not (root / ".git").exists():
        return None
    found = subprocess.run(["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12"], capture_output=True,
                           text=True, check=False)
    return found.stdout.strip() if found.returncode == 0 else None


def commit(root=ROOT, carried=CARRIED):
    """By git, else what the bundle carries; that says so when files have changed since."""
    found = git_commit(root)
    if found is not None:
        return found
    if not carried.exists():
        return "unknown"
    lines = carried.read_text().split()
    if len(lines) != 2:
        return "unknown"
    return lines[0] if lines[1] == digest(root) else f"{lines[0]} with later changes"


if __name__ == "__main__":
    print(commit())
    print(digest())
    sys.exit(0)
