// TraceRecording: turns the recorder of a worker on for the steps that trace.first_step and trace.steps
// choose, and writes what it recorded into the run directory (trace_file.h) when they are over. What happens
// after the last of them until the next step (an evaluation, a save) belongs to it.
//
// Meanwhile nothing goes to the flight ring. Off it costs one branch a step. On, memory for all of it is
// taken before the first step. A trace that cannot be written ends nothing: a line on stderr says so.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/run/trace_file.h"
#include "runtime/train/worker.h"

namespace holdfast::inline train {

class TraceRecording {
 public:
  // The worker outlives it.
  explicit TraceRecording(Worker& worker);
  ~TraceRecording();
  TraceRecording(const TraceRecording&) = delete;
  TraceRecording& operator=(const TraceRecording&) = delete;

  // All ranks together. Error: communication; a peer is gone.
  Result<void> before_step(std::uint64_t step) { return memory_.empty() ? Result<void>() : turn(step); }
  void finish();  // the run is over

 private:
  bool recording() const { return worker_->rank().spans.on() && !worker_->rank().spans.in_flight(); }
  Result<void> turn(std::uint64_t step);
  Result<void> begin();
  Result<void> write();

  Worker* worker_;
  std::vector<Span> memory_;  // empty: there is nothing to record, or not any more
  TraceHeader header_;
};

}  // namespace holdfast::inline train
