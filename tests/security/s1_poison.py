#!/usr/bin/env python3
"""Another user plants a RAM snapshot with weights of his own, under a name and with checksums that are right, and the next start
trains from it. What he has to know of the run (its digest is in names and headers) is given to him."""
import json
import math
import os
import struct
from pathlib import Path

import two_users

HEADER = struct.Struct("<8sII7QIIQQI")  # its own CRC32C is behind it
WRITER, STEP, INDEX_OFFSET, INDEX_BYTES, INDEX_CRC = 7, 9, 12, 13, 14
PAGE = 4096
NEWEST_WRITER = 2**64 - 1


def poisoned(slot):
    """The same step by another start, with other numbers in the middle of each piece of the state."""
    slot = bytearray(slot)
    header = list(HEADER.unpack_from(slot))
    begin, size = header[INDEX_OFFSET], header[INDEX_BYTES]
    manifest, specs, sums, *digests = json.loads(bytes(slot[begin:begin + size]))
    offset = PAGE
    for number, spec in enumerate(specs):
        elements = math.prod(spec[3]) // spec[5]
        lengths = [elements * width for width in (4, 2, 8) if two_users.crc32c(slot[offset:offset + elements * width]) == sums[number]]
        assert lengths, f"piece {number} is not where it is expected"
        slot[offset + lengths[0] // 8 * 4 + 1] ^= 0x55
        sums[number] = two_users.crc32c(slot[offset:offset + lengths[0]])
        offset += (lengths[0] + PAGE - 1) // PAGE * PAGE
    index = json.dumps([manifest, specs, sums, *digests], separators=(",", ":"), ensure_ascii=False).encode()
    slot[begin:] = (index + bytes(len(slot)))[:len(slot) - begin]
    header[WRITER], header[INDEX_BYTES], header[INDEX_CRC] = NEWEST_WRITER, len(index), two_users.crc32c(index)
    HEADER.pack_into(slot, 0, *header)
    struct.pack_into("<I", slot, HEADER.size, two_users.crc32c(slot[:HEADER.size]))
    return bytes(slot)


def planted(name, slot):
    """In every directory that the other user may write."""
    places = []
    for parent in ["/dev/shm", *(str(Path("/dev/shm", entry)) for entry in os.listdir("/dev/shm"))]:
        try:
            descriptor = os.open(f"{parent}/{name}", os.O_RDWR | os.O_CREAT, 0o666)
        except OSError:
            continue
        os.fchmod(descriptor, 0o666)
        os.write(descriptor, slot)
        places.append(f"{parent}/{name}")
    return places


def main():
    victim = two_users.Victim(two_users.begin(__doc__))
    assert victim.train("--run.directory=straight").returncode == 0
    victim.train_until_killed()
    slots = [path for path in two_users.files_below("/dev/shm") if path.read_bytes().startswith(b"HFSNAP")]
    newest = max(slots, key=lambda path: HEADER.unpack_from(path.read_bytes())[STEP])
    slot = poisoned(newest.read_bytes())
    name = f"holdfast-{newest.name.split('-')[1]}-{NEWEST_WRITER:016x}-00000-0"
    places = two_users.as_other(lambda: planted(name, slot))
    for place in places:
        print(f"user {two_users.OTHER} has planted {place}")
    again = victim.train()
    print(again.stdout)
    assert again.returncode == 0, again.stdout
    evidence = []
    if victim.digest("run") != victim.digest("straight"):
        evidence.append("the run has trained from the weights of the other user: its digest is not that of the undisturbed run")
    two_users.end(evidence)


main()
