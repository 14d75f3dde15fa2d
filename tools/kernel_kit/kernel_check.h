// Checks of one kernel of a plug-in against the reference in double: its numbers, what it writes, and whether its bits
// depend on anything but the call.
//
//   HF_TRY(const KernelVerdict verdict, check_kernel(env, implementation, tell));
//   if (!verdict.passed()) ...
//
// The kernel runs in this process, which it may crash or keep for ever: run it in one of its own (program/main.cc).
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "kernels/implementation.h"
#include "kernels/number_errors.h"
#include "runtime/core/json.h"
#include "runtime/core/result.h"
#include "runtime/os/env.h"
#include "tools/kernel_kit/check_shapes.h"

namespace holdfast::bench::kernel_kit {

// CallVerdict is about the numbers of one array in one call.
struct CallVerdict {
  std::string call = {};   // "2x64x33 fp32, outliers"
  std::string array = {};  // "y"
  std::string dtype = {};
  NumberErrors errors = {};
  std::string default_name = {};  // implementation that a run without the kernel chooses for this call
  double default_relative = 0.0;  // its error on the same inputs
  ErrorLimits limits = {};
};

struct KernelVerdict {
  std::string op = {}, name = {};
  int calls = 0, computed = 0;            // calls that were offered, and that the kernel computes
  std::vector<CallVerdict> numbers = {};  // of all arrays of all calls
  int cut = 0;                            // calls that were compared with the same call cut in two
  int bits = 0;                           // calls that were compared with themselves in every other way
  bool same_bits_twice = true, layout_free = true;  // no difference was found; json() says what was not tried
  bool is_of_parts = false;                         // the op is a composed one
  bool bits_of_parts = true;                        // likewise: no difference from the default was found
  std::vector<std::string> problems = {};           // a sentence each; the kernel is wrong
  std::vector<std::string> notes = {};              // a sentence each; it is not

  bool passed() const { return problems.empty(); }
  Json json() const;
};

// CallErrors says by how much a kernel misses the reference in double in one call, at most in any of its arrays.
struct CallErrors {
  double relative = 0.0, absolute = 0.0, ulp = 0.0;  // relative to the largest element of the array
  std::int64_t wrong_kind = 0;  // elements that are not finite where they should be, or the other way
  bool is_allowed = true;       // `kernel check` has nothing against it
};
CallErrors errors_of(const Implementation& kernel, const CheckShape& shape, int threads);

// Runs all checks, on numbers that follow from the seed, and then on the calls of a trace with the numbers that they had. `tell` is called before each call of the kernel with what comes, which is the last word of a kernel
// that crashes or hangs. An error is one of this program, not of the kernel.
Result<KernelVerdict> check_kernel(Env& env, const Implementation& kernel,
                                   const std::function<void(const std::string&)>& tell,
                                   std::uint64_t seed = 17, std::span<const CheckShape> traced = {});

}  // namespace holdfast::bench::kernel_kit
