// How far a run has come, from the end of its event log.
#pragma once

#include <cstdint>

#include "runtime/core/env.h"
#include "runtime/train/run_directory.h"

namespace holdfast {

// The step of the newest step event; 0 when there is none.
std::uint64_t newest_step(Env& env, const RunPaths& paths);

}  // namespace holdfast
