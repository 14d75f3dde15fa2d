// CallProbe: finds out whether a kernel that is being timed does the work. It makes a call as the timed ones are made, on
// memory of which some numbers are others, looks at some of what the call writes as soon as the kernel has returned, and
// compares all of it with another implementation's. Some calls get other numbers everywhere: a kernel may tell those from
// timed calls, and not the others.
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

  struct How {
    bool renews = true;    // all numbers; false: some, as a timed call has it
    bool is_cold = false;  // its arrays are in no cache
  };
  // Runs the kernel once. Returns a clause about what it did wrong; empty: nothing.
  std::string probe(const Implementation& kernel, const How& how);

 private:
  using Place = BenchMemory::Place;
  // Returns the bytes at some places of the arrays, or of copies of them.
  std::vector<std::byte> bytes_at(const std::vector<Place>& places) const;
  std::vector<std::byte> bytes_of_first_call(const std::vector<Place>& places) const;
  void keep_first_call();
  // Returns where the results differ by more than two implementations may; empty: nowhere.
  std::string difference() const;

  KernelRunner& runner_;
  const Implementation& usual_;
  BenchMemory& memory_;
  BenchMemory& twin_;
  QuickRandom& random_;
  std::vector<Place> places_;
  std::vector<std::vector<std::byte>> first_call_;  // by array; empty: none was right yet
  std::int64_t right_ = 0;
};

}  // namespace holdfast::bench::kernel_kit
