// Held-out loss during a run: the same fixed set every time, spread over the ranks, summed exactly, so that
// its bits do not depend on the number of ranks.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/train/worker.h"

namespace holdfast::inline train {

class HeldOutSet {
 public:
  // `evaluation.batches` microbatches drawn by a fixed permutation (not by run.seed, so that runs can be
  // compared) from evaluation.sources, or without these from what data.validation_fraction holds back of
  // `training`; fewer when the files are small. ExitCode::data when a file is bad or too small for one
  // microbatch.
  static Result<HeldOutSet> open(Env& env, const Config& config, const DataSet& training);

  std::uint64_t batches() const { return batches_; }
  Digest fingerprint() const { return data_->fingerprint(); }  // of the files
  // Mean loss per target that counts. All ranks call it together and get the same outcome.
  Result<double> loss(Worker& worker);

 private:
  class Forwards;
  // The number of targets that count.
  Result<std::uint64_t> load_microbatch(std::uint64_t batch, std::int64_t vocabulary);

  std::shared_ptr<DataSet> data_;
  std::uint64_t batches_ = 0;
  std::size_t microbatch_size_ = 0;
  std::size_t sequence_length_ = 0;
  std::vector<std::int32_t> inputs_, targets_, first_key_, window_;
};

}  // namespace holdfast::inline train
