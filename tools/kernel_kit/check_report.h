// Shows what `holdfast kernel check` found: for people, as one JSON document, and as a page.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/core/json.h"
#include "tools/kernel_kit/kernel_check.h"

namespace holdfast::bench::kernel_kit {

// CheckReport is about all kernels of a plug-in that were asked for.
struct CheckReport {
  std::string plugin = {};  // as kernels::text_of() has it
  std::uint64_t seed = 0;   // of the numbers that it was tried on
  std::string trace = {};   // folder of calls of a run (call_trace.h); empty: none
  std::size_t traced = 0;   // number of its calls that were offered
  std::vector<KernelVerdict> kernels = {};
  bool passed() const;
  Json json() const;
};

// Returns lines: a table of errors in ULP, what the bits depend on, and the verdict.
std::string text_of(const CheckReport& report);
// Returns one file of HTML without scripts.
std::string page_of(const CheckReport& report);

}  // namespace holdfast::bench::kernel_kit
