// Measures kernels of a plug-in beside all others of their op, on the calls of a step of a run, in turns, so that all of
// them see the same machine; and finds kernels that are fast because they do not do the work.
//
//   const CounterClock clock(env);                            // before the plug-in is loaded
//   HF_TRY(const OpFigures figures, bench_kernels(env, clock, {.registry = registry, .op = op, .calls = calls, ...}, tell));
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/registry.h"
#include "runtime/core/json.h"
#include "runtime/measure/host_limits.h"
#include "runtime/os/env.h"
#include "tools/bench_native/step_calls.h"
#include "tools/kernel_kit/counter_clock.h"

namespace holdfast::bench::kernel_kit {

// RoundMean is the time of one call: the mean over rounds of two turns, in each of which the median of its calls counts.
struct RoundMean {
  double seconds = 0.0, error = 0.0;  // standard error of the mean
  std::int64_t rounds = 0;
};
RoundMean figure_of(std::span<const double> rounds);

struct KernelFigures {
  std::string name = {};
  bool is_default = false, is_of_plugin = false;
  RoundMean warm = {};  // its arrays are where the call before has left them
  RoundMean cold = {};  // its arrays are in no cache
};

// CallFigures are about one call of the step.
struct CallFigures {
  std::string call = {};
  std::int64_t calls = 0;  // in a step
  double limit_seconds = 0.0;
  std::vector<KernelFigures> kernels = {};
};

// OpFigures are about all calls of an op in a step.
struct OpFigures {
  std::string op = {};
  std::vector<CallFigures> calls = {};
  bool is_settled = true;                  // every standard error is small enough; false: the time was over
  std::vector<std::string> problems = {};  // a sentence each; the figures are worth nothing

  std::vector<std::string> notes = {};  // a sentence each, about calls that a kernel does not compute

  // Time of all calls in a step, with the default's for those that a kernel does not compute.
  struct Step {
    std::string name = {};
    bool is_default = false, is_of_plugin = false;
    RoundMean warm = {}, cold = {};
  };
  std::vector<Step> steps() const;  // by implementation
  double largest_error() const;     // relative, of all figures
};

struct KernelBenchTerms {
  const KernelRegistry* registry = nullptr;  // with those of the plug-in
  OpId op = OpId::count;
  std::span<const StepCall> calls = {};
  // Holds what a run had in the arrays of each call, by operand (BenchMemory::make); empty: random numbers.
  std::span<const std::vector<std::span<const std::byte>>> given = {};
  DType dtype = DType::fp32;  // of the run
  Limits* limits = nullptr;
  int threads = 1;
  double seconds = 30.0;         // for all calls together
  double largest_error = 0.001;  // relative standard error that is small enough
  std::uint64_t seed = 0;        // of the numbers, which no plug-in may know
};

// `tell` is called before turns of the plug-in's kernels with what comes.
Result<OpFigures> bench_kernels(const CounterClock& clock, const KernelBenchTerms& terms,
                                const std::function<void(const std::string&)>& tell);

// Returns a sentence about a kernel that takes less than a quarter of the time that its machine needs to move the bytes or
// to multiply, and of `others`, that of the fastest other kernel; empty: it does not. Where the limit is so short that it may
// be the start of threads, it must also be faster than the others by more than that. Pure.
std::string problem_of_speed(double seconds, double limit_seconds, double others);

std::string text_of(const OpFigures& figures, std::string_view run);
Json json_of(const OpFigures& figures);

}  // namespace holdfast::bench::kernel_kit
