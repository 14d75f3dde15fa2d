// A sentence for people, on stderr, while a run goes on: "holdfast: ..." and a newline, in one write. Where
// it cannot be written (stderr is a file on a full disk, its reader is gone) nothing happens; fmt::print
// throws there, and nobody would catch that as what it is.
#pragma once

#include <fmt/format.h>

#include <cstdio>
#include <string>
#include <utility>

namespace holdfast {

template <typename... Values>
void tell(fmt::format_string<Values...> format, Values&&... values) {
  const std::string text = "holdfast: " + fmt::format(format, std::forward<Values>(values)...) + "\n";
  static_cast<void>(std::fwrite(text.data(), 1, text.size(), stderr));
}

}  // namespace holdfast
