// Makes the config with which a step is computed again: that of the run, with the layout of the ranks at
// hand, and without all that a run writes.
#pragma once

#include <string>
#include <vector>

#include "runtime/config/loader.h"
#include "runtime/core/result.h"
#include "runtime/os/env.h"
#include "runtime/replay/replay_source.h"

namespace holdfast::replay {

// Chooses the degrees for so many ranks: those of the run if they fit, else data parallelism alone. Where
// `overrides` give a degree, those that they leave out are 1. Pure.
void choose_layout(ParallelConfig& parallel, int ranks, const std::vector<Override>& overrides);

// Returns the config. Only overrides that change no number of the step are accepted: the layout, threads, the
// paths of the data. ExitCode::config for others, all named at once.
Result<LoadedConfig> replay_config(Env& env, const ReplaySource& source, const std::string& run_directory,
                                   int ranks, const std::vector<Override>& overrides);

}  // namespace holdfast::replay
