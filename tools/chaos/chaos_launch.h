// Launches of a chaos run by `holdfast launch`: their command line, what their end means, and how one is killed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/os/env.h"
#include "runtime/os/processes.h"
#include "tools/chaos/chaos_plan.h"
#include "tools/chaos/chaos_record.h"

namespace holdfast::chaos {

// Returns the command line that launches such a run in `directory`.
std::vector<std::string> launch_words(const ChaosSetup& setup, const ChaosPlan& plan,
                                      const std::string& directory);

// Meaning of the end of a launch for its run.
enum class LaunchEnd : std::uint8_t {
  done,
  ended_truthfully,  // it gave up and says why, and another launch goes on
  wrong,             // no fault of the campaign explains it
};
// Classifies the end of a launch. `disk_was_full`: for a while in this launch; `numbers_were_wrong`: a number
// fault met the run. Exit code 76 is explained by its text, 5 by that of a disk that was full, and 20 by
// numbers that are wrong for good. Any other end is wrong whatever was done to the run: so is code 3, because
// what fitted before a fault must fit after it.
LaunchEnd end_of(const ChaosLaunch& launch, bool disk_was_full, bool numbers_were_wrong = false);

// Sends SIGKILL to a launcher that is in a session of its own; all processes that it has started die with it.
// Returns false if some processes of the run in `directory` still exist ten seconds later.
bool kill_job(Env& env, Process& launcher, const std::string& directory);

}  // namespace holdfast::chaos
