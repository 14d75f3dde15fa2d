// The ledger: an audit trail of which samples every step used (data.ledger). One line per step and rank in
// RUN/ledger-<rank>.jsonl: {"step":7,"samples":[[source,sample,epoch],...]}. A step that is computed again
// appears again; readers take the last line of a step from the newest file that has it.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "runtime/core/env.h"
#include "runtime/data/sample_order.h"

namespace holdfast {

class Ledger {
 public:
  Ledger(Env& env, std::string path) : env_(&env), path_(std::move(path)) {}
  void add(std::span<const SampleId> samples);
  // Writes what was added since the last call as the samples of `step`, and forgets it.
  Result<void> close_step(std::uint64_t step);

 private:
  Env* env_;
  std::string path_;
  std::string samples_, line_;  // kept, so that a step allocates nothing once they are long enough
  bool open_ = false;
};

}  // namespace holdfast
