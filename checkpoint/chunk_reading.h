// Reads many chunks of many shards on several threads: what a restored state and a verification consist of.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "checkpoint/shard_file.h"

namespace holdfast::inline checkpoint {

// `target` gets the bytes of the chunk from `offset_bytes` on.
struct ChunkPart {
  std::uint64_t offset_bytes = 0;
  std::span<std::byte> target;
};

// One chunk, which is read and verified whole, and the parts of it that are wanted; none = it is verified.
struct ChunkJob {
  const ShardReader* shard = nullptr;
  std::size_t piece = 0;
  std::size_t chunk = 0;
  std::vector<ChunkPart> parts;
};

// Chunks that a thread has on their way from the disk.
inline constexpr int read_depth = 8;

// Does all jobs, in about their order, on the calling thread and at most threads - 1 others. Each has an
// IoQueue of its own and needs read_depth MiB and the memory of a ChunkScratch. The targets do not overlap.
// After an error they hold anything; the error is that of the first job in the list that has one, whatever
// the threads did.
Result<void> read_chunks(Env& env, std::span<const ChunkJob> jobs, int threads);

}  // namespace holdfast::inline checkpoint
