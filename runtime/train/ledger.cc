#include "runtime/train/ledger.h"

#include <iterator>

namespace holdfast {

void Ledger::add(std::span<const SampleId> samples) {
  for (const SampleId& id : samples) {
    if (!samples_.empty()) samples_ += ',';
    fmt::format_to(std::back_inserter(samples_), "[{},{},{}]", id.source, id.sample, id.epoch);
  }
}

Result<void> Ledger::close_step(std::uint64_t step) {
  const std::string line = fmt::format("{{\"step\":{},\"samples\":[{}]}}", step, samples_);
  samples_.clear();
  return env_->append_line(path_, line);
}

}  // namespace holdfast
