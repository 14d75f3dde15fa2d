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
// With a flight ring it is never off: spans that belong to no trace go there.
//
// Threads: one thread opens spans and reads them; a device may write the stamps of a span that it was given
// (Device::stamp), for which a reader must have waited. A span whose place was taken by a newer one before it
// was closed is lost, and leaves the newer one as it is.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include "runtime/os/env.h"

namespace holdfast::os {

enum class SpanKind : std::uint8_t {
  // Work of the device: on a microbatch in a chunk of the stage, and on the step. Never two at once.
  forward,
  backward,         // of inputs and weights
  backward_input,   // of inputs alone
  backward_weight,  // of weights alone
  update,           // the optimizer's
  // Waits of the host, before it can go on. Never two at once.
  wait_activation,   // from the stage before
  wait_gradient,     // from the stage after
  wait_send,         // for a send to complete: its slot is needed, or the schedule ends
  wait_lanes,        // the lane reduction: its exchanges and sums
  wait_device,       // the device, at the end of forward and backward and of the update
  wait_data,         // the loader
  wait_vote,         // all ranks
  wait_parameters,   // the all-gather of the updated parameters
  wait_tied_weight,  // for the gradient of a tied weight from its other end
  wait_snapshot,     // the copy of the state that the coming update overwrites
  wait_slices,  // the ranks that have the other slices of a layer, in the middle of a forward or backward
  // Messages between ranks: from when the bytes are handed over until this rank is done with them.
  send_activation,
  send_gradient,
  receive_activation,  // from when the slot is free until the bytes are there
  receive_gradient,
  exchange_bucket,  // of the lane reduction, with all ranks of the group at once
  // Control messages among all ranks of a communicator, in the flight ring only; `bucket` is the number among
  // those of the communicator, `peer` the last one that was waited for.
  barrier,
  broadcast,
  all_reduce,
  all_gather,
  // Phases of the host, around all of that.
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

// One span; fields that do not apply are -1, or 0 bytes.
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

// WorkClock says what the queue of a device does with its time. Threads: any, but count_as() is for the
// launching one.
class WorkClock {
 public:
  // Returns for how long, up to `now_ns`, which is now, the queue has had nothing to run; from any point in
  // time.
  virtual std::int64_t idle_ns(std::int64_t now_ns) const = 0;
  // Counts what is launched from here on as work of this kind, of group compute; SpanKind::count: as no kind.
  virtual void count_as(SpanKind kind) = 0;
  // Returns for how long the queue has run work of the kind, up to the last count_as() that it has reached.
  virtual std::int64_t worked_ns(SpanKind kind) const = 0;

 protected:
  ~WorkClock() = default;
};

// WaitSums adds up, by kind, for how long the host waits while its device has nothing to run, whether or not
// spans are recorded. Threads: the one that opens spans.
class WaitSums {
 public:
  WaitSums(Env& env, WorkClock& device) : env_(&env), device_(&device) {}
  WorkClock& device() const { return *device_; }
  std::int64_t idle_ns() const { return device_->idle_ns(env_->monotonic_ns()); }
  void add(SpanKind kind, std::int64_t waited_ns) { waited_ns_[static_cast<std::size_t>(kind)] += waited_ns; }
  std::int64_t waited_ns(SpanKind kind) const { return waited_ns_[static_cast<std::size_t>(kind)]; }

 private:
  Env* env_;
  WorkClock* device_;
  std::array<std::int64_t, static_cast<std::size_t>(SpanKind::count)> waited_ns_{};
};

class SpanRecorder {
 public:
  explicit SpanRecorder(Env& env) : env_(&env) {}
  SpanRecorder(const SpanRecorder&) = delete;
  SpanRecorder& operator=(const SpanRecorder&) = delete;

  // Records into this memory from now on; the caller owns it. Empty: into the flight ring, or off without
  // one.
  void record_into(std::span<Span> memory);
  // Sets the ring for the spans that belong to no recorded trace, from now on; `ring` and `opened` outlive
  // the recorder. `opened` counts the spans for readers. Without `device_stamps` a
  // DeviceSpan shows when the host launched its work.
  void keep_flight(std::span<Span> ring, std::atomic<std::uint64_t>& opened, bool device_stamps);
  bool on() const { return !memory_.empty(); }
  bool in_flight() const { return ring_opened_ != nullptr && memory_.data() == ring_.data(); }
  bool device_stamps() const { return !in_flight() || ring_has_device_stamps_; }
  void begin_step(std::uint64_t step) { step_ = step; }
  // Adds waits up in `sums` from now on, which outlives the recorder or the next call; null: no longer.
  void sum_waits(WaitSums* sums) { sums_ = sums; }
  WaitSums* sums() const { return sums_; }

  // Opens a span with the fields of `about`; its stamps are 0. Returns null while off.
  Span* open(const Span& about);
  Stamp now() const { return {.time_ns = env_->monotonic_ns(), .worked_ns = 0}; }
  // Opens a span that the host begins now.
  Span* begin(const Span& about);
  // Ends a span of begin(), which may be null; does nothing to a span in other memory than the present one,
  // or to one that has ended.
  void end(Span* span) const {
    if (is_open(span)) span->end = now();
  }
  bool is_open(const Span* span) const {
    return span >= memory_.data() && span < memory_.data() + memory_.size() && span->end.time_ns == 0;
  }

  std::uint64_t opened() const { return opened_; }  // since record_into(), or into the ring
  std::uint64_t lost() const { return opened_ - kept(); }
  std::uint64_t kept() const { return opened_ < memory_.size() ? opened_ : memory_.size(); }
  const Span& at(std::uint64_t index) const;  // below kept(), in the order in which they were opened

 private:
  Env* env_;
  std::span<Span> memory_, ring_;
  std::atomic<std::uint64_t>* ring_opened_ = nullptr;
  bool ring_has_device_stamps_ = true;
  std::uint64_t opened_ = 0;
  std::uint64_t step_ = 0;
  WaitSums* sums_ = nullptr;
};

// Records what the host does from here to the end of the block. A null recorder counts as off.
class HostSpan {
 public:
  HostSpan(SpanRecorder* recorder, const Span& about)
      : recorder_(recorder),
        span_(recorder != nullptr && recorder->on() ? recorder->begin(about) : nullptr),
        sums_(recorder != nullptr ? recorder->sums() : nullptr),
        kind_(about.kind),
        idle_ns_(sums_ != nullptr ? sums_->idle_ns() : 0) {}
  ~HostSpan() {
    if (span_ != nullptr) recorder_->end(span_);
    if (sums_ != nullptr) sums_->add(kind_, sums_->idle_ns() - idle_ns_);
  }
  HostSpan(const HostSpan&) = delete;
  HostSpan& operator=(const HostSpan&) = delete;

 private:
  SpanRecorder* recorder_;
  Span* span_;
  WaitSums* sums_;
  SpanKind kind_;
  std::int64_t idle_ns_;  // of the device at the begin
};

}  // namespace holdfast::os
