#include "runtime/launch/job.h"

#include <fmt/core.h>

#include <algorithm>
#include <csignal>
#include <limits>

#include "runtime/launch/run_processes.h"
#include "runtime/launch/run_progress.h"
#include "runtime/os/console.h"
#include "watchdog/board.h"

namespace holdfast::launch {
namespace {

constexpr std::int64_t tick_ms = 50;
constexpr int ticks_per_look = 4;
constexpr std::int64_t stopped_limit_ms = 5'000;
constexpr std::int64_t over_limit_ms = 5'000;      // mpirun after the end of its ranks
constexpr std::int64_t lost_host_limit_ms = 500;   // the same after it has lost a host: it never ends then
constexpr std::int64_t lifeless_limit_ms = 5'000;  // without a rank on this host or a new line in the log
constexpr std::int64_t start_up_factor = 2, save_reserve_ms = 2'000;  // time of another start and its save
constexpr std::int64_t notice_parts = 3;                              // at most all but one of these parts
constexpr std::int64_t first_rank_limit_ms = 300'000;  // distant hosts and large programs take long
constexpr std::int64_t leftovers_grace_ms = 1'000;     // guards end with the last rank
constexpr std::int64_t death_limit_ms = 10'000;
constexpr std::int64_t late_tick_ms = 2'000;

bool is_final(const RunStatus& status) {
  return status.state == "finished" || status.state == "saved" || status.state == "failed";
}

// Returns the exit codes with which a run ends because of its inputs, not because of a lost rank.
std::optional<ExitCode> error_code(int number) {
  for (const ExitCode code :
       {ExitCode::config, ExitCode::does_not_fit, ExitCode::data, ExitCode::checkpoint, ExitCode::numerics}) {
    if (static_cast<int>(code) == number) return code;
  }
  return std::nullopt;
}

}  // namespace

std::string Job::start_name() const {
  return plan_.directory.substr(plan_.directory.rfind('/') + 1);
}

std::vector<UnfitHost> unfit_hosts(const std::vector<LaunchedRank>& ranks) {
  std::vector<UnfitHost> unfit;
  for (const LaunchedRank& rank : ranks) {
    if (!rank.unfit.has_value() || std::ranges::find(unfit, rank.host, &UnfitHost::host) != unfit.end())
      continue;
    unfit.push_back({.host = rank.host, .reach = rank.unfit->reach, .sentence = rank.unfit->sentence});
  }
  return unfit;
}

Result<EndedStart> Job::run() {
  const std::uint64_t step_before = newest_step(*env_, plan_.paths);
  ProcessStart start{.arguments = plan_.line.arguments,
                     .variables = plan_.line.variables,
                     .own_session = true,
                     .die_with_parent = true};  // a killed launcher leaves neither mpirun nor ranks
  start.variables[launch_variable] = plan_.directory;
  HF_TRY(mpirun_.process, env_->processes().start(start));
  begun_ns_ = env_->monotonic_ns();
  watch_until_end();
  for (const auto& [rank, process] : processes_) {
    if (process != nullptr && !process->wait_ended(0)) kill_.lived.insert(rank);
  }
  if (!kill_.why.empty()) static_cast<void>(mpirun_.process->signal(SIGKILL).ok());
  static_cast<void>(mpirun_.process->wait_ended(death_limit_ms));
  mpirun_.end = mpirun_.process->end();
  if (!end_processes_of_start(*env_, plan_.directory, kill_.why.empty() ? leftovers_grace_ms : 0)) {
    write_to_console(stderr,
                     "holdfast launch: some processes of the run do not die; the system holds them\n");
  }
  remove_dead_boards(*env_);  // also the board of a guard that was killed
  reap_adopted(*env_, 0);
  ranks_ = read_launched_ranks(*env_, plan_.directory);
  look_at_status();
  return facts_of(end_of_start(step_before));
}

// Watches the start until mpirun has ended, or there is a reason to end it.
void Job::watch_until_end() {
  TickClock clock(late_tick_ms, begun_ns_);
  for (int tick = 0; kill_.why.empty() && !mpirun_.process->wait_ended(tick_ms); ++tick) {
    // A late tick means that this process was stopped, or the machine, so no condition counts as having
    // lasted.
    if (clock.is_late(env_->monotonic_ns())) since_ns_ = {};
    stop_->poll();
    const bool starting = status_.state == "unknown";
    if (tick % ticks_per_look == 0 || starting || stop_->requested()) look();
    if (stop_->is_over() && kill_.why.empty()) {
      kill_.why = fmt::format("it did not end within the notice of {} s", stop_->notice_ms() / 1000);
    }
    clock.end_tick(env_->monotonic_ns());
  }
}

void Job::look() {
  look_at_ranks();
  look_at_status();
  look_at_mpirun();
  look_for_life();
  reap_adopted(*env_, mpirun_.process->id());
  if (stop_->requested() && !passed_on_) pass_on_request();
  if (stop_->requested() && plan_.may_be_cut_short) look_at_step();
  if (plan_.look_after_hosts && status_.state == "running" && !stop_->requested() && kill_.why.empty())
    kill_.why = plan_.look_after_hosts();
}

// Reads which ranks exist. Ranks that the run itself has started are only looked for when none of the others
// is left, or when all of them must receive a signal.
void Job::look_at_ranks() {
  const bool asks = stop_->requested() && !passed_on_;
  const bool all_known = ranks_.size() >= static_cast<std::size_t>(plan_.ranks);
  if (all_known && !is_final(status_) && !asks && !all_ended() && unseen_ == 0) return;
  ranks_ = read_launched_ranks(*env_, plan_.directory);
  unseen_ = 0;
  for (const LaunchedRank& rank : ranks_) {
    if (!is_here(*env_, rank) || processes_.contains(rank.rank)) continue;
    Result<std::unique_ptr<Process>> process = rank.identity().open(env_->processes());
    if (!process.ok()) {
      ++unseen_;
      continue;
    }
    processes_[rank.rank] = std::move(process).value();
  }
}

void Job::look_at_status() {
  RunStatus status = read_status(*env_, plan_.paths);
  if (status.start != start_name()) return;
  const bool first = status_.state == "unknown";
  status_ = std::move(status);
  if (first && status_.state == "running") start_up_ms_ = (env_->monotonic_ns() - begun_ns_) / 1'000'000;
  if (first && plan_.on_running && status_.state == "running") plan_.on_running(status_.step);
}

bool Job::lasts(bool now, std::int64_t& since_ns, std::int64_t limit_ms) const {
  if (!now) {
    since_ns = -1;
    return false;
  }
  const std::int64_t now_ns = env_->monotonic_ns();
  if (since_ns < 0) since_ns = now_ns;
  return now_ns - since_ns > limit_ms * 1'000'000;
}

// Returns whether all known ranks of this host have ended; false if there is none.
bool Job::all_ended() const {
  const auto ended = [](const auto& rank) { return rank.second == nullptr || rank.second->wait_ended(0); };
  return unseen_ == 0 && !processes_.empty() && std::ranges::all_of(processes_, ended);
}

void Job::look_at_mpirun() {
  const bool all_here =
      ranks_.size() >= static_cast<std::size_t>(plan_.ranks) && processes_.size() == ranks_.size();
  // The status is recorded before the report is written; after that each rank records its end.
  const bool left =
      std::ranges::any_of(ranks_, [](const LaunchedRank& rank) { return rank.end.has_value(); });
  const bool over = (all_here && all_ended()) || (is_final(status_) && (left || all_ended()));
  const bool lost_peers = plan_.lives_elsewhere != nullptr && status_.state == "failed" &&
                          status_.exit_code == static_cast<int>(ExitCode::communication);
  const std::int64_t limit_ms = lost_peers ? lost_host_limit_ms : over_limit_ms;
  if (lasts(over, since_ns_.over, limit_ms)) {
    kill_.why = fmt::format("mpirun went on for {} s after the end of its ranks",
                            static_cast<double>(limit_ms) / 1000);
    kill_.is_of_mpirun_alone = true;
  }
  const std::optional<ProcessFacts> facts = env_->processes().facts(mpirun_.process->id());
  const bool stopped = facts.has_value() && (facts->state == 'T' || facts->state == 't');
  if (lasts(stopped, since_ns_.stopped, stopped_limit_ms)) {
    kill_.why = fmt::format("mpirun was stopped for {} s", stopped_limit_ms / 1000);
  }
  const std::int64_t waited_ms = (env_->monotonic_ns() - begun_ns_) / 1'000'000;
  if (ranks_.empty() && waited_ms > first_rank_limit_ms) {
    kill_.why = fmt::format(
        "no rank wrote to {} within {} s: either mpirun does not reach the hosts, or they do "
        "not share the run directory with this one",
        plan_.directory, first_rank_limit_ms / 1000);
  }
}

// Looks whether a step has ended since the request: if so, the save follows, which is better than the state
// in RAM.
void Job::look_at_step() {
  if (start_up_ms_ < 0 || is_final(status_)) return;
  const std::uint64_t step = newest_step(*env_, plan_.paths);
  if (!step_at_request_.has_value()) step_at_request_ = step;
  const std::int64_t needed_ms = std::min(start_up_factor * start_up_ms_ + save_reserve_ms,
                                          stop_->notice_ms() / notice_parts * (notice_parts - 1));
  if (step != *step_at_request_ || stop_->left_ms() > needed_ms || !kill_.why.empty()) return;
  kill_.why = fmt::format("step {} would last longer than the notice", step + 1);
  kill_.cut_short = true;
}

// Looks for signs of life. When the ranks of this host have died, those of other hosts may recover the run,
// and write the log then. If no line is written, the other hosts are asked.
void Job::look_for_life() {
  const auto lives = [](const auto& rank) { return rank.second != nullptr && !rank.second->wait_ended(0); };
  const Result<FileStatus> log = env_->status(plan_.paths.events());
  const std::uint64_t bytes = log.ok() ? log->bytes : 0;
  const bool lifeless = plan_.lives_elsewhere != nullptr && !ranks_.empty() && unseen_ == 0 &&
                        std::ranges::none_of(processes_, lives) && bytes == log_bytes_;
  log_bytes_ = bytes;
  if (!lasts(lifeless, since_ns_.lifeless, lifeless_limit_ms) || !kill_.why.empty()) return;
  if (!plan_.lives_elsewhere()) {
    kill_.why = "no rank is left on the hosts that answer, and mpirun goes on: a host is out of its reach";
  }
  since_ns_.lifeless = -1;
}

// Forwards the request to save. The signal would end a rank that has not begun; once the run trains, ranks
// that have not begun have died. mpirun forwards the signal to all hosts, but not while it is stopped; a
// second signal does no harm.
void Job::pass_on_request() {
  const bool all_begun = ranks_.size() >= static_cast<std::size_t>(plan_.ranks);
  if (!all_begun && status_.state == "unknown") return;
  static_cast<void>(mpirun_.process->signal(SIGUSR2).ok());
  for (const auto& [rank, process] : processes_) {
    if (process != nullptr) static_cast<void>(process->signal(SIGUSR2).ok());
  }
  passed_on_ = true;
}

std::set<std::string> hosts_of_deaths(const std::vector<LaunchedRank>& died, std::uint64_t step) {
  constexpr std::int64_t together_us = 5'000'000;
  std::int64_t first_us = std::numeric_limits<std::int64_t>::max();
  for (const LaunchedRank& rank : died) {
    if (rank.died_us > 0 && rank.step_at_death >= step) first_us = std::min(first_us, rank.died_us);
  }
  std::set<std::string> hosts;
  for (const LaunchedRank& rank : died) {
    if (rank.died_us - together_us <= first_us) hosts.insert(rank.host);
  }
  return hosts;
}

StartEnd Job::end_of_start(std::uint64_t step_before) const {
  StartEnd end{.step_before = step_before, .step = newest_step(*env_, plan_.paths)};
  // The log of a leader that died lacks the lines that waited in its memory.
  for (const LaunchedRank& rank : ranks_) end.step = std::max(end.step, rank.step_at_death);
  const RunStatus last = read_status(*env_, plan_.paths);
  const auto ended_with = [&](ExitCode code) {
    return std::ranges::any_of(ranks_, [&](const LaunchedRank& rank) { return rank.end == code; });
  };
  if (status_.state == "finished" || (last.state == "finished" && ended_with(ExitCode::done))) {
    end.record = StartEnd::Record::finished;  // second case: the run had finished before
  } else if (status_.state == "saved" && !ended_by_mpirun()) {
    end.record = StartEnd::Record::saved;
    end.step = status_.step;
  } else if (status_.state == "failed") {
    end.record = StartEnd::Record::failed;
    end.code = error_code(status_.exit_code).value_or(ExitCode::communication);
  } else {  // the start was refused before it could write a record
    for (const LaunchedRank& rank : ranks_) {
      if (!rank.end.has_value() || !error_code(static_cast<int>(*rank.end)).has_value()) continue;
      end.record = StartEnd::Record::failed;
      end.code = *rank.end;
    }
  }
  report_fault(end);
  return end;
}

// Adds what the ranks and guards report of their hosts.
EndedStart Job::facts_of(StartEnd end) const {
  EndedStart facts{.end = std::move(end),
                   .unfit = unfit_hosts(ranks_),
                   .silent = read_silent_pairs(*env_, plan_.directory),
                   .is_as_asked = status_.state == "saved" && status_.reason == another_start_reason};
  std::vector<LaunchedRank> died;
  for (const LaunchedRank& rank : ranks_) {
    if (rank.end.has_value()) facts.ended_on.insert(rank.host);
    const bool is_killed = !kill_.why.empty() && is_here(*env_, rank) && kill_.lived.contains(rank.rank);
    if (!rank.end.has_value() && !rank.unfit.has_value() && !is_killed) died.push_back(rank);
  }
  facts.died_on = hosts_of_deaths(died, facts.end.step);
  return facts;
}

std::set<std::string> Job::suspected_hosts() const {
  std::set<std::string> suspected;
  if (!kill_.is_of_mpirun_alone) return suspected;
  for (const LaunchedRank& rank : ranks_) suspected.insert(rank.host);
  for (const LaunchedRank& rank : ranks_) {
    if (rank.end.has_value()) suspected.erase(rank.host);
  }
  return suspected;
}

// Returns whether mpirun has ended the ranks. When it loses a host it ends the ranks of the others, with
// SIGTERM first, upon which a small run saves. A user's request to stop goes through this process, which
// forwards it as SIGUSR2.
bool Job::ended_by_mpirun() const {
  const auto terminated = [](const LaunchedRank& rank) { return rank.signal == SIGTERM; };
  return !stop_->requested() && std::ranges::any_of(ranks_, terminated);
}

// Fills in the cause of the end, as far as this process can see it.
void Job::report_fault(StartEnd& end) const {
  std::string names;
  std::vector<LaunchedRank> dead;
  for (const LaunchedRank& rank : ranks_) {
    if (rank.end.has_value()) continue;
    names += fmt::format("{}{} (host {})", dead.empty() ? "" : ", ", rank.rank, rank.host);
    dead.push_back(rank);
  }
  if (!kill_.why.empty() && !kill_.is_of_mpirun_alone) {
    end.fault = kill_.why;
  } else if (mpirun_.end.has_value() && mpirun_.end->killed && !kill_.is_of_mpirun_alone) {
    end.fault = fmt::format("mpirun was killed by signal {}", mpirun_.end->code);
  } else if (ended_by_mpirun()) {
    end.fault = "mpirun ended the ranks, as it does when it loses a host; what it wrote says why";
    end.cause = FaultCause::host_lost;
  } else if (ranks_.empty()) {
    end.fault = end.kind =
        fmt::format("mpirun ended with exit code {} before any rank had begun; what it wrote says why",
                    mpirun_.end.has_value() ? mpirun_.end->code : -1);
  } else if (dead.size() == ranks_.size() && dead.size() > 1) {
    end.kind = fmt::format("all {} ranks died", dead.size());
    end.fault = end.kind + causes_of(dead);
  } else if (!dead.empty()) {
    end.fault = fmt::format("rank{} {} died{}", dead.size() == 1 ? "" : "s", names, causes_of(dead));
    end.kind = names;
  } else {
    end.fault = "the ranks lost each other, or could not begin; what they wrote says why";
  }
  const StepMade newest = newest_step_made(*env_, plan_.paths);
  for (const ReportedKernelFault& each : read_reported_kernel_faults(*env_, plan_.directory)) {
    if (each.time_us > newest.time_us) end.kernel = each.fault.kernel;
  }
  const std::string hangs = hangs_at_end(read_reported_hangs(*env_, plan_.directory), newest);
  if (!hangs.empty()) {
    end.fault = hangs + "; " + end.fault;
    end.cause = FaultCause::rank_hangs;
  }
  if (kill_.is_of_mpirun_alone) end.fault += "; " + kill_.why;  // after the cause, which may repeat
}

}  // namespace holdfast::launch
