#include <fmt/core.h>

#include "checkpoint/ram_tier.h"
#include "checkpoint/store.h"
#include "runtime/cli/commands.h"
#include "runtime/cli/common/arguments.h"
#include "runtime/core/units.h"
#include "runtime/os/foreign_text.h"
#include "runtime/run/run_directory.h"
#include "runtime/run/run_identity.h"
#include "watchdog/board.h"

namespace holdfast::inline cli {
namespace {

constexpr const char* clean_usage =
    "usage: holdfast clean RUN\n"
    "\n"
    "Removes what killed starts of the run in the run directory RUN left on this host: its snapshots in "
    "shared "
    "memory, and\n"
    "saves that were not finished. The next start would use a snapshot that is newer than the newest "
    "checkpoint; without it\n"
    "the steps since are computed again, with the same bits. Refused while the run is going on.\n";

Result<void> clean(Env& env, const std::string& directory) {
  const RunPaths paths{directory};
  HF_TRY(const FileStatus status, env.status(paths.run_id()));
  if (!status.exists) {
    return fail(
        ExitCode::config,
        "{} is no run directory: it holds no run_id. Give the run.directory of a run that has started",
        directory);
  }
  HF_TRY(const std::unique_ptr<Claim> claim, claim_run_directory(env, paths));
  HF_TRY(const RunIdentity identity, identify_run(env, paths));
  SharedSnapshots removed;
  if (!identity.id.empty()) {
    HF_TRY(removed, remove_snapshots(env, digest_of(identity.id)));
  }
  if (!identity.copy_of.empty()) {
    fmt::print("{} is a copy of {}, which is still there and keeps its snapshots\n", directory,
               printable(identity.copy_of));
  }
  remove_dead_boards(env);
  FaultPoints none;
  CheckpointStore store(env, none, directory);
  store.fence({.epoch = claim->epoch(), .check = claim->fence()});
  HF_TRY_VOID(store.remove_leftovers());
  fmt::print("{}: {} snapshots removed from shared memory, {}\n", directory, removed.count,
             format_bytes(removed.bytes));
  return {};
}

}  // namespace

int run_clean_command(const std::vector<std::string>& arguments) {
  if (wants_help(arguments)) {
    fmt::print("{}", clean_usage);
    return 0;
  }
  if (arguments.size() != 1)
    return complain(fail(ExitCode::config, "clean needs RUN, and nothing else\n{}", clean_usage));
  const Result<void> cleaned = clean(posix_env(), arguments.front());
  return cleaned.ok() ? 0 : complain(cleaned.error());
}

}  // namespace holdfast::inline cli
