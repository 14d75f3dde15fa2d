#include "runtime/train/ledger.h"

#include <iterator>

#include "runtime/core/events.h"

namespace holdfast {

void Ledger::add(std::span<const SampleId> samples) {
  for (const SampleId& id : samples) {
    if (!samples_.empty()) samples_ += ',';
    fmt::format_to(std::back_inserter(samples_), "[{},{},{}]", id.source, id.sample, id.epoch);
  }
}

Result<void> Ledger::close_step(std::uint64_t step) {
  if (!open_) HF_TRY_VOID(end_torn_line(*env_, path_));
  open_ = true;
  line_.clear();
  fmt::format_to(std::back_inserter(line_), "{{\"step\":{},\"samples\":[{}]}}", step, samples_);
  samples_.clear();
  return env_->append_line(path_, line_);
}

}  // namespace holdfast
