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
BLOCK, GENERATOR = 4096, 747796405
WIDTHS = {0: 4, 1: 2}  # bytes of fp32 and bf16


def block_digest(slot, first, count, arrays):
    """That of one block (runtime/core/block_digest.h). arrays: where those of a weight and of its moments begin, and their widths."""
    total = 0
    for array, (begin, width) in enumerate(arrays):
        values = struct.unpack_from(f"<{count}{'I' if width == 4 else 'H'}", slot, begin + first * width)
        weight, sum_of_array = 1, 0
        for value in values:
            sum_of_array += weight * (value if width == 4 else value << 16)
            weight = weight * GENERATOR % 2**32
        total += pow(GENERATOR, BLOCK * array, 2**32) * sum_of_array
    return total % 2**64


def redigested(slot, found, offset, size, _):
    """Makes the block digests behind the pieces right again, and returns what the index says of them."""
    places = {(spec[0], spec[1]): (begin, WIDTHS[spec[2]]) for spec, begin, _ in found}
    at = offset
    for spec, _, elements in found:
        if spec[1] != "weight":
            continue
        arrays = [places[spec[0], kind] for kind in ("weight", "moment1", "moment2") if (spec[0], kind) in places]
        for first in range(0, elements, BLOCK):
            struct.pack_into("<Q", slot, at, block_digest(slot, first, min(BLOCK, elements - first), arrays))
            at += 8
    assert at - offset == size, "the block digests are not where they are expected"
    return [size, two_users.crc32c(slot[offset:offset + size])]


def poisoned(slot):
    """The same step by another start, with other numbers in the middle of each piece of the state."""
    slot = bytearray(slot)
    header = list(HEADER.unpack_from(slot))
    begin, size = header[INDEX_OFFSET], header[INDEX_BYTES]
    manifest, specs, sums, *digests = json.loads(bytes(slot[begin:begin + size]))
    offset, found = PAGE, []
    for number, spec in enumerate(specs):
        elements = math.prod(spec[3]) // spec[5]
        # Pieces that an update wrote have no checksum of their own: block digests, and fp32 or bf16 moments.
        widths = [width for width in (4, 2, 8) if two_users.crc32c(slot[offset:offset + elements * width]) == sums[number]] if sums else [WIDTHS[spec[2]]]
        assert widths, f"piece {number} is not where it is expected"
        length = elements * widths[0]
        slot[offset + length // 8 * 4 + 1] ^= 0x55
        if sums:
            sums[number] = two_users.crc32c(slot[offset:offset + length])
        found.append((spec, offset, elements))
        offset += (length + PAGE - 1) // PAGE * PAGE
    if not sums:
        digests = [redigested(slot, found, offset, *digests[0])]
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
