// The parts of an event log that grew too large: `events-0001.jsonl`, `events-0002.jsonl` ... beside
// `events.jsonl`, in the order in which they were written. A part gets its name by a rename after its last
// whole line, so a kill leaves every line in one place.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/core/result.h"
#include "runtime/os/env.h"

namespace holdfast::run {

// Returns the path of a part. `path` is that of the growing log, ending in .jsonl.
std::string event_part(const std::string& path, std::uint64_t number);
// Returns the numbers of the existing parts, ascending.
Result<std::vector<std::uint64_t>> event_parts(Env& env, const std::string& path);
// Turns the growing log into the newest part; the next line begins another log.
Result<void> rotate_events(Env& env, const std::string& path);

}  // namespace holdfast::run
