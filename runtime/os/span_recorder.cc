#include "runtime/os/span_recorder.h"

#include <array>

#include "runtime/core/check.h"

namespace holdfast::os {
namespace {

struct KindFacts {
  const char* name;
  const char* title;
  SpanGroup group;
};

constexpr std::array<KindFacts, static_cast<std::size_t>(SpanKind::count)> kinds = {{
    {"forward", "forward", SpanGroup::compute},
    {"backward", "backward", SpanGroup::compute},
    {"backward_input", "backward of the inputs", SpanGroup::compute},
    {"backward_weight", "backward of the weights", SpanGroup::compute},
    {"update", "optimizer", SpanGroup::compute},
    {"wait_activation", "activation from the stage before", SpanGroup::wait},
    {"wait_gradient", "gradient from the stage after", SpanGroup::wait},
    {"wait_send", "a send to end", SpanGroup::wait},
    {"wait_lanes", "lane reduction", SpanGroup::wait},
    {"wait_device", "the device", SpanGroup::wait},
    {"wait_data", "data", SpanGroup::wait},
    {"wait_vote", "vote", SpanGroup::wait},
    {"wait_parameters", "all-gather of parameters", SpanGroup::wait},
    {"wait_tied_weight", "gradient of the tied weight", SpanGroup::wait},
    {"wait_snapshot", "copy of the state", SpanGroup::wait},
    {"wait_slices", "other slices of a layer", SpanGroup::wait},
    {"send_activation", "activation sent", SpanGroup::transfer},
    {"send_gradient", "gradient sent", SpanGroup::transfer},
    {"receive_activation", "activation received", SpanGroup::transfer},
    {"receive_gradient", "gradient received", SpanGroup::transfer},
    {"exchange_bucket", "bucket of the lane reduction", SpanGroup::transfer},
    {"barrier", "barrier", SpanGroup::transfer},
    {"broadcast", "broadcast", SpanGroup::transfer},
    {"all_reduce", "all-reduce", SpanGroup::transfer},
    {"all_gather", "all-gather", SpanGroup::transfer},
    {"step", "step", SpanGroup::phase},
    {"lane_wave", "wave of lanes", SpanGroup::phase},
    {"evaluation", "evaluation", SpanGroup::phase},
    {"save", "save", SpanGroup::phase},
}};

const KindFacts& facts_of(SpanKind kind) {
  return kinds[static_cast<std::size_t>(kind)];
}

}  // namespace

const char* name_of(SpanKind kind) {
  return facts_of(kind).name;
}

const char* title_of(SpanKind kind) {
  return facts_of(kind).title;
}

SpanGroup group_of(SpanKind kind) {
  return facts_of(kind).group;
}

void SpanRecorder::record_into(std::span<Span> memory) {
  memory_ = memory.empty() ? ring_ : memory;
  opened_ = in_flight() ? ring_opened_->load(std::memory_order_relaxed) : 0;
}

void SpanRecorder::keep_flight(std::span<Span> ring, std::atomic<std::uint64_t>& opened, bool device_stamps) {
  const bool traces = on() && !in_flight();
  ring_ = ring;
  ring_opened_ = &opened;
  ring_has_device_stamps_ = device_stamps;
  if (!traces) record_into({});
}

Span* SpanRecorder::open(const Span& about) {
  if (memory_.empty()) return nullptr;
  Span& span = memory_[opened_++ % memory_.size()];
  span = about;
  span.step = step_;
  span.begin = span.end = {};
  if (in_flight()) ring_opened_->store(opened_, std::memory_order_release);
  return &span;
}

Span* SpanRecorder::begin(const Span& about) {
  Span* const span = open(about);
  if (span != nullptr) span->begin = now();
  return span;
}

const Span& SpanRecorder::at(std::uint64_t index) const {
  HF_CHECK(index < kept());
  return memory_[(opened_ - kept() + index) % memory_.size()];
}

}  // namespace holdfast::os
