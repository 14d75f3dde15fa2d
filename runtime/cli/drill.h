// Drill: a short run with the config, the hosts and the ranks of the run that comes, in which a rank is killed; where
// there are several hosts, a second one in which all ranks of a host are. It says what each loss took, so that fault tolerance that is off for this
// config, these hosts or this memory is known before it counts.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "runtime/config/config.h"
#include "runtime/core/result.h"
#include "runtime/launch/launch_options.h"
#include "runtime/os/env.h"

namespace holdfast::cli {

// DrillPlan is one start of the program that trains for a few steps and loses something.
struct DrillPlan {
  std::string lost = {};                // "rank 2", "host b"
  std::string directory = {};           // of its run
  std::string faults = {};              // HOLDFAST_FAULTS
  std::vector<std::string> words = {};  // of the program
};
// Plans the drills of a launch with these words: one loses a rank that computes; where several hosts have such ranks, another one
// loses all of the last host's. `hosts`: those that are named, empty for this host alone; `directory`: a number is appended for
// each. Pure.
std::vector<DrillPlan> plan_drills(const std::vector<std::string>& words, const LaunchOptions& options,
                                   const Config& config, const std::vector<LaunchHost>& hosts,
                                   const std::string& directory);

// Makes the drills, one after another, and prints what each loss took; their run and output, which are beside the run
// directory, are removed afterwards. `is_stopped` is called again and again, and ends it where it returns true. Errors: that of the
// drill, where it was refused; communication, where it did not get through, with what to look at.
Result<void> make_drills(Env& env, const std::vector<std::string>& words, const LaunchOptions& options,
                         const std::function<bool()>& is_stopped);

}  // namespace holdfast::cli
