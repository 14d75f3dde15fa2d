// The parts of an event log that grew too large: `events-0001.jsonl`, `events-0002.jsonl` ... beside
// `events.jsonl`, in the order in which they were written. A part gets its name by a rename, behind its last
// whole line, so a kill leaves every line in one place.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/core/result.h"
#include "runtime/os/env.h"

namespace holdfast::inline os {

// `path`: of the log that grows, ending in .jsonl.
std::string event_part(const std::string& path, std::uint64_t number);
// Numbers of the parts that are there, ascending.
Result<std::vector<std::uint64_t>> event_parts(Env& env, const std::string& path);
// Makes the log that grows the newest part; the next line begins another.
Result<void> rotate_events(Env& env, const std::string& path);

}  // namespace holdfast::inline os
