// Reads many chunks of many shards on several threads; restoring a state and verifying one both do this.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "checkpoint/paced.h"
#include "checkpoint/shard_file.h"

namespace holdfast::checkpoint {

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

}  // namespace holdfast::checkpoint
