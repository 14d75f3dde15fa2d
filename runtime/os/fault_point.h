// Named places where a test can make a fault happen. Always compiled in; an unarmed point costs a load and a
// branch.
//
//   HF_FAULT_POINT(faults, "save.before_rename");
//
// Armed by a specification, a comma-separated list of `name[@hit][:rank]=action`:
//   save.before_rename@2=kill        SIGKILL at the second time this process passes
//   step.after_vote:1=stop           SIGSTOP of rank 1
//   step.before_backward=sleep:500   sleep 500 ms; others: `spin` (for ever), `exit:N`, `abort`, `segv`
//   step.begin@7=touch:500           touches fresh memory for 500 ms, as if all pages of the process were new
//   step.before_reduce@7=gpu_trap    breaks the rank's GPU by a kernel; others: `gpu_endless`, and
//                                    `gpu_illegal_address`; at points of a step alone
// The program reads it from the environment variable HOLDFAST_FAULTS; bad text is an error with the position.
// Each action is logged before it happens, a line each, in the file that HOLDFAST_FAULTS_LOG names, if set.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/core/device_fault.h"
#include "runtime/core/result.h"
#include "runtime/os/env.h"

namespace holdfast::inline os {

// A line of the file that HOLDFAST_FAULTS_LOG names.
struct FaultPointRecord {
  static constexpr const char* kind = "fault_point";
  std::string event = {};  // `kind`
  std::int64_t time_us = 0;
  std::string point = {};
  std::uint64_t hit = 0;  // how often this process had passed the point, counted from 1
  std::string action = {};
  std::string host = {};
  std::int64_t process = 0;

  static void visit_fields(auto& self, auto&& visit) {
    visit("event", self.event);
    visit("time_us", self.time_us);
    visit("point", self.point);
    visit("hit", self.hit);
    visit("action", self.action);
    visit("host", self.host);
    visit("process", self.process);
  }
};

class FaultPoints {
 public:
  FaultPoints() = default;  // nothing armed
  static Result<std::unique_ptr<FaultPoints>> parse(std::string_view specification, int rank, Env& env);

  bool armed() const { return armed_; }
  // Returns whether an action breaks a GPU: then the run needs one, and must call connect_device() before it
  // passes a point.
  bool breaks_device() const;
  // Sets the function that breaks the device. It is called on the thread that passes the point. What it
  // captures must outlive the last such point.
  void connect_device(std::function<void(DeviceFault)> break_device) {
    break_device_ = std::move(break_device);
  }
  void hit(std::string_view name);  // thread-safe; acts when the specification says so
  // Returns every name that may be armed, sorted.
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
  std::function<void(DeviceFault)> break_device_ = {};
  Env* env_ = nullptr;
  std::vector<std::unique_ptr<Rule>> rules_;
};

}  // namespace holdfast::inline os

#define HF_FAULT_POINT(faults, name)   \
  do {                                 \
    if ((faults).armed()) [[unlikely]] \
      (faults).hit(name);              \
  } while (false)
