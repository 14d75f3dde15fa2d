// Captures calls of ops from a run by computing its steps again (runtime/replay), with a watch on the queue of the device that
// changes nothing; each call is made again from what was kept before the trace has its name.
#pragma once

#include <bitset>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/config/loader.h"
#include "runtime/core/result.h"
#include "runtime/device/cpu/call_watch.h"
#include "runtime/device/device.h"
#include "runtime/os/env.h"
#include "tools/kernel_kit/call_trace.h"

namespace holdfast::bench::kernel_kit {

using OpSet = std::bitset<op_count>;

// Returns the ops of a list of patterns with commas: "*" is any characters, "?" one. ExitCode::config where one matches nothing.
Result<OpSet> ops_of_patterns(std::string_view patterns);
// Returns the steps of "3,10-12" in their order, each once. ExitCode::config where it is no such list, or has more than 100.
Result<std::vector<std::uint64_t>> steps_of_list(std::string_view list);

// Returns what lets the calls of a run's device be watched. ExitCode::config where it computes on no processor.
Result<device::WatchedCalls*> watched_calls(Device& device, std::string_view run);

struct CaptureTerms {
  std::string run = {};                  // directory of the run
  std::vector<Override> overrides = {};  // as holdfast replay takes them
  std::vector<std::uint64_t> steps = {};
  OpSet ops = {};
  std::string patterns = {};  // of `ops`, for messages
  std::int64_t calls = 1;     // that are kept of each shape in each step; the first ones
  std::string folder = {};    // that is made
  std::string build = {};     // identity of the program
};

// Captured says what there is now.
struct Captured {
  CallTrace trace = {};
  std::uint64_t bytes = 0;
  // Steps whose numbers have other bits than the run recorded, such as "step 12 (loss, grad_norm)".
  std::vector<std::string> differing = {};
};

// Makes the trace. `say` gets sentences on what is done, among them the bytes before they are written. Errors: those of a replay;
// config where no step calls one of the ops, the folder is there, or the run does not compute on a processor; numerics where a call
// that is made again leaves other bits; of the disk. Where there is one, nothing is left.
Result<Captured> capture_calls(Env& env, const CaptureTerms& terms,
                               const std::function<void(const std::string&)>& say);

}  // namespace holdfast::bench::kernel_kit
