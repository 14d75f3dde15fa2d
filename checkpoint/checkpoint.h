// Checkpoint: one checkpoint directory that is read, in any layout.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/manifest.h"
#include "checkpoint/paced.h"
#include "checkpoint/shard_file.h"
#include "runtime/core/result.h"
#include "runtime/os/env.h"

namespace holdfast::checkpoint {

// Reads many chunks of many shards on several threads; restoring a state and verifying one both do this.

// Part of a chunk: `target` gets the bytes of the chunk from `offset_bytes` on.
struct ChunkPart {
  std::uint64_t offset_bytes = 0;
  std::span<std::byte> target;
};

// One chunk, which is read and verified whole, and the parts of it that are wanted; without parts it is only
// verified.
struct ChunkJob {
  const ShardReader* shard = nullptr;
  std::size_t piece = 0;
  std::size_t chunk = 0;
  std::vector<ChunkPart> parts;
};

// Number of chunks that a thread reads from the disk at a time.
inline constexpr int read_depth = 8;

// Does all jobs, in about their order, on the calling thread and at most threads - 1 others. Each has an
// IoQueue of its own and needs read_depth MiB and the memory of a ChunkScratch. The targets do not overlap.
// After an error their content is undefined; the error is that of the first job in the list that has one,
// whatever the order of the threads. `pace`: called on the calling thread, for each chunk that it has read itself.
Result<void> read_chunks(Env& env, std::span<const ChunkJob> jobs, int threads, const Pace& pace = {});

// Reads the manifest of one checkpoint directory; the step of a directory called step-%08d must be the
// manifest's.
Result<Manifest> read_manifest(Env& env, const std::string& directory);

// A verified manifest and its opened shards.
class Checkpoint {
 public:
  // Opens one checkpoint directory, `directory`. Verifies the manifest and every shard's length and index,
  // not yet the chunks. `shards` says whether shards that are not there are an error, or left out; then
  // missing() names them, and read() and verify() apply to the others.
  enum class Shards { all, present };
  static Result<Checkpoint> open(Env& env, const std::string& directory, Shards shards = Shards::all);
  const std::vector<std::string>& missing() const { return missing_; }
  const Manifest& manifest() const { return manifest_; }
  const std::string& directory() const { return directory_; }
  // Returns the names of the files in the directory that belong to it: manifest, shards and base files.
  std::vector<std::string> file_names() const;
  std::vector<ShardSpec> pieces() const;   // pieces of all shards, concatenated
  std::vector<ShardSpec> tensors() const;  // every slice of every tensor and kind, whole
  // Fills `target` (spec.byte_count() bytes each) for every wanted spec, in whatever layout it was written.
  struct Wanted {
    ShardSpec spec;
    std::span<std::byte> target;
  };
  // Reads only the chunks that are needed, on `threads` threads, each whole and against its checksum.
  Result<void> read(std::span<const Wanted> wanted, int threads = 1);
  // Verifies every byte of every chunk against its checksum, except the chunks that read() of this object has
  // read, and the completeness of every tensor and kind. `pace`: as for read_chunks().
  Result<void> verify(int threads = 1, const Pace& pace = {});
  // Verifies the completeness alone, for a caller whose peers verify the shards (verify_shard).
  Result<void> check_complete() { return noted(complete()); }
  // Returns the damage that read() or verify() found first.
  const std::optional<Error>& damage() const { return damage_; }
  const std::vector<ShardReader>& shards() const { return shards_; }  // as the manifest lists those there

 private:
  struct PiecePart {
    std::size_t piece = 0;  // index in pieces()
    std::uint64_t first_byte = 0;
    std::span<std::byte> target;
  };
  std::vector<ChunkJob> jobs_of(std::vector<PiecePart> parts) const;
  std::vector<ChunkJob> unread_chunks() const;
  Result<void> read_wanted(std::span<const Wanted> wanted, int threads);
  Result<void> verify_rest(int threads, const Pace& pace);
  Result<void> complete() const;
  Result<void> noted(Result<void> outcome);
  char& read_mark(const ChunkJob& job);
  Env* env_ = nullptr;
  Manifest manifest_;
  std::string directory_;
  std::vector<ShardReader> shards_;
  std::vector<std::string> missing_;
  std::vector<std::vector<std::vector<char>>> read_;  // whether a chunk was read, by shard, piece and chunk
  std::optional<Error> damage_;
};

// Reads every chunk of one shard of the checkpoint in `directory` against its checksum, on `threads` threads.
// `state`, `run_id`: those of its manifest; `pace`: as for read_chunks().
Result<void> verify_shard(Env& env, const std::string& directory, const ShardFile& shard,
                          const ParentCheckpoint& state, const std::string& run_id, int threads,
                          const Pace& pace = {});

}  // namespace holdfast::checkpoint
