// Finds rules of [kernels] that are about no call of a run, before it begins.
#pragma once

#include <map>
#include <string>

#include "parallel/group/mesh.h"
#include "runtime/config/config.h"
#include "runtime/core/result.h"
#include "runtime/os/env.h"

namespace holdfast::elastic {

// Checks that each of kernels.rules and kernels.shadow is about some call of a step, and that a kernel of a composed op may compute in it. The step is planned as one data-parallel
// rank of each pipeline stage makes it (planned_rank.h), on a mesh of all ranks that compute; without rules nothing is
// planned. All ranks get the same answer, without a message. `config` is resolved, and the kernels are there; `origin`: where
// each key was set. ExitCode::config with a sentence that says what the step has.
Result<void> check_rules_have_calls(Env& env, const Config& config,
                                    const std::map<std::string, std::string>& origin, const MeshShape& shape);

}  // namespace holdfast::elastic
