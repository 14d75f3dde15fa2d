#include "runtime/os/tell.h"

#include "runtime/os/foreign_text.h"

namespace holdfast::inline os {

void say_on(std::FILE* stream, const std::string& text) {
  const std::string shown = printable(text);
  static_cast<void>(std::fwrite(shown.data(), 1, shown.size(), stream));
  static_cast<void>(std::fflush(stream));
}

}  // namespace holdfast::inline os
