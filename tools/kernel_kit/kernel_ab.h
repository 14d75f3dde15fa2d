// A/B of kernels inside a run: A trains as a config says, B with other kernels, from one state and on the same samples, in turns, in
// this process and with no run around them. As the same kernels give the same bits, every difference is B's.
//
// A kernel that ends the process ends both; `holdfast kernel ab` has a process for them.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "runtime/config/loader.h"
#include "runtime/core/result.h"
#include "runtime/os/env.h"
#include "tools/kernel_kit/ab_report.h"

namespace holdfast::bench::kernel_kit {

struct AbTerms {
  std::string run = {};                  // a config, or the directory of a run
  std::vector<Override> overrides = {};  // of both sides
  std::string plugin = {};               // of B, which takes all its kernels; empty: none
  std::vector<Override> candidate = {};  // of B: keys of [kernels]
  std::uint64_t steps = 500;
  bool from_start = false;  // from the initial weights; else from the newest checkpoint, where there is one
  bool noise = false;       // a third side, A with other last bits
  std::string build = {};   // identity of the program
};

// Makes the steps. `tell` gets sentences about how far it is, before each that a kernel may end. Errors: those of the config and
// of the plug-in (config), of data, checkpoint and memory.
Result<AbReport> compare_in_run(Env& env, const AbTerms& terms,
                                const std::function<Result<void>(const std::string&)>& tell);

}  // namespace holdfast::bench::kernel_kit
