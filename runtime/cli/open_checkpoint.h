// The checkpoint that a command works on.
#pragma once

#include <string>

#include "checkpoint/store.h"
#include "runtime/core/env.h"
#include "runtime/core/result.h"

namespace holdfast {

// `path`: a run directory (its newest whole checkpoint) or one checkpoint. Damaged ones that were passed over
// are named on stderr. ExitCode::checkpoint when there is none.
Result<Checkpoint> open_newest_checkpoint(Env& env, const std::string& path);

}  // namespace holdfast
