// TraceRecording turns the recorder of a worker on for the steps that trace.first_step and trace.steps
// choose, and writes the recorded spans into the run directory (trace_file.h) when these steps are over. What
// happens after the last of them until the next step (an evaluation, a save) is recorded as well.
//
// While it records, nothing goes to the flight ring. When it is off, it costs one branch a step. When it is
// on, all its memory is allocated before the first step. A trace that cannot be written does not end the run:
// a line on stderr reports it.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/run/trace_file.h"
#include "runtime/train/worker.h"

namespace holdfast::train {

class TraceRecording {
 public:
  // The worker outlives it.
  explicit TraceRecording(Worker& worker);
  ~TraceRecording();
  TraceRecording(const TraceRecording&) = delete;
  TraceRecording& operator=(const TraceRecording&) = delete;

  // Turns the recording on or off where this is due before `step`. All ranks call it together. Error:
  // communication; a peer is gone.
  Result<void> before_step(std::uint64_t step) { return memory_.empty() ? Result<void>() : turn(step); }
  void finish();  // called when the run is over

 private:
  bool recording() const { return worker_->rank().spans.on() && !worker_->rank().spans.in_flight(); }
  Result<void> turn(std::uint64_t step);
  Result<void> begin();
  Result<void> write();

  Worker* worker_;
  std::vector<Span> memory_;  // empty: nothing is recorded, or nothing any more
  TraceHeader header_;
};

}  // namespace holdfast::train
