// SpanRecorder: what one rank did and when, as spans of a monotonic clock in memory of a fixed size, the
// newest replacing the oldest. A picture of chosen steps is drawn from it (docs/timeline.md).
//
//   SpanRecorder recorder(env);
//   recorder.record_into(memory);                       // and off again with {}
//   recorder.begin_step(12);
//   { const HostSpan wait(&recorder, {.kind = SpanKind::wait_vote}); ... }
//
// A span that goes on has end.time_ns 0, so the memory also says what a rank that hangs is at; it may lie
// where another process reads it. While off a span costs one branch, and never an allocation.
//
// With a flight ring it is never off: what no trace is recorded of goes there.
//
// Threads: one thread opens spans and reads them; a device may write the stamps of a span that it was given
// (Device::stamp), which whoever reads has waited for. A span whose place was taken by a newer one before it
// was closed is lost, and leaves the newer one as it is.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <type_traits>

#include "runtime/os/env.h"

namespace holdfast::inline os {

enum class SpanKind : std::uint8_t {
  // What the device computes: of a microbatch in a chunk of the stage, and of the step. Never two at once.
  forward,
  backward,         // of inputs and weights
  backward_input,   // of inputs alone
  backward_weight,  // of weights alone
  update,           // the optimizer's
  // What the host waits for before it can go on. Never two at once.
  wait_activation,   // from the stage before
  wait_gradient,     // from the stage after
  wait_send,         // something must leave: its place is needed, or the schedule ends
  wait_lanes,        // the lane reduction: its exchanges and sums
  wait_device,       // the device, at the end of forward and backward and of the update
  wait_data,         // the loader
  wait_vote,         // all ranks
  wait_parameters,   // the all-gather of the updated parameters
  wait_tied_weight,  // the other end of a tied weight, for its gradient
  wait_snapshot,     // the copy of the state that the coming update overwrites
  wait_slices,  // the ranks that have the other slices of a layer, in the middle of a forward or backward
  // Messages between ranks: from when the bytes are handed over until this rank is done with them.
  send_activation,
  send_gradient,
  receive_activation,  // from when the place is free until the bytes are there
  receive_gradient,
  exchange_bucket,  // of the lane reduction, with all ranks of the group at once
  // Words of control among all ranks of a communicator, in the flight ring alone; `bucket` is the number
  // among those of the communicator, `peer` the last one that was waited for.
  barrier,
  broadcast,
  all_reduce,
  all_gather,
  // What the host is at, around all of that.
  step,
  lane_wave,
  evaluation,
  save,
  count
};

enum class SpanGroup : std::uint8_t { compute, wait, transfer, phase };

const char* name_of(SpanKind kind);   // "wait_activation"
const char* title_of(SpanKind kind);  // for people: "activation from the stage before"
SpanGroup group_of(SpanKind kind);

// A point in time. `worked_ns` counts only while what is measured works, so that a difference is a cost even
// where several ranks take turns on one processor: the processor time of the thread, and where a device has
// none, the same as the time.
struct Stamp {
  std::int64_t time_ns = 0;  // Env::monotonic_ns
  std::int64_t worked_ns = 0;
};

// What does not apply is -1, or 0 bytes.
struct Span {
  SpanKind kind = SpanKind::step;
  std::int16_t chunk = -1;       // of the stage
  std::int32_t microbatch = -1;  // of this rank in the step, in the order of lanes
  std::int32_t bucket = -1;
  std::int32_t wave = -1;
  std::int32_t peer = -1;  // a rank of the run
  std::uint64_t bytes = 0;
  std::uint64_t step = 0;  // set by the recorder
  Stamp begin = {}, end = {};
};
static_assert(std::is_trivially_copyable_v<Span> && sizeof(Span) == 72);

class SpanRecorder {
 public:
  explicit SpanRecorder(Env& env) : env_(&env) {}
  SpanRecorder(const SpanRecorder&) = delete;
  SpanRecorder& operator=(const SpanRecorder&) = delete;

  // From now on into this memory, which the caller keeps; empty: into the flight ring, or off without one.
  void record_into(std::span<Span> memory);
  // Where the spans go that no trace is recorded of, from now on; both outlive the recorder. `opened` counts
  // them for others. Without `device_stamps` a DeviceSpan says when the host launched what it is of.
  void keep_flight(std::span<Span> ring, std::atomic<std::uint64_t>& opened, bool device_stamps);
  bool on() const { return !memory_.empty(); }
  bool in_flight() const { return ring_opened_ != nullptr && memory_.data() == ring_.data(); }
  bool device_stamps() const { return !in_flight() || ring_has_device_stamps_; }
  void begin_step(std::uint64_t step) { step_ = step; }

  // A new span with the rest of `about`; its stamps are 0. Null while off.
  Span* open(const Span& about);
  Stamp now() const { return {.time_ns = env_->monotonic_ns(), .worked_ns = 0}; }
  // The same, begun now by the host.
  Span* begin(const Span& about);
  // Of begin(), null too; nothing happens to one of other memory than the present, or that has ended.
  void end(Span* span) const {
    if (is_open(span)) span->end = now();
  }
  bool is_open(const Span* span) const {
    return span >= memory_.data() && span < memory_.data() + memory_.size() && span->end.time_ns == 0;
  }

  std::uint64_t opened() const { return opened_; }  // since record_into(), or into the ring
  std::uint64_t lost() const { return opened_ - kept(); }
  std::uint64_t kept() const { return opened_ < memory_.size() ? opened_ : memory_.size(); }
  const Span& at(std::uint64_t index) const;  // of kept(), in the order in which they were opened

 private:
  Env* env_;
  std::span<Span> memory_, ring_;
  std::atomic<std::uint64_t>* ring_opened_ = nullptr;
  bool ring_has_device_stamps_ = true;
  std::uint64_t opened_ = 0;
  std::uint64_t step_ = 0;
};

// What the host does from here to the end of the block. No recorder is one that is off.
class HostSpan {
 public:
  HostSpan(SpanRecorder* recorder, const Span& about)
      : recorder_(recorder),
        span_(recorder != nullptr && recorder->on() ? recorder->begin(about) : nullptr) {}
  ~HostSpan() {
    if (span_ != nullptr) recorder_->end(span_);
  }
  HostSpan(const HostSpan&) = delete;
  HostSpan& operator=(const HostSpan&) = delete;

 private:
  SpanRecorder* recorder_;
  Span* span_;
};

}  // namespace holdfast::inline os
