"""Reads the tensors of a checkpoint that was written with checkpoint.compression = "none" and no delta, as
checkpoint/FORMAT.md describes it. For comparisons: checksums are not verified (`holdfast verify` does that)."""
import json
import struct
from pathlib import Path

import numpy

BLOCK_ELEMENTS = 4096
TRAILER_BYTES = 64
DTYPES = {0: numpy.dtype("<f4"), 2: numpy.dtype("<i4"), 3: numpy.dtype("<f8")}
PIECE = struct.Struct("<QQQIIIIIHH")
CHUNK = struct.Struct("<QIIIIIIQQ")
RAW = 0


def padded(size):
    return (size + 7) // 8 * 8


def pieces_of(index, count):
    """(chunks as (offset, bytes), first block, dtype, shape, name, kind) of every piece."""
    position = 0
    for _ in range(count):
        _, first_block, _, dtype, dimensions, name_bytes, kind_bytes, chunk_count, _, _ = PIECE.unpack_from(index, position)
        position += PIECE.size
        shape = struct.unpack_from(f"<{dimensions}Q", index, position)
        position += 8 * dimensions
        text = index[position:position + name_bytes + kind_bytes].decode()
        position += padded(name_bytes + kind_bytes)
        chunks = []
        for _ in range(chunk_count):
            offset, stored, _, file, codec, *_ = CHUNK.unpack_from(index, position)
            position += CHUNK.size
            if file != 0 or codec != RAW:
                raise ValueError(f"{text} has a chunk that is compressed or in another file")
            chunks.append((offset, stored))
        yield chunks, first_block, DTYPES[dtype], shape, text[:name_bytes], text[name_bytes:]


def read_tensors(checkpoint, kind="weight"):
    """{name: array} of all tensors of a kind: "weight", "moment1" or "moment2"."""
    checkpoint = Path(checkpoint)
    manifest = json.loads((checkpoint / "manifest.json").read_bytes()[:-16])
    tensors = {}
    for shard in manifest["shards"]:
        data = numpy.memmap(checkpoint / shard["name"], mode="r")
        index_offset, index_bytes, _, _, count = struct.unpack("<QQQQI", data[-TRAILER_BYTES:][:36].tobytes())
        for chunks, first_block, dtype, shape, name, piece_kind in pieces_of(
                data[index_offset:index_offset + index_bytes].tobytes(), count):
            if piece_kind != kind:
                continue
            tensor = tensors.setdefault(name, numpy.empty(shape, dtype))
            values = numpy.frombuffer(b"".join(data[offset:offset + size].tobytes() for offset, size in chunks), dtype)
            first = first_block * BLOCK_ELEMENTS
            tensor.reshape(-1)[first:first + len(values)] = values
    return tensors
