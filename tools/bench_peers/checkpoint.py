#!/usr/bin/env python3
"""Reads checkpoints as checkpoint/FORMAT.md describes them, with none of holdfast's code: every codec, deltas.
Every checksum is verified, and every rule of the page that a reader can check. Python's standard library and, through ctypes,
the system's libzstd and libxxhash. It is for tests and comparisons: small checkpoints, all of it in memory.

    tools/bench_peers/checkpoint.py CHECKPOINT     # a line for every slice: kind, tensor, slice, slices, type, shape, XXH3-128
"""
import ctypes
import json
import re
import struct
import sys
from pathlib import Path

VERSION, BLOCK_ELEMENTS, CHUNK_BYTES, ALIGNMENT = 2, 4096, 1 << 20, 4096
TYPES = {0: ("fp32", 4), 1: ("bf16", 2), 2: ("int32", 4), 3: ("fp64", 8)}
WIDTHS = dict(TYPES.values())
HEADER = struct.Struct("<8sIIQQQII4044sI")
PIECE = struct.Struct("<QQQIIIIIHH")
CHUNK = struct.Struct("<QIIIIIIQQ")
BASE = struct.Struct("<QII")
TRAILER = struct.Struct("<QQQQIIII8sII")
RAW, PLANES = 0, 1


class Damaged(ValueError):
    """A checkpoint is not as FORMAT.md says."""


def demand(condition, sentence):
    if not condition:
        raise Damaged(sentence)


def _crc32c_table():
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return table


_TABLE = _crc32c_table()


def crc32c(data):
    value, table = 0xFFFFFFFF, _TABLE
    for byte in data:
        value = value >> 8 ^ table[(value ^ byte) & 0xFF]
    return value ^ 0xFFFFFFFF


class _Digest(ctypes.Structure):
    _fields_ = [("low", ctypes.c_uint64), ("high", ctypes.c_uint64)]


def xxh3_128(data):
    """(high word, low word)."""
    function = ctypes.CDLL("libxxhash.so.0").XXH3_128bits
    function.restype, function.argtypes = _Digest, [ctypes.c_char_p, ctypes.c_size_t]
    found = function(bytes(data), len(data))
    return found.high, found.low


def hex_of(digest):
    return "%016x%016x" % digest


def unpacked(frame, length):
    """A zstd frame whose content has so many bytes."""
    library, target = ctypes.CDLL("libzstd.so.1"), ctypes.create_string_buffer(max(1, length))
    library.ZSTD_decompress.restype = ctypes.c_size_t
    found = library.ZSTD_decompress(target, ctypes.c_size_t(length), bytes(frame), ctypes.c_size_t(len(frame)))
    demand(found == length, "a zstd frame does not have the length of its plane")
    return target.raw[:length]


def aligned(size, to=ALIGNMENT):
    return -(-size // to) * to


class Tensor:
    """One kind of one tensor: its slices, one after another, are what it is stored as."""

    def __init__(self, kind, type_, shape, slices):
        self.kind, self.type, self.shape, self.slices = kind, type_, list(shape), slices
        elements = 1
        for extent in self.shape:
            elements *= extent
        demand(slices >= 1 and elements % slices == 0, f"{elements} elements cannot be {slices} equal slices")
        self.slice_elements, self.width = elements // slices, WIDTHS[type_]
        self.blocks = aligned(self.slice_elements, BLOCK_ELEMENTS) // BLOCK_ELEMENTS
        self.parts = [bytearray(self.slice_elements * self.width) for _ in range(slices)]
        self.seen = [bytearray(self.blocks) for _ in range(slices)]

    def put(self, index, first_block, block_count, content, name):
        demand(first_block + block_count <= self.blocks, f"{name}: a piece goes beyond the tensor")
        begin = first_block * BLOCK_ELEMENTS * self.width
        end = min((first_block + block_count) * BLOCK_ELEMENTS, self.slice_elements) * self.width
        demand(len(content) == max(0, end - begin), f"{name}: a piece has not the bytes of its blocks")
        for block in range(block_count):
            first = begin + block * BLOCK_ELEMENTS * self.width
            part = content[first - begin:first - begin + BLOCK_ELEMENTS * self.width]
            if self.seen[index][first_block + block]:
                demand(self.parts[index][first:first + len(part)] == part, f"{name}: pieces that overlap are no copies of each other")
            self.parts[index][first:first + len(part)] = part
            self.seen[index][first_block + block] = 1

    def joined(self, cut, row_groups=()):
        """The bytes of the whole tensor from its slices, cut by "rows" (of several groups one below the other) or "columns"."""
        if self.slices == 1 or cut is None:
            return bytes(self.parts[0])
        columns = self.shape[1] if len(self.shape) > 1 else 1
        if cut == "columns":
            row = columns // self.slices * self.width
            return b"".join(part[at:at + row] for at in range(0, len(self.parts[0]), max(1, row)) for part in self.parts)
        whole, before = b"", 0
        for rows in row_groups or [self.shape[0]]:
            size = rows // self.slices * columns * self.width
            whole += b"".join(part[before:before + size] for part in self.parts)
            before += size
        return whole


def cut_of(name, config):
    """How the section "Slices" of FORMAT.md says that a tensor is cut: (None, "rows" or "columns", groups of rows)."""
    part = re.sub(r"^layers\.\d+\.", "", name)
    if part in ("embedding.token.weight", "head.weight"):
        return "rows", []
    if part in ("attention.output.weight", "feed_forward.down.weight"):
        return "columns", []
    if part.startswith("attention.qkv."):
        queries, keys = config["width"], config["width"] // config["heads"] * config["kv_heads"]
        return "rows", [queries, keys, keys]
    if part.startswith("feed_forward.up."):
        return "rows", [config["feed_forward"]] * (2 if config["style"] == "llama" else 1)
    return None, []


def read_manifest(directory):
    content = (Path(directory) / "manifest.json").read_bytes()
    line = re.fullmatch(rb"crc32c ([0-9a-f]{8})\n", content[-16:])
    demand(line, "manifest.json does not end with a line of its checksum")
    demand(int(line.group(1), 16) == crc32c(content[:-16]), "manifest.json does not have its checksum")
    demand(content.startswith(b'{\n "holdfast_manifest":'), "manifest.json does not begin as a manifest")
    manifest = json.loads(content[:-16])
    demand(manifest["holdfast_manifest"] == VERSION, f"manifest version {manifest['holdfast_manifest']}, this reads {VERSION}")
    name = re.fullmatch(r"step-(\d{8,})", Path(directory).resolve().name)
    demand(not name or int(name.group(1)) == manifest["step"], "the name of the directory is of another step")
    return manifest


class Index:
    """Fields of an index from its begin to its end."""

    def __init__(self, content):
        self.content, self.at = content, 0

    def take(self, layout):
        demand(self.at + layout.size <= len(self.content), "the index ends inside a record")
        found = layout.unpack_from(self.content, self.at)
        self.at += layout.size
        return found

    def take_bytes(self, size):
        demand(self.at + size <= len(self.content), "the index ends inside a record")
        found = self.content[self.at:self.at + size]
        self.at += size
        return found

    def take_padding(self, size):
        demand(not any(self.take_bytes(-size % 8)), "the index has bytes between its fields that are not zero")


class Shard:
    """One file whose header, trailer and index were verified: .pieces, .base_files."""

    def __init__(self, directory, entry, manifest, verifies=True):
        self.directory, self.name, self.verifies = Path(directory), entry["name"], verifies
        self.content = (self.directory / self.name).read_bytes()
        demand(len(self.content) == entry["bytes"], f"{self.name} has not the length of the manifest")
        self._check_header(manifest)
        self.index_offset, index_bytes, pieces, base_files = self._check_trailer(entry, manifest)
        self.index = Index(self.content[self.index_offset:self.index_offset + index_bytes])
        demand(crc32c(self.index.content) == entry["index_crc32c"], f"{self.name}: its index has not the checksum")
        self.pieces = [self._take_piece() for _ in range(pieces)]
        self.base_files = [self._take_base() for _ in range(base_files)]
        demand(self.index.at == index_bytes, f"{self.name}: its index goes on after the last record")

    def _check_header(self, manifest):
        demand(len(self.content) >= ALIGNMENT + 64, f"{self.name} is too short")
        magic, version, size, step, high, low, chunk, alignment, zeros, crc = HEADER.unpack_from(self.content)
        demand(crc == crc32c(self.content[:4092]), f"{self.name}: its header has not the checksum")
        demand((magic, size, chunk, alignment) == (b"HFSHARD\0", 4096, CHUNK_BYTES, ALIGNMENT) and not any(zeros),
               f"{self.name}: its header is another one")
        demand(version == VERSION, f"{self.name} has shard version {version}, this reads {VERSION}")
        demand(step == manifest["step"], f"{self.name} is of another step")
        demand((high, low) == xxh3_128(manifest["run_id"].encode()), f"{self.name} is of another run")

    def _check_trailer(self, entry, manifest):
        begin = len(self.content) - TRAILER.size
        offset, size, length, step, pieces, index_crc, base_files, zero, magic, version, crc = TRAILER.unpack_from(self.content, begin)
        demand(crc == crc32c(self.content[begin:-4]), f"{self.name}: its trailer has not the checksum")
        demand((magic, version, length, step, zero) == (b"HFSHEND\0", VERSION, len(self.content), manifest["step"], 0),
               f"{self.name}: its trailer is another one")
        demand((index_crc, pieces) == (entry["index_crc32c"], entry["piece_count"]), f"{self.name} is not the file of the manifest")
        demand(offset % ALIGNMENT == 0 and ALIGNMENT <= offset and offset + size <= begin, f"{self.name}: its index is elsewhere")
        demand(not any(self.content[offset + size:begin]), f"{self.name}: bytes before its trailer are not zero")
        demand(aligned(offset + size + TRAILER.size) == len(self.content), f"{self.name}: its trailer is elsewhere")
        return offset, size, pieces, base_files

    def _take_piece(self):
        size, first, blocks, type_, dimensions, name_bytes, kind_bytes, chunks, index, others = self.index.take(PIECE)
        demand(type_ in TYPES, f"{self.name}: there is no element type {type_}")
        shape = self.index.take(struct.Struct(f"<{dimensions}Q"))
        text = self.index.take_bytes(name_bytes + kind_bytes)
        self.index.take_padding(name_bytes + kind_bytes)
        demand(chunks == aligned(size, CHUNK_BYTES) // CHUNK_BYTES, f"{self.name}: a piece has another number of chunks")
        piece = {"name": text[:name_bytes].decode(), "kind": text[name_bytes:].decode(), "type": TYPES[type_][0], "shape": shape,
                 "slice": index, "slices": others + 1, "first": first, "blocks": blocks, "bytes": size}
        lengths = [min(CHUNK_BYTES, size - at) for at in range(0, size, CHUNK_BYTES)]
        piece["chunks"] = [self.index.take(CHUNK) for _ in range(chunks)]
        demand([chunk[2] for chunk in piece["chunks"]] == lengths, f"{self.name}: a chunk has another length")
        return piece

    def _take_base(self):
        size, name_bytes, zero = self.index.take(BASE)
        demand(zero == 0, f"{self.name}: the record of a base file has a word that is not zero")
        name = self.index.take_bytes(name_bytes).decode()
        self.index.take_padding(name_bytes)
        content = (self.directory / name).read_bytes()
        demand(len(content) == size, f"{name} has not the length that {self.name} says")
        return content

    def read(self, kinds=None):
        """(piece, its bytes) of every piece, or of those of these kinds."""
        end = ALIGNMENT  # of what is stored, which lies in the order of the index without gaps
        for piece in self.pieces:
            content, wanted = [], kinds is None or piece["kind"] in kinds
            for chunk in piece["chunks"]:
                if chunk[3] == 0:
                    demand(chunk[0] == end, f"{self.name}: a chunk is elsewhere")
                    end += aligned(chunk[1])
                if wanted:
                    content.append(self._read_chunk(chunk, WIDTHS[piece["type"]], piece["name"]))
            if wanted:
                yield piece, b"".join(content)
        demand(end == self.index_offset, f"{self.name}: its index is elsewhere")

    def _read_chunk(self, chunk, width, name):
        offset, stored, length, file, codec, raw_crc, stored_crc, high, low = chunk
        demand(file <= len(self.base_files), f"{self.name}: there is no base file {file}")
        source = self.base_files[file - 1] if file else self.content
        end = offset + aligned(stored)
        demand(end <= len(source), f"{self.name}: a chunk goes beyond its file")
        padded = source[offset:end]
        demand(offset % ALIGNMENT == 0, f"{self.name}: a chunk is elsewhere")
        self._verify(padded, stored_crc, f"a stored chunk of {name}")
        demand(not any(padded[stored:]), f"{self.name}: bytes after a chunk are not zero")
        demand(codec in (RAW, PLANES), f"{self.name}: a chunk of {name} has codec {codec}")
        content = padded[:stored] if codec == RAW else joined_planes(padded[:stored], width, length)
        demand(len(content) == length, f"{self.name}: a chunk of {name} has another length")
        demand(codec == RAW or stored + 4096 <= length, f"{self.name}: planes of {name} that save less than 4,096 bytes")
        self._verify(content, raw_crc, f"a chunk of {name}")
        demand((high, low) in ((0, 0), xxh3_128(content)), f"{self.name}: a chunk of {name} has not the digest")
        return content

    def _verify(self, content, checksum, what):
        demand(not self.verifies or crc32c(content) == checksum, f"{self.name}: {what} has not the checksum")


def joined_planes(stored, width, length):
    elements, at, words = length // width, 4 * width, None
    words = [0] * elements
    for plane, size in enumerate(struct.unpack_from(f"<{width}I", stored)):
        content = stored[at:at + size]
        at += size
        if size < elements:
            content = unpacked(content, elements)
        demand(len(content) == elements, "a plane has more bytes than elements")
        for i, byte in enumerate(content):
            words[i] |= byte << 8 * plane
    demand(at == len(stored), "a chunk goes on after its planes")
    top = 8 * width - 1  # rotated back by one bit
    return struct.pack(f"<{elements}{ {2: 'H', 4: 'I', 8: 'Q'}[width] }", *((word >> 1) | (word & 1) << top for word in words))


def read_checkpoint(directory, kinds=None, verifies=True):
    """(manifest, {(name, kind): Tensor}), of all kinds or of these. Every byte of every file was verified, unless only some
    kinds are wanted or `verifies` is false, which saves a second for every 10 MB."""
    manifest = read_manifest(directory)
    tensors = {}
    for entry in manifest.get("tensors", []):
        if kinds is not None and entry["kind"] not in kinds:
            continue
        tensors[entry["tensor"], entry["kind"]] = Tensor(entry["kind"], entry["type"], entry["shape"], entry["slices"])
    for entry in manifest["shards"]:
        for piece, content in Shard(directory, entry, manifest, verifies).read(kinds):
            key = piece["name"], piece["kind"]
            if "tensors" not in manifest and key not in tensors:
                tensors[key] = Tensor(piece["kind"], piece["type"], piece["shape"], piece["slices"])
            demand(key in tensors, f"the manifest does not have {key}")
            tensor = tensors[key]
            demand((piece["type"], list(piece["shape"]), piece["slices"]) == (tensor.type, tensor.shape, tensor.slices) and
                   piece["slice"] < tensor.slices, f"a piece of {key} is of another tensor")
            tensor.put(piece["slice"], piece["first"], piece["blocks"], content, piece["name"])
    for key, tensor in tensors.items():
        demand(all(map(all, tensor.seen)), f"a part of {key} is missing")
    return manifest, tensors


def digest_of(tensors, kinds):
    """The line of `holdfast digest` for these kinds, as the section "Digest" of FORMAT.md has it."""
    def text(value):
        return struct.pack("<Q", len(value)) + value.encode()

    stream = b""
    for kind in kinds:
        slices = sorted((name, index) for name, of in tensors for index in range(tensors[name, of].slices) if of == kind)
        stream += struct.pack("<Q", len(slices))
        for name, index in slices:
            tensor = tensors[name, kind]
            stream += text(kind) + text(name) + struct.pack(f"<Q{len(tensor.shape)}Q", len(tensor.shape), *tensor.shape)
            if tensor.slices > 1:
                stream += struct.pack("<II", tensor.slices, index)
            stream += text(tensor.type) + tensor.parts[index]
    return hex_of(xxh3_128(stream))


def read_tensors(checkpoint, kind="weight"):
    """{name: numpy array} of all tensors of a kind ("weight", "moment1", "moment2" or "ema") of a checkpoint of one tensor lane. For
    comparisons of larger models: the checksums of chunks are not verified (`holdfast verify` does that)."""
    import numpy  # the peers' environment has it

    types = {"fp32": "<f4", "int32": "<i4", "fp64": "<f8"}
    _, tensors = read_checkpoint(checkpoint, (kind,), verifies=False)
    return {name: numpy.frombuffer(tensor.joined(None), types[tensor.type]).reshape(tensor.shape)
            for (name, _), tensor in tensors.items()}


def main():
    try:
        _, tensors = read_checkpoint(sys.argv[1])
    except (Damaged, OSError, ValueError) as reason:
        sys.exit(f"{sys.argv[1]}: {reason}")
    for (name, kind), tensor in sorted(tensors.items()):
        for index, part in enumerate(tensor.parts):
            print(kind, name, index, tensor.slices, tensor.type, ",".join(map(str, tensor.shape)), hex_of(xxh3_128(part)))


if __name__ == "__main__":
    main()
