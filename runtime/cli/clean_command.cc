#include <fmt/core.h>

#include "checkpoint/ram_runs.h"
#include "checkpoint/ram_tier.h"
#include "runtime/cli/clean_run.h"
#include "runtime/cli/commands.h"
#include "runtime/cli/common/arguments.h"
#include "runtime/core/units.h"
#include "runtime/os/foreign_text.h"
#include "runtime/run/run_directory.h"
#include "watchdog/board.h"

namespace holdfast::cli {
namespace {

constexpr const char* clean_usage =
    "usage: holdfast clean RUN\n"
    "       holdfast clean --list\n"
    "       holdfast clean --orphans\n"
    "\n"
    "Removes what killed starts of the run in the run directory RUN left on this host: its snapshots in "
    "shared "
    "memory, and\n"
    "saves that were not finished. The next start would use a snapshot that is newer than the newest "
    "checkpoint; without it\n"
    "the steps since are computed again, with the same bits. A roll-back that a verdict has decided and no "
    "start "
    "could record\n"
    "is recorded first. Refused while the run is going on.\n"
    "  --list      the runs of this user that have snapshots in the shared memory of this host\n"
    "  --orphans   removes those of runs whose directory is gone (removed, or moved to another place) and "
    "that no\n"
    "              process uses; where directories are mounted that may be away now, look at --list first\n";

Result<void> clean(Env& env, const std::string& directory) {
  HF_TRY(const CleanedRun cleaned, clean_run(env, directory));
  if (cleaned.recorded.has_value()) {
    fmt::print("{}: the run goes back to step {} or before, as a verdict has decided ({})\n", directory,
               cleaned.recorded->generation.parent.step, printable(cleaned.recorded->generation.reason));
  }
  if (!cleaned.copy_of.empty()) {
    fmt::print("{} is a copy of {}, which is still there and keeps its snapshots\n", directory,
               printable(cleaned.copy_of));
  }
  fmt::print("{}: {} snapshots removed from shared memory, {}\n", directory, cleaned.snapshots.count,
             format_bytes(cleaned.snapshots.bytes));
  return {};
}

// Returns whether the directory that the run's snapshots name is still that of the run.
bool has_directory(Env& env, const RunInMemory& run) {
  const Result<std::string> id = read_run_id(env, RunPaths{run.directory});
  return id.ok() && digest_of(*id) == run.run;
}

// Snapshots of which none is sealed are of use to nobody but the process that writes them, unless a verdict has
// unsealed them. Others that name no directory were made by a program of before.
bool is_orphan(Env& env, const RunInMemory& run) {
  if (run.in_use) return false;
  return (run.sealed == 0 && !run.keeps_rollback) || (!run.directory.empty() && !has_directory(env, run));
}

std::string described(Env& env, const RunInMemory& run) {
  const std::string where = run.directory.empty() ? "an unknown directory" : printable(run.directory);
  const char* const state = run.in_use              ? "in use"
                            : is_orphan(env, run)   ? "orphaned"
                            : run.directory.empty() ? "not in use"
                                                    : "the directory is there";
  return fmt::format("{}: {} snapshots, {}{}, of {}: {}", to_hex(run.run), run.snapshots.count,
                     format_bytes(run.snapshots.bytes),
                     run.sealed > 0 ? fmt::format(", newest step {}", run.newest_step) : "", where, state);
}

void list_runs(Env& env) {
  const std::vector<RunInMemory> runs = list_runs_in_memory(env);
  for (const RunInMemory& run : runs) fmt::print("{}\n", described(env, run));
  if (runs.empty()) fmt::print("no run has snapshots in shared memory here\n");
}

Result<void> remove_orphans(Env& env) {
  SharedSnapshots all;
  for (const RunInMemory& run : list_runs_in_memory(env)) {
    if (!is_orphan(env, run)) continue;
    fmt::print("{}\n", described(env, run));
    HF_TRY(const SharedSnapshots removed, remove_snapshots(env, run.run));  // and what is kept with them
    all.count += removed.count;
    all.bytes += removed.bytes;
  }
  remove_dead_boards(env);
  fmt::print("{} snapshots removed from shared memory, {}\n", all.count, format_bytes(all.bytes));
  return {};
}

Result<void> clean_as_told(Env& env, const std::vector<std::string>& words) {
  const bool names_run = words.empty() || !words.front().starts_with("--");
  if (names_run && words.size() != 1)
    return fail(ExitCode::config, "clean needs RUN, --list or --orphans, and nothing else\n{}", clean_usage);
  if (names_run) return clean(env, words.front());
  HF_TRY(const Arguments arguments, Arguments::parse("clean", words, {}, {}, {"list", "orphans"}));
  if (arguments.has("list") == arguments.has("orphans"))
    return fail(ExitCode::config, "clean takes one of --list and --orphans\n{}", clean_usage);
  if (arguments.has("orphans")) return remove_orphans(env);
  list_runs(env);
  return {};
}

}  // namespace

int run_clean_command(const std::vector<std::string>& arguments) {
  if (wants_help(arguments)) {
    fmt::print("{}", clean_usage);
    return 0;
  }
  const Result<void> cleaned = clean_as_told(posix_env(), arguments);
  return cleaned.ok() ? 0 : complain(cleaned.error());
}

}  // namespace holdfast::cli
