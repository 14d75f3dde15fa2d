// The data loader of one rank: the microbatches of the lanes this rank runs, prepared ahead by a thread of
// its own. Its state is one number (the global position of the next step), so resume is O(1) and any change
// of the number of ranks keeps every sample exactly once.
//
// Step s uses positions [cursor, cursor + lanes * microbatches_per_lane * microbatch_size): lane l owns the
// l-th contiguous part, microbatch m of a lane the m-th part of that.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "runtime/core/digest.h"
#include "runtime/data/sample_order.h"
#include "runtime/data/source.h"

namespace holdfast {

struct BatchShape {
  std::int64_t sequence_length = 0;
  std::int64_t microbatch_size = 0;
  std::int64_t microbatches_per_lane = 0;
  std::int64_t lanes = 0;
  std::uint64_t samples_per_step() const {
    return static_cast<std::uint64_t>(microbatch_size * microbatches_per_lane * lanes);
  }
};

// Valid until the next call of next(). inputs and targets are (microbatch_size, sequence_length), targets
// shifted by one.
struct MicroBatch {
  std::span<const std::int32_t> inputs;
  std::span<const std::int32_t> targets;
  std::span<const SampleId> samples;
  // Sum over the samples of digest_of(position inside the step, source, sample, tokens): adds up over lanes
  // and ranks to the digest of the step, in any order.
  Digest digest;
};

class DataSet {
 public:
  // All sources of a list; errors of all files are in one message. Threads: const methods may be shared.
  static Result<std::shared_ptr<DataSet>> open(Env& env, const std::vector<SourceConfig>& sources,
                                               std::int64_t sequence_length);
  std::int64_t vocabulary_needed() const;  // largest of the sources', 0 = unknown
  std::int64_t vocabulary_of_format()
      const;  // largest of the sources': what model.vocabulary is when left out
  Digest fingerprint() const;
  std::uint64_t sample_count() const;
  std::uint64_t token_count() const;
  SampleOrder order(std::uint64_t seed) const;
  // The sequence_length + 1 tokens of a sample.
  Result<void> read(const SampleId& id, std::span<std::int32_t> tokens, std::int64_t vocabulary) const;

 private:
  std::int64_t sequence_length_ = 0;
  std::vector<SourceConfig> configs_;
  std::vector<std::unique_ptr<TokenSource>> sources_;
};

class DataLoader {
 public:
  // `rank_lanes`: the lanes this rank runs in one step, in the order it runs them (wave by wave).
  // `cursor`: global position at which the first step starts. Starts the prefetch thread.
  DataLoader(std::shared_ptr<DataSet> data, std::uint64_t seed, BatchShape shape, std::vector<int> rank_lanes,
             std::uint64_t cursor, std::int64_t vocabulary, std::int64_t prefetch_microbatches);
  ~DataLoader();
  // The next microbatch in this rank's order. Blocks until the prefetch thread has it.
  Result<MicroBatch> next();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace holdfast
