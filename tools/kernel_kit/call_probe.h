// CallProbe: finds out whether a kernel that is being timed does the work. Between timed calls, which the kernel cannot
// tell from others, it gives a call numbers that are new, scrambles what the call writes, looks at some of it as soon as
// the kernel has returned, and compares all of it with another implementation's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/implementation.h"
#include "tools/kernel_kit/bench_memory.h"
#include "tools/kernel_kit/kernel_runner.h"

namespace holdfast::bench::kernel_kit {

// ProbedBytes are some bytes of what a call writes, at several moments.
struct ProbedBytes {
  std::vector<std::byte> first_call = {};  // what the first call that was probed had left
  std::vector<std::byte> last_call = {};   // what the call before had left, perhaps another kernel's
  std::vector<std::byte> before = {};      // scrambled
  std::vector<std::byte> at_return = {}, later = {};
};
// Returns what a kernel did whose numbers are wrong, or that goes on after it has returned, as a clause about it; empty:
// nothing. `difference` says where the numbers are wrong, or is empty. Pure.
std::string problem_of_probe(const ProbedBytes& bytes, const std::string& difference,
                             std::int64_t right_before);

class CallProbe {
 public:
  // The kernel's calls are those on `memory`; `twin` is as large. All outlive the probe.
  CallProbe(KernelRunner& runner, const Implementation& usual, BenchMemory& memory, BenchMemory& twin,
            QuickRandom& random);

  // Runs the kernel once. Returns a clause about what it did wrong; empty: nothing.
  std::string probe(const Implementation& kernel);

 private:
  struct Place {
    std::size_t array = 0, byte = 0, count = 0;
  };
  std::vector<std::byte> bytes_now() const;
  // Returns where the results differ by more than two implementations may; empty: nowhere.
  std::string difference() const;

  KernelRunner& runner_;
  const Implementation& usual_;
  BenchMemory& memory_;
  BenchMemory& twin_;
  QuickRandom& random_;
  std::vector<Place> places_;
  std::vector<std::byte> first_call_;
  std::int64_t right_ = 0;
};

}  // namespace holdfast::bench::kernel_kit
