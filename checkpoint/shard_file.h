// Shard file: one rank's part of a checkpoint. Pieces of tensors in chunks with checksums, stored one after
// another at multiples of 4 KiB, then an index that says what and where they are, then a fixed trailer. Byte
// by byte in FORMAT.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/chunk_codec.h"
#include "checkpoint/manifest.h"
#include "checkpoint/paced.h"
#include "checkpoint/shard_index.h"
#include "runtime/core/shard_spec.h"
#include "runtime/os/env.h"
#include "runtime/os/io_engine.h"

namespace holdfast::checkpoint {

// A piece of live state to be saved, and the memory it is in (spec.byte_count() bytes, contiguous): the
// host's, or a device's that is only read through ReadState.
struct StatePiece {
  ShardSpec spec;
  std::span<const std::byte> bytes;
  // CRC32C of each chunk (chunk_bytes each), where they were computed already; else empty.
  std::span<const std::uint32_t> chunk_crc32c = {};
  // Block digests of the piece (snapshot_slot.h), in memory of the same kind; empty where there are none.
  std::span<const std::byte> digests = {};
};

// Returns host memory with the content of a part of a piece, no longer than a chunk; valid until the next
// call.
using ReadState = std::function<std::span<const std::byte>(std::span<const std::byte> part)>;

struct ShardWriteOptions {
  Compression compression = Compression::automatic;
  // Says which pieces keep their bytes from one checkpoint to the next. Those of a rank are in a file of their
  // own, which the next checkpoint has by a link; so each checkpoint stays complete when the others are
  // removed. Empty = none do.
  std::function<bool(const ShardSpec&)> is_constant = {};
  // Checkpoint directory on the same file system that may have the constant pieces. Empty = there is none.
  std::string parent_directory = {};
  IoBackend io = IoBackend::automatic;
  // Callback on the writing thread after every chunk, with its bytes; sleeps there to slow the drain.
  Pace pace = {};
  // Callback after every chunk: true ends the writing with an error, because the file is not needed any more.
  std::function<bool()> cancelled = {};
};

// Writes a shard file. Checksums are taken from the source memory, or what `read` gives for it when it is not
// empty; those that a piece has are used as they are, so a reader finds whatever has happened to its bytes
// since. Without `read` the memory must stay as it is until this returns, and its parts at multiples of 4 KiB
// are written from where they are. The file is created exclusively, preallocated, written through an IoQueue
// as a stream of large aligned writes, past the page cache where that is possible, and fsynced; its name is
// `name` inside `directory`. On error the partial file is removed if possible.
//
// Everything happens on the calling thread, compression included. Memory of its own: ShardStream's and
// ChunkCoder's, and the index; with a parent also the part of its indices that is about the same pieces.
Result<ShardFile> write_shard_file(Env& env, const std::string& directory, const std::string& name,
                                   std::uint64_t step, const std::string& run_id,
                                   std::span<const StatePiece> pieces, const ReadState& read = {},
                                   const ShardWriteOptions& options = {});

// Memory of a thread that reads chunks: at most 5 MiB.
struct ChunkScratch {
  std::vector<std::byte> stored;
  std::vector<std::byte> raw;
  ChunkCoder coder;
};

// An opened shard whose index was verified against the manifest, and the base files that it uses. Reading
// verifies every chunk it touches before a byte is handed out.
//
// Threads: read_chunk() may be called from several at a time, each with a scratch of its own.
class ShardReader {
 public:
  static Result<ShardReader> open(Env& env, const std::string& directory, const ShardFile& expected,
                                  std::uint64_t step, const std::string& run_id);
  const std::vector<IndexedPiece>& pieces() const { return index_.pieces; }
  const std::vector<BaseFile>& bases() const { return index_.bases; }
  // Reads the bytes of one chunk into `scratch`. The error for damage names file, tensor and offset.
  Result<std::span<const std::byte>> read_chunk(std::size_t piece, std::size_t chunk,
                                                ChunkScratch& scratch) const;
  // The same for a caller that has read `stored` itself: the bytes at the chunk's offset in its file,
  // including the zeros after it. The result is in `stored` or in `scratch`.
  Result<std::span<const std::byte>> check_chunk(std::size_t piece, std::size_t chunk,
                                                 std::span<const std::byte> stored,
                                                 ChunkScratch& scratch) const;
  File& file_of(const StoredChunk& chunk) const { return *files_[chunk.file]; }

 private:
  Error damaged_chunk(std::size_t piece, const StoredChunk& chunk, std::string_view what) const;
  ShardIndex index_;
  std::vector<std::unique_ptr<File>> files_;  // the shard, then its bases
};

}  // namespace holdfast::checkpoint
