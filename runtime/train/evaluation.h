// Measures the held-out loss during a run. The set is the same every time, spread over the ranks and summed
// exactly, so that the bits of the loss do not depend on the number of ranks.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/train/worker.h"

namespace holdfast::train {

class HeldOutSet {
 public:
  // Opens a set of `evaluation.batches` microbatches that a fixed permutation draws (not by run.seed, so that
  // runs can be compared) from evaluation.sources or, without these, from the part of `training` that
  // data.validation_fraction holds back. The set has fewer batches when the files are small. Fails with
  // ExitCode::data when a file is bad or too small for one microbatch.
  static Result<HeldOutSet> open(Env& env, const Config& config, const DataSet& training);

  std::uint64_t batches() const { return batches_; }
  Digest fingerprint() const { return data_->fingerprint(); }  // of the data files
  // Returns the mean loss per target that counts. All ranks call it together and get the same outcome.
  Result<double> loss(Worker& worker);

 private:
  class Forwards;
  // Loads one microbatch and returns its number of targets that count.
  Result<std::uint64_t> load_microbatch(std::uint64_t batch, std::int64_t vocabulary);

  std::shared_ptr<DataSet> data_;
  std::uint64_t batches_ = 0;
  std::size_t microbatch_size_ = 0;
  std::size_t sequence_length_ = 0;
  std::vector<std::int32_t> inputs_, targets_, first_key_, window_;
};

}  // namespace holdfast::train
