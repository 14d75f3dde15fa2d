#include "runtime/cli/common/program.h"

#include <algorithm>
#include <system_error>

#include "runtime/cli/common/arguments.h"
#include "runtime/os/posix_start.h"

namespace holdfast::cli {

int run_program(int argc, char** argv, int (*run)(const std::vector<std::string>& words)) {
  replace_closed_streams();
  try {
    return run({argv + 1, argv + std::max(argc, 1)});
  } catch (const std::system_error& error) {  // fmt::print throws it when the output cannot be written
    return complain(output_is_lost(error.code().message()));
  }
}

int with_output(int code) {
  const Result<void> written = finish_output();
  if (written.ok()) return code;
  const int lost = complain(written.error());
  return std::max(code, lost);  // an error of the command says more, and is printed above
}

}  // namespace holdfast::cli
