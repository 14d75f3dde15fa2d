#include "runtime/os/console.h"

#include "runtime/os/foreign_text.h"

namespace holdfast::os {

void write_to_console(std::FILE* stream, const std::string& text) {
  const std::string shown = printable(text);
  static_cast<void>(std::fwrite(shown.data(), 1, shown.size(), stream));
  static_cast<void>(std::fflush(stream));
}

}  // namespace holdfast::os
