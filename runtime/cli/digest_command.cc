#include <fmt/core.h>

#include "runtime/cli/commands.h"
#include "runtime/cli/common/arguments.h"
#include "runtime/cli/open_checkpoint.h"
#include "runtime/save/state_digest.h"

namespace holdfast::cli {
namespace {

constexpr const char* digest_usage =
    "usage: holdfast digest PATH\n"
    "\n"
    "PATH is a run directory (its newest whole checkpoint) or one checkpoint. Prints the step and a digest "
    "each of weights,\n"
    "optimizer state, data position and losses. They do not depend on how the state was cut into files: "
    "equal lines are\n"
    "equal bits.\n";

Result<void> digest(const std::vector<std::string>& words) {
  HF_TRY(const Arguments arguments, Arguments::parse("digest", words, {"PATH"}, {}));
  HF_TRY(Checkpoint checkpoint, open_newest_checkpoint(posix_env(), arguments.positional(0)));
  HF_TRY(const StateDigest state, digest_checkpoint(checkpoint));
  fmt::print("{}", to_text(state));
  return {};
}

}  // namespace

int run_digest_command(const std::vector<std::string>& arguments) {
  if (wants_help(arguments)) {
    fmt::print("{}", digest_usage);
    return 0;
  }
  const Result<void> outcome = digest(arguments);
  return outcome.ok() ? 0 : complain(outcome.error());
}

}  // namespace holdfast::cli
