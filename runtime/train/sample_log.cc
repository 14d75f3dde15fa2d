#include "runtime/train/sample_log.h"

#include <fmt/core.h>

#include <iterator>
#include <memory>

#include "runtime/run/line_log.h"

namespace holdfast::train {
namespace {

constexpr std::uint64_t memory_bytes = std::uint64_t{64} << 20;  // memory for lines that wait

class LedgerFile final : public LineSink {
 public:
  LedgerFile(Env& env, const std::string& path)
      : lines_(env, path, {.bytes = memory_bytes, .drops_oldest = false}) {}
  Result<void> append(std::string_view line) override { return lines_.append(line); }
  Result<void> insist(std::string_view line) override { return lines_.insist(line); }
  Result<void> flush() override { return lines_.flush(); }
  void others_have_written() override { lines_.others_have_written(); }
  void lost(std::uint64_t) override { HF_CHECK(false); }  // no line is ever dropped

 private:
  LineLog lines_;
};

}  // namespace

SampleLog::SampleLog(Env& env, const std::string& path)
    : lines_(env, std::make_unique<LedgerFile>(env, path), path,
             {.bytes = memory_bytes, .drops_oldest = false}) {}

void SampleLog::begin() {
  samples_.clear();
}

void SampleLog::add(std::span<const SampleId> samples) {
  for (const SampleId& id : samples) {
    if (!samples_.empty()) samples_ += ',';
    fmt::format_to(std::back_inserter(samples_), "[{},{},{}]", id.source, id.sample, id.epoch);
  }
}

Result<void> SampleLog::close_step(std::uint64_t step) {
  line_.clear();
  fmt::format_to(std::back_inserter(line_), "{{\"step\":{},\"samples\":[{}]}}", step, samples_);
  samples_.clear();
  return lines_.append(line_);
}

}  // namespace holdfast::train
