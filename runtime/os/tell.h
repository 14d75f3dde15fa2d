// What is said to people while a run goes on. Where it cannot be written (a file on a full disk, a reader
// that is gone) it is lost and nothing else happens: a run does not end because nobody listens, and its
// events are in its log. fmt::print throws there; it is for the commands whose result is what they print.
#pragma once

#include <fmt/core.h>

#include <cstdio>
#include <string>
#include <utility>

namespace holdfast::inline os {

// The text in one write, and at once; what a terminal would obey is made visible (printable()).
void say_on(std::FILE* stream, const std::string& text);

// A sentence on stderr: "holdfast: ..." and a newline.
template <typename... Values>
void tell(fmt::format_string<Values...> format, Values&&... values) {
  say_on(stderr, "holdfast: " + fmt::format(format, std::forward<Values>(values)...) + "\n");
}

// A line on stdout, as it is.
template <typename... Values>
void show(fmt::format_string<Values...> format, Values&&... values) {
  say_on(stdout, fmt::format(format, std::forward<Values>(values)...) + "\n");
}

}  // namespace holdfast::inline os
