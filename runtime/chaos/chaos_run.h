// One run with the faults of a plan, by the way that users go: `holdfast launch`. The executor waits for the
// moments of the plan, does what it says, and looks at what came of it.
#pragma once

#include <string>
#include <vector>

#include "runtime/chaos/chaos_plan.h"
#include "runtime/chaos/chaos_record.h"
#include "runtime/core/result.h"
#include "runtime/os/env.h"
#include "runtime/os/processes.h"

namespace holdfast::inline chaos {

// The words that launch such a run in `directory`.
std::vector<std::string> launch_words(const ChaosSetup& setup, const ChaosPlan& plan,
                                      const std::string& directory);

// To its end, or that of its time; then nothing of it goes on. With `keep`, or when it went wrong, its files
// are in the directory, also those of a small disk. Error: it could not be started, or a command of the
// user's for hosts failed.
Result<ChaosRun> run_chaos(Env& env, const ChaosSetup& setup, const ChaosPlan& plan,
                           const std::string& directory, bool keep);

// What `holdfast digest` prints of the newest whole state.
Result<std::string> digest_of_run(Env& env, const std::string& directory);

// SIGKILL to a launcher that is in a session of its own; all that it has started dies with it. False: some
// processes of the run in `directory` are still there ten seconds later.
bool kill_job(Env& env, Process& launcher, const std::string& directory);

}  // namespace holdfast::inline chaos
