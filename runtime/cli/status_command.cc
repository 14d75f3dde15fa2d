// holdfast status: prints the state of a run, on any host that shares its directory.
#include <fmt/core.h>

#include <algorithm>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "runtime/cli/commands.h"
#include "runtime/cli/common/arguments.h"
#include "runtime/config/loader.h"
#include "runtime/os/foreign_text.h"
#include "runtime/run/claim.h"
#include "runtime/run/launch_record.h"
#include "runtime/run/log_reader.h"
#include "runtime/run/run_directory.h"
#include "runtime/run/run_summary.h"
#include "watchdog/board.h"

namespace holdfast::cli {
namespace {

constexpr const char* status_usage =
    "usage: holdfast status RUN [--json]\n"
    "\n"
    "Says how the run of the run directory RUN stands: who has it, its newest step, how many ranks each host "
    "has, what\n"
    "those of this host are at, what is saved, and what a failure would cost now. It reads what the run "
    "writes, and\n"
    "disturbs nothing; the run may be on any host that shares RUN.\n"
    "\n"
    "  --json  one JSON object, for programs (docs/launch.md has its members)\n";

// Returns the processes of this host that are known to be ranks of the run: its writer, and those that
// reported to a launcher.
std::set<std::int64_t> processes_here(Env& env, const RunSummary& run, const RunPaths& paths) {
  std::set<std::int64_t> processes;
  const ClaimRecord claim = claim_record_of(text_within_or_empty(env, paths.lock(), text_limits::identity));
  std::istringstream words(claim.holder);  // "host NAME pid N"
  std::string word, host;
  std::int64_t process = 0;
  const bool is_here = run.holder.has_value() && claim.host_id == env.host_id();
  if (is_here && words >> word >> host >> word >> process) processes.insert(process);
  const Result<std::vector<std::string>> starts = env.list(paths.launch());
  for (const std::string& start : starts.ok() ? *starts : std::vector<std::string>()) {
    for (const LaunchedRank& rank : read_launched_ranks(env, paths.launch() + "/" + start)) {
      if (run::is_here(env, rank)) processes.insert(rank.process);
    }
  }
  return processes;
}

// Reads the boards of this host that have slots of these processes.
std::vector<RunSummary::Rank> ranks_here(Env& env, const std::set<std::int64_t>& processes) {
  std::vector<RunSummary::Rank> ranks;
  const std::string any = board_name("");
  const Result<std::vector<std::string>> names = env.list_shared_memory();
  for (const std::string& name : names.ok() ? *names : std::vector<std::string>()) {
    if (name.size() != any.size() || !name.starts_with(any.substr(0, any.rfind('-')))) continue;
    const Result<std::unique_ptr<Board>> board = Board::open(env, name);
    if (!board.ok()) continue;
    std::vector<SlotView> slots;
    for (std::uint32_t i = 0; i < (*board)->slots(); ++i) {
      SlotView slot = read_slot((*board)->slot(i));
      if (slot.process > 0 && lives(env, slot)) slots.push_back(std::move(slot));
    }
    if (std::ranges::none_of(slots, [&](const SlotView& slot) { return processes.contains(slot.process); }))
      continue;
    for (const SlotView& slot : slots)
      ranks.push_back({.rank = slot.launched_rank, .does = activity_of(slot, env.monotonic_ns())});
  }
  std::ranges::sort(ranks, {}, &RunSummary::Rank::rank);
  return ranks;
}

Result<void> status(const std::vector<std::string>& words) {
  HF_TRY(const Arguments arguments, Arguments::parse("status", words, {"RUN"}, {}, {"json"}));
  Env& env = posix_env();
  RunSummary run{.directory = arguments.positional(0)};
  const RunPaths paths{run.directory};
  HF_TRY_VOID(expect_run_directory(env, paths));
  run.status = read_status(env, paths);
  const Result<std::optional<std::string>> holder = run_holder(env, paths);
  if (holder.ok()) run.holder = *holder;
  if (!holder.ok()) run.holder_unknown = holder.error().message;
  if (const Result<LogReader> log = LogReader::open(env, paths); log.ok())
    HF_TRY_VOID(log->for_each([&](const Json& event) { run.take(event); }));
  if (const Result<std::string> text = read_text_within(env, paths.config(), text_limits::config);
      text.ok()) {
    const Result<LoadedConfig> config = load_stored_config(env, *text, paths.config());
    if (config.ok()) run.steps = static_cast<std::uint64_t>(config->config.training.steps);
  }
  run.left_out = read_host_rows(env, paths).hosts;
  run.here = ranks_here(env, processes_here(env, run, paths));
  fmt::print("{}", arguments.has("json") ? to_json(run).dump_any() + "\n"
                                         : printable(to_text(run, env.wall_time_us())));
  return finish_output();
}

}  // namespace

int run_status_command(const std::vector<std::string>& arguments) {
  if (wants_help(arguments)) {
    fmt::print("{}", status_usage);
    return 0;
  }
  const Result<void> outcome = status(arguments);
  return outcome.ok() ? 0 : complain(outcome.error());
}

}  // namespace holdfast::cli
