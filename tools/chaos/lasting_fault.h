// LastingFault is a fault that lasts: a full disk or a host fault for some steps of a run, a stalled disk,
// slow storage or unread output for some time.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/core/result.h"
#include "runtime/os/env.h"
#include "runtime/os/fifo.h"
#include "tools/chaos/chaos_fault.h"
#include "tools/chaos/chaos_plan.h"
#include "tools/chaos/chaos_record.h"
#include "tools/chaos/faulty_storage.h"

namespace holdfast::chaos {

// Objects that the faults of a run's plan act on; null: the plan has no such fault.
struct RunGround {
  SmallDisk* small_disk = nullptr;        // full_disk
  StallingDisk* stalling_disk = nullptr;  // stalled_disk
  Fifo* output = nullptr;                 // stalled_output: pipe for the launcher's output
  SlowStorage* slow_storage = nullptr;    // slow_storage
};

class LastingFault {
 public:
  // Makes the fault; all arguments outlive it.
  LastingFault(Env& env, const ChaosSetup& setup, const RunGround& ground, const ChaosInjection& injection);

  ChaosFault fault() const { return injection_->fault; }
  std::string what() const;                          // "host b is lost for 5 steps"
  const std::string& host() const { return host_; }  // empty: not a host fault
  const std::string& peer() const { return peer_; }  // empty: not a fault of a pair of hosts
  // Begins and ends the fault. Errors of both: a command failed, or the disk or the pipe cannot be filled or
  // emptied.
  Result<void> begin();
  Result<void> end();
  // Sets the newest step when the fault had begun: its steps are counted from there.
  void since(std::uint64_t step);
  // Returns whether the run has made the fault's steps, or would never make them.
  bool is_over(std::uint64_t step) const;

 private:
  Result<void> command(std::string_view option) const;
  Env* env_;
  const ChaosSetup* setup_;
  RunGround ground_;
  const ChaosInjection* injection_;
  const HostFault* of_host_;  // null: not a host fault
  std::string host_ = {}, peer_ = {};
  std::uint64_t last_step_ = 0;
  std::int64_t until_ns_ = 0;
};

}  // namespace holdfast::chaos
