// The data loader of one rank prepares the microbatches of the lanes that this rank runs, ahead of use and in
// a thread of its own. Its state is one number (the global position of the next step), so resume is O(1) and
// a change of the number of ranks still uses every sample exactly once.
//
// The loader tells the operating system early which samples it will read, so that samples at random positions
// of a file that is not cached are fetched many at a time.
//
// Step s uses positions [cursor, cursor + lanes * microbatches_per_lane * microbatch_size): lane l owns the
// l-th contiguous part, microbatch m of a lane the m-th part of that.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "runtime/core/digest.h"
#include "runtime/data/data_set.h"
#include "runtime/os/env.h"
#include "runtime/os/fault_point.h"

namespace holdfast::data {

struct BatchShape {
  std::int64_t sequence_length = 0;
  std::int64_t microbatch_size = 0;
  std::int64_t microbatches_per_lane = 0;
  std::int64_t lanes = 0;
  std::uint64_t samples_per_step() const {
    return static_cast<std::uint64_t>(microbatch_size * microbatches_per_lane * lanes);
  }
};

// A microbatch is valid until the next call of next(). Each row is a sample's SequenceRow: inputs, targets
// and first_key are (microbatch_size, sequence_length); first_key is empty unless documents are masked.
struct MicroBatch {
  std::span<const std::int32_t> inputs;
  std::span<const std::int32_t> targets;
  std::span<const std::int32_t> first_key;
  std::span<const SampleId> samples;
  std::uint64_t counted_targets = 0;
  // Sum over the samples of digest_of(position inside the step, source, sample, tokens). Digests of lanes and
  // ranks add up, in any order, to the digest of the step.
  Digest digest;
};

class DataLoader {
 public:
  // Starts the prefetch thread. `rank_lanes`: the lanes this rank runs in one step, in the order it runs them
  // (wave by wave). `cursor`: global position at which the first step starts. `faults`: passes data.read; null: none.
  DataLoader(Env& env, std::shared_ptr<DataSet> data, std::uint64_t seed, BatchShape shape,
             std::vector<int> rank_lanes, std::uint64_t cursor, std::int64_t vocabulary,
             std::int64_t prefetch_microbatches, FaultPoints* faults = nullptr);
  ~DataLoader();
  // Returns the error where the system refused the thread; next() then returns it, too.
  const Result<void>& begun() const;
  // Returns the next microbatch in this rank's order. Blocks until the prefetch thread has it.
  Result<MicroBatch> next();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace holdfast::data
