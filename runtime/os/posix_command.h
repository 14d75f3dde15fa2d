// Env::run_command of the real operating system.
#pragma once

#include "runtime/os/command.h"
#include "runtime/os/env.h"

namespace holdfast::inline os {

Result<CommandEnd> run_posix_command(Env& env, const Command& command);

}  // namespace holdfast::inline os
