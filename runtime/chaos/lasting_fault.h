// A fault that is there for some steps of a run: a full disk, a lost host, a host that is cut off.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/chaos/chaos_plan.h"
#include "runtime/chaos/chaos_run.h"
#include "runtime/chaos/small_disk.h"
#include "runtime/core/env.h"
#include "runtime/core/result.h"

namespace holdfast {

class LastingFault {
 public:
  // `disk`: of the run, for a full disk. All of them outlive it.
  LastingFault(Env& env, const ChaosSetup& setup, SmallDisk* disk, const ChaosInjection& injection);

  std::string what() const;  // "host b is lost for 5 steps"
  // Errors of both: a command of the user's failed, or the disk cannot be filled or emptied.
  Result<void> begin();
  Result<void> end();
  // The newest step when it had begun: the steps are counted from there.
  void since(std::uint64_t step);
  // Whether the run has made its steps, or would never make them.
  bool is_over(std::uint64_t step) const;

 private:
  Result<void> command(const std::string& words) const;
  Env* env_;
  const ChaosSetup* setup_;
  SmallDisk* disk_;
  const ChaosInjection* injection_;
  std::string host_ = {};
  std::uint64_t last_step_ = 0;
  std::int64_t until_ns_ = 0;
};

}  // namespace holdfast
