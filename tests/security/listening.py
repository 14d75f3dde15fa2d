"""The ports at which the processes of a victim listen, for the attacks of this folder."""
import os
from pathlib import Path

MARK = "ATTACKED"
LISTENS = "0A"
LOOPBACK = ("0100007F", "00000000000000000000000001000000", "0000000000000000FFFF00000100007F")


def mark(folder):
    """The variable by which processes_of() knows what the victim of this folder starts."""
    return {MARK: str(folder)}


def processes_of(folder):
    """Those that the victim has started, which have its environment."""
    wanted = f"{MARK}={folder}".encode()
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and wanted in (entry / "environ").read_bytes().split(b"\0"):
                yield entry
        except OSError:
            continue  # it has ended


def ports(folder, at_loopback=False):
    """(process, port) of TCP sockets that listen at another address than loopback, or at any."""
    listening = {}
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            _, local, _, state, *rest = line.split()
            address, port = local.split(":")
            if state == LISTENS and (at_loopback or address not in LOOPBACK):
                listening[f"socket:[{rest[5]}]"] = int(port, 16)
    found = set()
    for process in processes_of(folder):
        try:
            held = {os.readlink(descriptor) for descriptor in (process / "fd").iterdir()}
            name = (process / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        found |= {(" ".join(word.decode(errors="replace") for word in name[:2]), listening[socket]) for socket in held & set(listening)}
    return found
