// The kernel's log: lines such as those of dmesg.
#pragma once

#include <string>
#include <vector>

#include "runtime/core/result.h"

namespace holdfast::os {

// Returns all lines that the kernel still has, the oldest first: "[  123.456789] eth0: link up". ExitCode::config with a clause
// where this process may not read them (kernel.dmesg_restrict).
Result<std::vector<std::string>> kernel_log();

// Splits the text of the system call into lines, without the priority before each.
std::vector<std::string> lines_of_kernel_log(const std::string& text);

}  // namespace holdfast::os
