#include "runtime/train/ledger.h"

#include <iterator>

namespace holdfast {
namespace {

constexpr std::uint64_t memory_bytes = std::uint64_t{64} << 20;  // of lines that wait

}  // namespace

Ledger::Ledger(Env& env, const std::string& path)
    : lines_(env, path, {.bytes = memory_bytes, .drops_oldest = false}) {}

void Ledger::begin() {
  samples_.clear();
}

void Ledger::add(std::span<const SampleId> samples) {
  for (const SampleId& id : samples) {
    if (!samples_.empty()) samples_ += ',';
    fmt::format_to(std::back_inserter(samples_), "[{},{},{}]", id.source, id.sample, id.epoch);
  }
}

Result<void> Ledger::close_step(std::uint64_t step) {
  line_.clear();
  fmt::format_to(std::back_inserter(line_), "{{\"step\":{},\"samples\":[{}]}}", step, samples_);
  samples_.clear();
  return lines_.append(line_);
}

}  // namespace holdfast
