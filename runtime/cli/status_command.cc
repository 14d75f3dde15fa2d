// holdfast status: prints the state of a run, on any host that shares its directory.
#include <fmt/core.h>

#include <algorithm>
#include <csignal>
#include <memory>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "runtime/cli/commands.h"
#include "runtime/cli/common/arguments.h"
#include "runtime/config/loader.h"
#include "runtime/health/rank_times.h"
#include "runtime/os/foreign_text.h"
#include "runtime/os/posix_output.h"
#include "runtime/os/signals.h"
#include "runtime/run/claim.h"
#include "runtime/run/event_reading.h"
#include "runtime/run/kernel_faults.h"
#include "runtime/run/launch_record.h"
#include "runtime/run/log_reader.h"
#include "runtime/run/run_directory.h"
#include "runtime/run/run_summary.h"
#include "runtime/run/watch_view.h"
#include "watchdog/board.h"

namespace holdfast::cli {
namespace {

constexpr const char* status_usage =
    "usage: holdfast status RUN [--json | --watch [--every SECONDS]]\n"
    "\n"
    "Says how the run of the run directory RUN stands: who has it, its newest step, how many ranks each host "
    "has, what\n"
    "those of this host are at, what is saved, and what a failure would cost now. It reads what the run "
    "writes, and\n"
    "disturbs nothing; the run may be on any host that shares RUN.\n"
    "\n"
    "  --json           one JSON object, for programs (docs/launch.md has its members)\n"
    "  --watch          draw it anew until the run is over, or Ctrl-C; where the output is no terminal, "
    "print it "
    "anew\n"
    "  --every SECONDS  between two looks, 1 when left out, a day at most\n";

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
    for (const SlotView& slot : slots) ranks.push_back(rank_of(slot, env.monotonic_ns()));
  }
  std::ranges::sort(ranks, {}, &RunSummary::Rank::rank);
  return ranks;
}

// Returns where the ranks spent the newest steps that their file has. It is of the epoch that trains, or trained last.
std::vector<RunSummary::RankTime> times_of_ranks(Env& env, const RunPaths& paths) {
  std::vector<RunSummary::RankTime> times;
  const std::vector<RankTimesEpoch> epochs = read_rank_times(env, paths.rank_times());
  if (epochs.empty() || epochs.back().rows.empty()) return times;
  const RankTimesRow& row = epochs.back().rows.back();
  const std::vector<RankPlace>& places = epochs.back().ranks;
  for (std::size_t i = 0; i < std::min(places.size(), row.mean.size()); ++i)
    times.push_back({.rank = places[i].rank,
                     .host = places[i].host,
                     .own_ms = row.mean[i].own_ms(),
                     .waited_ms = static_cast<double>(row.mean[i].waited_ms)});
  std::ranges::sort(times, {}, &RunSummary::RankTime::rank);
  return times;
}

// Follows a run: each look() takes in what its log has more, and where it stands now.
class RunFollower {
 public:
  RunFollower(Env& env, const std::string& directory) : env_(&env), paths_{directory}, log_(env, paths_) {
    run_.directory = directory;
    run_.own_host = env.host_name();
  }

  // Error: the directory is none of a run. A log that cannot be read now is said with the rest.
  Result<void> look() {
    HF_TRY_VOID(expect_run_directory(*env_, paths_));
    run_.status = read_status(*env_, paths_);
    const Result<std::optional<std::string>> holder = run_holder(*env_, paths_);
    run_.holder = holder.ok() ? *holder : std::nullopt;
    run_.holder_unknown = holder.ok() ? "" : holder.error().message;
    const auto take = [this](const Json& event) { run_.take(event); };
    const Result<void> read = log_.read_new([&](std::string_view lines) { for_each_event(lines, take); });
    const bool is_none = !read.ok() && read.error().code == ExitCode::config;  // so far
    run_.log_unreadable = read.ok() || is_none ? "" : read.error().message;
    if (run_.steps == 0) read_steps();
    run_.left_out = read_host_rows(*env_, paths_).hosts;
    run_.kernel_faults = read_kernel_faults(*env_, paths_);
    run_.here = ranks_here(*env_, processes_here(*env_, run_, paths_));
    run_.times = times_of_ranks(*env_, paths_);
    const Result<std::uint64_t> free = env_->free_bytes(paths_.directory);
    run_.free_bytes = free.ok() ? std::optional(*free) : std::nullopt;
    return {};
  }
  const RunSummary& run() const { return run_; }
  // Returns whether nobody goes on with the run. Between two writers nobody has it for a moment.
  bool is_over() {
    const bool is_free = !run_.holder.has_value() && run_.holder_unknown.empty();
    if (!is_free) free_since_ns_.reset();
    if (!is_free) return false;
    if (run_.status.state != "running") return true;
    const std::int64_t now_ns = env_->monotonic_ns();
    if (!free_since_ns_.has_value()) free_since_ns_ = now_ns;
    return now_ns - *free_since_ns_ > between_writers_ns;
  }

 private:
  static constexpr std::int64_t between_writers_ns = 3'000'000'000;

  void read_steps() {
    const Result<std::string> text = read_text_within(*env_, paths_.config(), text_limits::config);
    if (!text.ok()) return;
    const Result<LoadedConfig> config = load_stored_config(*env_, *text, paths_.config());
    if (config.ok()) run_.steps = static_cast<std::uint64_t>(config->config.training.steps);
  }

  Env* env_;
  RunPaths paths_;
  LogFollower log_;
  RunSummary run_;
  std::optional<std::int64_t> free_since_ns_ = {};
};

// Draws the lines over those before on a terminal, and below them elsewhere.
void draw(const std::vector<std::string>& lines, const std::optional<TerminalSize>& terminal, bool is_first) {
  std::string text = !terminal.has_value() ? (is_first ? "" : "\n") : is_first ? "\x1b[2J\x1b[H" : "\x1b[H";
  // A line is erased before it is written: behind its last column that would take the last character.
  for (const std::string& line : lines) text += terminal.has_value() ? "\x1b[K" + line + "\r\n" : line + "\n";
  if (terminal.has_value()) text += "\x1b[J";
  fmt::print("{}", text);
}

Result<void> watch(Env& env, RunFollower& follower, double every_seconds) {
  HF_TRY(const std::unique_ptr<SignalWatcher> signals, SignalWatcher::watch({SIGINT, SIGTERM}));
  const bool has_colors = env.variable("NO_COLOR").empty();
  for (bool is_first = true;; is_first = false) {
    const std::optional<TerminalSize> terminal = terminal_size(stdout);
    draw(watch_lines(follower.run(), env.wall_time_us(),
                     {.columns = terminal.has_value() ? terminal->columns : 0,
                      .rows = terminal.has_value() ? std::max(terminal->rows - 1, 1) : 0,
                      .has_colors = terminal.has_value() && has_colors}),
         terminal, is_first);
    HF_TRY_VOID(finish_output());
    if (follower.is_over()) return {};
    const std::int64_t until_ns = env.monotonic_ns() + static_cast<std::int64_t>(every_seconds * 1e9);
    while (env.monotonic_ns() < until_ns) {
      if (signals->poll() != 0) return {};
      env.sleep_us(std::clamp<std::int64_t>((until_ns - env.monotonic_ns()) / 1000, 1, 50'000));
    }
    HF_TRY_VOID(follower.look());
  }
}

Result<void> status(const std::vector<std::string>& words) {
  HF_TRY(const Arguments arguments, Arguments::parse("status", words, {"RUN"}, {"every"}, {"json", "watch"}));
  HF_TRY(const double every_seconds, arguments.real("every", 1.0, 0.1));
  if (arguments.has("every") && !arguments.has("watch"))
    return fail(ExitCode::config, "status --every is for status --watch; add --watch");
  if (arguments.has("json") && arguments.has("watch"))
    return fail(
        ExitCode::config,
        "status prints --json once, and --watch for people; programs call it with --json as often as they "
        "need, or read holdfast events RUN --follow --json");
  Env& env = posix_env();
  RunFollower follower(env, arguments.positional(0));
  HF_TRY_VOID(follower.look());
  constexpr double every_seconds_max = 86'400;
  if (arguments.has("watch")) return watch(env, follower, std::min(every_seconds, every_seconds_max));
  const RunSummary& run = follower.run();
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
