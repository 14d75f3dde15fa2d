// A fault that lasts: a full disk and what happens to a host for some steps of a run, a disk that stalls and
// output that nobody reads for some time.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/chaos/chaos_plan.h"
#include "runtime/chaos/chaos_record.h"
#include "runtime/chaos/host_fault.h"
#include "runtime/chaos/small_disk.h"
#include "runtime/chaos/stalling_disk.h"
#include "runtime/core/result.h"
#include "runtime/os/env.h"
#include "runtime/os/fifo.h"

namespace holdfast::inline chaos {

// Holds what the faults of a run's plan act on; null: the plan has no such fault.
struct RunGround {
  SmallDisk* small_disk = nullptr;        // full_disk
  StallingDisk* stalling_disk = nullptr;  // stalled_disk
  Fifo* output = nullptr;                 // stalled_output: what its launcher prints to
};

class LastingFault {
 public:
  // All of them outlive it.
  LastingFault(Env& env, const ChaosSetup& setup, const RunGround& ground, const ChaosInjection& injection);

  ChaosFault fault() const { return injection_->fault; }
  std::string what() const;                          // "host b is lost for 5 steps"
  const std::string& host() const { return host_; }  // empty: it is none of hosts
  // Errors of both: a command failed, or the disk or the pipe cannot be filled or emptied.
  Result<void> begin();
  Result<void> end();
  // The newest step when it had begun: the steps are counted from there.
  void since(std::uint64_t step);
  // Whether the run has made its steps, or would never make them.
  bool is_over(std::uint64_t step) const;

 private:
  Result<void> command(std::string_view option) const;
  Env* env_;
  const ChaosSetup* setup_;
  RunGround ground_;
  const ChaosInjection* injection_;
  const HostFault* of_host_;  // null: it is none of hosts
  std::string host_ = {};
  std::uint64_t last_step_ = 0;
  std::int64_t until_ns_ = 0;
};

}  // namespace holdfast::inline chaos
