// Prints messages for people while a run goes on. A message that cannot be written (a file on a full disk, a
// reader that is gone) is lost and nothing else happens: a run does not end because of lost output, and its
// events are in its log. fmt::print throws in that case; it is for the commands whose result is their output.
#pragma once

#include <fmt/core.h>

#include <cstdio>
#include <string>
#include <utility>

namespace holdfast::os {

// Writes the text in one write, and at once; characters that a terminal would obey are made visible
// (printable()).
void write_to_console(std::FILE* stream, const std::string& text);

// Prints a message on stderr: "holdfast: ..." and a newline.
template <typename... Values>
void print_message(fmt::format_string<Values...> format, Values&&... values) {
  write_to_console(stderr, "holdfast: " + fmt::format(format, std::forward<Values>(values)...) + "\n");
}

// Prints a line on stdout, as it is.
template <typename... Values>
void print_line(fmt::format_string<Values...> format, Values&&... values) {
  write_to_console(stdout, fmt::format(format, std::forward<Values>(values)...) + "\n");
}

}  // namespace holdfast::os
