// Commands of developers and operators. They are separate programs beside this one, so that the training
// program links none of their code.
#include <string_view>

#include "runtime/cli/commands.h"
#include "runtime/cli/common/arguments.h"
#include "runtime/os/paths.h"
#include "runtime/os/processes.h"

namespace holdfast::cli {
namespace {

// Replaces this process by the program of the command; returns only when that is not possible.
int become_command(std::string_view command, const std::vector<std::string>& arguments) {
  const std::string name = fmt::format("holdfast-{}", command);
  const Result<void> refused = become_program(program_directory() + "/" + name, arguments);
  return complain(fail(ExitCode::config,
                       "{} is a program of its own, {}: {}; put it beside holdfast, or build it with cmake "
                       "--build --preset release --target {}",
                       command, name, refused.error().message, name));
}

}  // namespace

int run_bench_command(const std::vector<std::string>& arguments) {
  return become_command("bench", arguments);
}

int run_chaos_command(const std::vector<std::string>& arguments) {
  return become_command("chaos", arguments);
}

}  // namespace holdfast::cli
