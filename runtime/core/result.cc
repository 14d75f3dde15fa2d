#include "runtime/core/result.h"

namespace holdfast::core {

void value_of_error(const Error& error) {
  check_failed_as(__FILE__, __LINE__, "ok()", "value() of an error: {}", error.message);
}

Error with_code(ExitCode code, Error error) {
  error.code = code;
  return error;
}

Error with_reach(Reach reach, Error error) {
  error.reach = reach;
  return error;
}

Error with_cause(const Error& cause, Error error) {
  error.reach = cause.reach;
  error.reason = cause.reason;
  return error;
}

Error fail_with(ExitCode code, fmt::string_view format, fmt::format_args values) {
  return Error{code, fmt::vformat(format, values)};
}

}  // namespace holdfast::core
