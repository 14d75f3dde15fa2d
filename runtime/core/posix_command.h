// Env::run_command of the real operating system.
#pragma once

#include "runtime/core/command.h"
#include "runtime/core/env.h"

namespace holdfast {

Result<CommandEnd> run_posix_command(Env& env, const Command& command);

}  // namespace holdfast
