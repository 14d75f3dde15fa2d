#include "runtime/core/check.h"

#include <cstdio>
#include <cstdlib>
#include <string>

namespace holdfast::core {

void check_failed(const char* file, int line, const char* condition, std::string_view message) {
  const std::string text = fmt::format("{}:{}: bug: the check `{}` failed{}{}\n", file, line, condition,
                                       message.empty() ? "" : ": ", message);
  std::fputs(text.c_str(), stderr);
  std::fflush(stderr);
  std::abort();
}

void check_failed_with(const char* file, int line, const char* condition, fmt::string_view format,
                       fmt::format_args values) {
  check_failed(file, line, condition, fmt::vformat(format, values));
}

}  // namespace holdfast::core
