"""Reads the tensors of a checkpoint, as checkpoint/FORMAT.md describes it. For comparisons: checksums are not verified
(`holdfast verify` does that)."""
import json
import struct
from pathlib import Path

import numpy

BLOCK_ELEMENTS = 4096
TRAILER_BYTES = 56
DTYPES = {0: numpy.dtype("<f4"), 2: numpy.dtype("<i4"), 3: numpy.dtype("<f8")}
INDEX_RECORD = struct.Struct("<QQQQIIIIII")


def padded(size):
    return (size + 7) // 8 * 8


def pieces_of(index):
    """(offset, bytes, first block, dtype, shape, name, kind) of every record."""
    position = 0
    while position < len(index):
        offset, size, first_block, _, dtype, dimensions, name_bytes, kind_bytes, chunks, _ = INDEX_RECORD.unpack_from(index, position)
        position += INDEX_RECORD.size
        shape = struct.unpack_from(f"<{dimensions}Q", index, position)
        position += 8 * dimensions
        text = index[position:position + name_bytes + kind_bytes].decode()
        position += padded(name_bytes + kind_bytes) + padded(4 * chunks)
        yield offset, size, first_block, DTYPES[dtype], shape, text[:name_bytes], text[name_bytes:]


def read_tensors(checkpoint, kind="weight"):
    """{name: array} of all tensors of a kind: "weight", "moment1" or "moment2"."""
    checkpoint = Path(checkpoint)
    manifest = json.loads((checkpoint / "manifest.json").read_bytes()[:-16])
    tensors = {}
    for shard in manifest["shards"]:
        data = numpy.memmap(checkpoint / shard["name"], mode="r")
        index_offset, index_bytes = struct.unpack("<QQ", data[-TRAILER_BYTES:][:16].tobytes())
        for offset, size, first_block, dtype, shape, name, piece_kind in pieces_of(
                data[index_offset:index_offset + index_bytes].tobytes()):
            if piece_kind != kind:
                continue
            tensor = tensors.setdefault(name, numpy.empty(shape, dtype))
            values = numpy.frombuffer(data[offset:offset + size].tobytes(), dtype)
            first = first_block * BLOCK_ELEMENTS
            tensor.reshape(-1)[first:first + len(values)] = values
    return tensors
