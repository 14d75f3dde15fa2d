// The trainer's own steps on one rank, without a run around them, timed op by op.
#pragma once

#include <memory>
#include <vector>

#include "runtime/measure/measured_device.h"
#include "runtime/measure/op_timer.h"
#include "runtime/train/worker.h"
#include "tools/bench_native/synthetic_run.h"

namespace holdfast::bench {

class TimedSteps {
 public:
  // `bench` outlives this object.
  TimedSteps(Env& env, BenchRun run, const MeasuredDevice& bench);

  // Prepares memory, kernels and initial weights. Called before all others.
  Result<void> prepare();
  Result<void> warm_up(std::int64_t steps);
  Result<void> measure(std::int64_t steps);

  Worker& worker() { return *worker_; }
  const Device& device() const { return *device_; }
  const Config& config() const { return run_.config; }
  // Returns the records of the measured steps; seconds() returns their times.
  const std::vector<std::vector<OpTimer::Record>>& records() const { return records_; }
  const std::vector<double>& seconds() const { return seconds_; }

 private:
  Env& env_;
  BenchRun run_;
  const MeasuredDevice& bench_;
  OpTimer timer_;
  FaultPoints faults_;
  std::vector<std::unique_ptr<Communicator>> communicators_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Worker> worker_;
  std::vector<std::vector<OpTimer::Record>> records_;  // by step
  std::vector<double> seconds_;                        // by step
};

}  // namespace holdfast::bench
