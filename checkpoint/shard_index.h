// The index of a shard file: which pieces of which tensors it holds, and where every chunk of them is stored.
// Both versions of the format become the same ShardIndex, so that what reads chunks knows only one.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/chunk_codec.h"
#include "checkpoint/manifest.h"
#include "runtime/core/digest.h"
#include "runtime/core/shard_spec.h"
#include "runtime/os/env.h"

namespace holdfast::inline checkpoint {

// 1 MiB of a piece, the last one of it shorter.
struct StoredChunk {
  std::uint32_t file = 0;  // 0 = the shard file, k = bases[k - 1]
  ChunkCodec codec = ChunkCodec::raw;
  std::uint64_t offset_bytes = 0;  // a multiple of 4 KiB
  std::uint32_t stored_bytes = 0;  // what the codec made; zeros follow up to a multiple of 4 KiB
  std::uint32_t raw_bytes = 0;
  std::uint32_t raw_crc32c = 0;
  std::uint32_t stored_crc32c = 0;  // of the stored bytes and the zeros
  Digest digest = {};               // of the raw bytes; zero when it was not taken
};

// Another shard file in the same directory, of whose chunks some are used.
struct BaseFile {
  std::string name;
  std::uint64_t bytes = 0;
};

struct IndexedPiece {
  ShardSpec spec;
  std::vector<StoredChunk> chunks;
};

struct ShardIndex {
  std::vector<IndexedPiece> pieces;
  std::vector<BaseFile> bases;
};

// The bytes that encode_shard_index will need.
std::uint64_t piece_record_bytes(const ShardSpec& spec);
std::uint64_t base_record_bytes(const std::string& name);
std::vector<std::byte> encode_shard_index(const ShardIndex& index);

// Header, trailer and index of an open shard file against the manifest and against each other. Nothing is
// allocated before the number that decides its size was checked against the length of the file.
Result<ShardIndex> read_shard_index(File& file, const ShardFile& expected, std::uint64_t step,
                                    const std::string& run_id);

// "<path> is damaged: <what>; <what to do>", ExitCode::checkpoint.
Error damaged_shard(const std::string& path, std::string_view what);
// A read that fails is this checkpoint's problem, whatever the system called it.
Result<void> read_shard_bytes(File& file, std::uint64_t offset, std::span<std::byte> target);

}  // namespace holdfast::inline checkpoint
