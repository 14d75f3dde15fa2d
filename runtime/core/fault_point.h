// Named places where a test can make a fault happen. Always compiled in; an unarmed point costs a load and a
// branch.
//
//   HF_FAULT_POINT(faults, "save.before_rename");
//
// Armed by a specification, a comma-separated list of `name[@hit][:rank]=action`:
//   save.before_rename@2=kill        SIGKILL at the second time this process passes
//   step.after_vote:1=stop           SIGSTOP of rank 1
//   step.before_backward=sleep:500   sleep 500 ms; others: `spin` (for ever), `exit:N`, `abort`, `segv`
// The program reads it from the environment variable HOLDFAST_FAULTS; bad text is an error with the position.
// What happens is told before, a line each, in the file that HOLDFAST_FAULTS_LOG names, where it is set.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/core/env.h"
#include "runtime/core/result.h"

namespace holdfast {

class FaultPoints {
 public:
  FaultPoints() = default;  // nothing armed
  static Result<std::unique_ptr<FaultPoints>> parse(std::string_view specification, int rank, Env& env);

  bool armed() const { return armed_; }
  void hit(std::string_view name);  // thread-safe; acts when the specification says so
  // Every name that may be armed, sorted.
  static const std::vector<std::string_view>& names();

 private:
  struct Rule {
    std::string name;
    std::string action;
    std::int64_t argument = 0;
    std::uint64_t at_hit = 1;
    std::atomic<std::uint64_t> hits{0};
  };
  bool armed_ = false;
  Env* env_ = nullptr;
  std::vector<std::unique_ptr<Rule>> rules_;
};

}  // namespace holdfast

#define HF_FAULT_POINT(faults, name)   \
  do {                                 \
    if ((faults).armed()) [[unlikely]] \
      (faults).hit(name);              \
  } while (false)
