// The index of a shard file: which pieces of which tensors it holds, and where every chunk of them is stored.
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

namespace holdfast::checkpoint {

// Stored form of 1 MiB of a piece; the last chunk of a piece is shorter.
struct StoredChunk {
  std::uint32_t file = 0;  // 0 = the shard file, k = bases[k - 1]
  ChunkCodec codec = ChunkCodec::raw;
  std::uint64_t offset_bytes = 0;  // a multiple of 4 KiB
  std::uint32_t stored_bytes = 0;  // output of the codec; zeros follow up to a multiple of 4 KiB
  std::uint32_t raw_bytes = 0;
  std::uint32_t raw_crc32c = 0;
  std::uint32_t stored_crc32c = 0;  // of the stored bytes and the zeros
  Digest digest = {};               // of the raw bytes; zero when it was not taken
};

// Another shard file in the same directory, some of whose chunks are used.
struct BaseFile {
  std::string name;
  std::uint64_t bytes = 0;

  static void visit_fields(auto& self, auto&& visit) {
    visit("name", self.name);
    visit("bytes", self.bytes);
  }
};

struct IndexedPiece {
  ShardSpec spec;
  std::vector<StoredChunk> chunks;
};

struct ShardIndex {
  std::vector<IndexedPiece> pieces;
  std::vector<BaseFile> bases;
};

// Returns the number of bytes that encode_shard_index will need.
std::uint64_t piece_record_bytes(const ShardSpec& spec);
std::uint64_t base_record_bytes(const std::string& name);
std::vector<std::byte> encode_shard_index(const ShardIndex& index);

// Reads header, trailer and index of an open shard file and verifies them against the manifest and each
// other. Nothing is allocated before the number that decides its size was checked against the length of the
// file.
Result<ShardIndex> read_shard_index(File& file, const ShardFile& expected, std::uint64_t step,
                                    const std::string& run_id);

// Makes the error "<path> is damaged: <what>; <what to do>", ExitCode::checkpoint.
Error damaged_shard(const std::string& path, std::string_view what);
// Reads bytes of a shard. A read that fails is an ExitCode::checkpoint error, whatever the system called it.
Result<void> read_shard_bytes(File& file, std::uint64_t offset, std::span<std::byte> target);

}  // namespace holdfast::checkpoint
