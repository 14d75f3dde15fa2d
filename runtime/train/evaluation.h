// Held-out loss during a run: the same fixed set every time, spread over the ranks, summed exactly, so that
// its bits do not depend on the number of ranks.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/train/worker.h"

namespace holdfast {

class HeldOutSet {
 public:
  // `evaluation.batches` microbatches drawn from evaluation.sources by a fixed permutation (not by run.seed,
  // so that runs can be compared), fewer when the files are small. ExitCode::data when a file is bad or too
  // small for one microbatch.
  static Result<HeldOutSet> open(Env& env, const Config& config);

  std::uint64_t batches() const { return batches_; }
  // Mean loss per token. All ranks call it together and get the same outcome.
  Result<double> loss(Worker& worker);

 private:
  Result<void> load_microbatch(std::uint64_t batch, std::int64_t vocabulary);

  std::shared_ptr<DataSet> data_;
  std::uint64_t batches_ = 0;
  std::size_t microbatch_size_ = 0;
  std::size_t sequence_length_ = 0;
  std::vector<std::int32_t> inputs_, targets_, window_;
};

}  // namespace holdfast
