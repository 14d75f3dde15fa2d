// How much memory a process can still take before the system starts to kill: what the host has left, or what
// the control groups of the process leave it, whichever is less.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "runtime/core/env.h"

namespace holdfast {

// std::nullopt when the system does not say. A snapshot: other processes take and give back all the time.
std::optional<std::uint64_t> available_memory_bytes(Env& env);

// MemAvailable + SwapFree of the text of /proc/meminfo.
std::optional<std::uint64_t> available_of_meminfo(const std::string& meminfo);
// Limit - (usage - what the group can drop at once), from memory.max, memory.current and memory.stat of a
// group. std::nullopt when there is no limit.
std::optional<std::uint64_t> available_of_group(const std::string& max, const std::string& current,
                                                const std::string& stat);

}  // namespace holdfast
