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
// Actions that make numbers wrong instead of ending something, at points of a step alone (and of memory at
// reduce.received). docs/testing.md ("Wrong numbers on purpose") has each of them and each memory, with its points:
//   step.begin@3:1=flip:weights:22:5 flips bit 22 of element 5 of the memory `weights` of rank 1. Bits count modulo
//                                    the size of an element, elements modulo their number; drawn from the hit
//                                    and the rank where left out
//   step.begin@3=wrong_product       the next matrix product of the rank has an error in one tile of 16 x 16
//   step.before_update@3=scale_rate:1000  multiplies the learning rate of this update on the rank
// At step.begin and step.end a change of weights or parameters first waits until all parameters have arrived.
// Actions that fail a call of storage, at data.read (each read of a sample), load.read (each time a rank verifies or
// reads a checkpoint, or its shard of one), save.before_shard (each attempt to write a shard of a checkpoint),
// save.before_manifest and save.before_rename (its publication):
//   data.read@70:1=error             the 70th read of rank 1 fails with EIO; `error:ESTALE` with another errno
//   data.read@70=error:EIO:5         so do the four after it; `error:EIO:always`: and all later ones
//   recover.begin:2=error            rank 2 cannot rebuild the group with the others after a death, and gives up
// The point `data.sample` is passed at samples, whatever the layout and how often it is computed again:
//   data.sample@70=nan               the first activation of sample 70 of the run (its position in the order
//                                    of all samples, counted from 1) has a NaN
//   data.sample@70=scramble          its tokens are replaced by the last one of the vocabulary
// The program reads it from the environment variable HOLDFAST_FAULTS; bad text is an error with the position.
// Each action is logged, a line each, in the file that HOLDFAST_FAULTS_LOG names, if set: before it happens,
// and the first changed number afterwards.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/core/injected_fault.h"
#include "runtime/core/result.h"
#include "runtime/os/env.h"
#include "runtime/os/fault_action.h"

namespace holdfast::os {

// A line of the file that HOLDFAST_FAULTS_LOG names.
struct FaultPointRecord {
  static constexpr const char* kind = "fault_point";
  std::string event = {};  // `kind`
  std::int64_t time_us = 0;
  std::string point = {};
  std::uint64_t hit =
      0;  // how often this process had passed the point, counted from 1; data.sample: position
  std::string action = {};
  std::string host = {};
  std::int64_t process = 0;
  std::optional<CorruptedNumber> changed = {};  // of flip and nan

  static void visit_fields(auto& self, auto&& visit) {
    visit("event", self.event);
    visit("time_us", self.time_us);
    visit("point", self.point);
    visit("hit", self.hit);
    visit("action", self.action);
    visit("host", self.host);
    visit("process", self.process);
    visit("changed", self.changed);
  }
};

class FaultPoints {
 public:
  FaultPoints() = default;  // nothing armed
  static Result<std::unique_ptr<FaultPoints>> parse(std::string_view specification, int rank, Env& env);

  bool armed() const { return armed_; }
  // Returns the specification, whose actions may all be those of other ranks; empty: there is none.
  const std::string& specification() const { return specification_; }
  // Returns whether an action breaks a GPU, or makes a wrong product, which a CPU does alone: then the run
  // needs such a device, and must call connect_device() before it passes a point.
  bool breaks_device() const;
  bool makes_wrong_products() const;
  // Sets the function that breaks the device. It is called on the thread that passes the point. What it
  // captures must outlive the last such point.
  void connect_device(std::function<void(DeviceFault)> break_device) {
    break_device_ = std::move(break_device);
  }
  // Returns whether an action changes the gradients of a lane, which then must not leave before the point.
  bool corrupts_lane_gradients() const;
  // Set what changes a number in memory, and what multiplies the learning rate of the next update. Called as
  // the function of connect_device() is; every worker sets its own.
  using CorruptMemory = std::function<CorruptedNumber(const Corruption&)>;
  void connect_memory(CorruptMemory corrupt) { corrupt_memory_ = std::move(corrupt); }
  void connect_rate(std::function<void(double factor)> scale) { scale_rate_ = std::move(scale); }
  // Returns whether there is an action at a sample.
  bool spoils_samples() const;
  // Sample that an action spoils: `index` samples after the first one of the question.
  struct SpoiledSample {
    std::uint64_t index = 0;
    SampleFault fault = SampleFault::nan;
  };
  // Returns the spoiled samples among `count` from position `first` on (counted from 0), and logs them.
  std::vector<SpoiledSample> spoiled_samples(std::uint64_t first, std::uint64_t count) const;
  void hit(std::string_view name);  // thread-safe; acts when the specification says so
  // Does the same at a point that may also fail, and returns the error.
  Result<void> attempt(std::string_view name);
  // Returns every name that may be armed, sorted.
  static const std::vector<std::string_view>& names();

 private:
  struct Rule {
    std::string name;
    FaultAction action;
    std::uint64_t at_hit = 1;
    std::atomic<std::uint64_t> hits{0};
    bool fails_at(std::uint64_t hit) const;
  };
  bool any_device_fault(bool of_products) const;
  void act(const Rule& rule);
  bool armed_ = false;
  std::string specification_;
  std::function<void(DeviceFault)> break_device_ = {};
  CorruptMemory corrupt_memory_ = {};
  std::function<void(double)> scale_rate_ = {};
  Env* env_ = nullptr;
  std::vector<std::unique_ptr<Rule>> rules_;
};

}  // namespace holdfast::os

#define HF_FAULT_POINT(faults, name)   \
  do {                                 \
    if ((faults).armed()) [[unlikely]] \
      (faults).hit(name);              \
  } while (false)

// A point at which the caller's Result may be an error.
#define HF_FAILING_FAULT_POINT(faults, name) \
  do {                                       \
    if ((faults).armed()) [[unlikely]]       \
      HF_TRY_VOID((faults).attempt(name));   \
  } while (false)
