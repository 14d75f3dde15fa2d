#include "runtime/core/result.h"

namespace holdfast::inline core {

void value_of_error(const Error& error) {
  check_failed_as(__FILE__, __LINE__, "ok()", "value() of an error: {}", error.message);
}

Error fail_with(ExitCode code, fmt::string_view format, fmt::format_args values) {
  return Error{code, fmt::vformat(format, values)};
}

}  // namespace holdfast::inline core
