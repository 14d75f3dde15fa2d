// One rank's part of a checkpoint: pieces of tensors in 4 KiB-aligned chunks with a checksum each, then an
// index that says what they are, then a fixed trailer. Byte by byte in FORMAT.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/manifest.h"
#include "runtime/core/env.h"
#include "runtime/core/shard_spec.h"

namespace holdfast {

// A piece of live state to be saved, and the memory it is in (spec.byte_count() bytes, contiguous): the
// host's, or a device's that is only read through ReadState.
struct StatePiece {
  ShardSpec spec;
  std::span<const std::byte> bytes;
};

// Host memory with the content of a part of a piece, no longer than a chunk; valid until the next call.
using ReadState = std::function<std::span<const std::byte>(std::span<const std::byte> part)>;

// Checksums are taken from the source memory, or what `read` gives for it when it is not empty. The file is
// created exclusively, preallocated, written and fsynced; its name is `name` inside `directory`. On error the
// partial file is removed if possible.
Result<ShardFile> write_shard_file(Env& env, const std::string& directory, const std::string& name,
                                   std::uint64_t step, const std::string& run_id,
                                   std::span<const StatePiece> pieces, const ReadState& read = {});

// An opened shard whose index was verified against the manifest. Reading verifies every chunk it touches
// before a byte is handed out.
class ShardReader {
 public:
  static Result<ShardReader> open(Env& env, const std::string& directory, const ShardFile& expected,
                                  std::uint64_t step, const std::string& run_id);
  const std::vector<ShardSpec>& pieces() const { return specs_; }
  // Elements [first, first + target bytes / element size) of piece `index`. Damage names file, tensor and
  // offset.
  Result<void> read(std::size_t index, std::uint64_t first_element, std::span<std::byte> target);
  // Every chunk against its checksum, and the zeros between the pieces. Header, index and trailer were
  // verified by open().
  Result<void> verify();

 private:
  struct Piece {
    std::uint64_t offset_bytes = 0;  // of its first chunk
    std::vector<std::uint32_t> chunk_crc32c;
  };
  Result<void> parse_index(std::span<const std::byte> index, std::uint32_t piece_count);
  Result<void> read_chunk(std::size_t index, std::uint64_t chunk, std::span<std::byte> target);
  std::unique_ptr<File> file_;
  std::vector<ShardSpec> specs_;
  std::vector<Piece> layout_;
  std::uint64_t index_offset_ = 0;
  std::vector<std::byte> chunk_;
};

}  // namespace holdfast
