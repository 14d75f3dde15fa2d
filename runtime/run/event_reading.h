// Reads JSON that another program may have written: events of any version, the last line of a log torn by a
// kill, and what ranks tell each other. Pure.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "runtime/core/json.h"

namespace holdfast::inline run {

// Calls back for every event in the order of the log, its fields in the order of the line; lines that are not
// whole are skipped.
void for_each_event(std::string_view event_lines, const std::function<void(const Json&)>& take);

// Fields of one object. A field of another type counts as missing.
double number_of(const Json& event, const char* key, double otherwise);
std::uint64_t count_of(const Json& event, const char* key, std::uint64_t otherwise = 0);
std::string text_of(const Json& event, const char* key);  // missing: empty

}  // namespace holdfast::inline run
