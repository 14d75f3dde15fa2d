#include "runtime/core/check.h"

#include <cstdio>
#include <cstdlib>

namespace holdfast {

void check_failed(const char* file, int line, const char* condition, std::string_view message) {
  const std::string text = fmt::format("{}:{}: bug: the check `{}` failed{}{}\n", file, line, condition,
                                       message.empty() ? "" : ": ", message);
  std::fputs(text.c_str(), stderr);
  std::fflush(stderr);
  std::abort();
}

}  // namespace holdfast
