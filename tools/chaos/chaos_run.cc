#include "tools/chaos/chaos_run.h"

#include <fmt/core.h>

#include <algorithm>
#include <csignal>
#include <optional>
#include <set>

#include "checkpoint/find_checkpoint.h"
#include "checkpoint/ram_tier.h"
#include "runtime/core/json.h"
#include "runtime/launch/run_processes.h"
#include "runtime/run/event_reading.h"
#include "runtime/run/launch_record.h"
#include "runtime/run/log_reader.h"
#include "runtime/run/run_directory.h"
#include "runtime/run/run_history.h"
#include "runtime/save/state_digest.h"
#include "tools/chaos/chaos_fault.h"
#include "tools/chaos/faulty_storage.h"
#include "tools/chaos/lasting_fault.h"
#include "tools/chaos/number_check.h"
#include "tools/chaos/resource_watch.h"
#include "tools/chaos/run_watcher.h"
#include "tools/chaos/suspects.h"

namespace holdfast::chaos {
namespace {

constexpr std::int64_t look_us = 3'000;
constexpr std::int64_t recovery_look_us = 500;
constexpr std::uint64_t steps_under_way_max = 3;  // begun after the death of an active rank
constexpr std::int64_t launches_after_end = 3;    // by the campaign, of a run that ended with exit code 76
constexpr std::int64_t slow_limit =
    2;  // times the time of slow storage: a start that it delays is made again
constexpr std::size_t last_words_bytes = 800;
constexpr std::int64_t metrics_limit_ms = 120'000;

// Returns "A instead of B" of the first lines that differ; empty: none do.
std::string first_difference(std::string_view text, std::string_view wanted) {
  const auto line = [](std::string_view& rest) {
    const std::string_view first = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(first.size() + 1, rest.size()));
    return first;
  };
  while (!text.empty() || !wanted.empty()) {
    const std::string_view one = line(text), other = line(wanted);
    if (one != other) return fmt::format("\"{}\" instead of \"{}\"", one, other);
  }
  return "";
}

class Executor {
 public:
  Executor(Env& env, const ChaosSetup& setup, const ChaosPlan& plan, const std::string& directory)
      : env_(&env),
        setup_(&setup),
        paths_{directory},
        watcher_(env, directory, points_log()),
        resources_(env),
        begun_ns_(env.monotonic_ns()) {
    run_.plan = plan;
    run_.directory = directory;
  }

  Result<ChaosRun> run(bool keep) {
    HF_TRY_VOID(prepare_ground());
    HF_TRY_VOID(env_->remove(points_log()));
    for (bool on = true; on;) {
      HF_TRY_VOID(launch());
      watch_launch();
      end_launch();
      HF_TRY_VOID(trouble_);
      on = on_resume();
    }
    std::ranges::stable_sort(run_.injected, {}, &ChaosInjected::time_us);
    read_log();
    if (run_.wrong.empty()) check_end();
    run_.duration_ms = (env_->monotonic_ns() - begun_ns_) / 1'000'000;
    HF_TRY_VOID(env_->remove(points_log()));
    run_.growths = resources_.growths();
    if (run_.wrong.empty()) run_.wrong = descriptors_kept(run_.growths);
    run_.verdicts = watcher_.verdicts();
    std::ranges::stable_sort(run_.verdicts, {}, &ReportedHang::time_us);
    if (Result<IncidentLog> ledger = read_incident_log(*env_, paths_); ledger.ok())
      run_.ledger = std::move(ledger).value();
    if (const auto verdict = find_suspects(run_).on_slow_storage; run_.wrong.empty() && verdict.has_value())
      run_.wrong = fmt::format("a rank that did not hang was ended on slow storage: {}", verdict->sentence);
    const bool keeps = keep || !run_.wrong.empty();
    if (keeps && small_disk_ != nullptr) HF_TRY_VOID(small_disk_->keep());
    if (keeps && stalling_disk_ != nullptr) HF_TRY_VOID(stalling_disk_->keep());
    return std::move(run_);
  }

 private:
  // Makes what the faults of the plan need; a plan has one of the three kinds of storage at most.
  Result<void> prepare_ground() {
    const auto has = [&](ChaosFault fault) {
      return std::ranges::find(run_.plan.injections, fault, &ChaosInjection::fault) !=
             run_.plan.injections.end();
    };
    if (has(ChaosFault::slow_storage)) {
      HF_TRY(slow_storage_, SlowStorage::mount(*env_, paths_.directory, setup_->data_files));
    } else if (has(ChaosFault::stalled_disk)) {
      HF_TRY(stalling_disk_,
             StallingDisk::mount(*env_, *setup_->mounts, paths_.directory, setup_->disk_bytes));
    } else if (has(ChaosFault::full_disk)) {
      HF_TRY(small_disk_, SmallDisk::mount(*env_, *setup_->mounts, paths_.directory, setup_->disk_bytes));
    }
    if (has(ChaosFault::stalled_output)) {
      HF_TRY_VOID(env_->remove(output_path()));
      HF_TRY(output_, make_posix_fifo(output_path()));
    }
    return {};
  }

  // Reads the output of the run, except while a fault stalls it.
  void read_output() {
    const bool stalled = lasting_.has_value() && lasting_->fault() == ChaosFault::stalled_output;
    if (output_ == nullptr || stalled) return;
    unread_ += output_->read();
    const std::size_t end = unread_.rfind('\n');
    if (end == std::string::npos) return;
    static_cast<void>(env_->append_line(log_path(), std::string_view(unread_).substr(0, end)).ok());
    unread_.erase(0, end + 1);
  }

  std::string log_path() const { return paths_.directory + ".log"; }
  std::string output_path() const { return paths_.directory + ".output"; }
  std::string points_log() const { return paths_.directory + ".points"; }  // for as long as the run goes on

  // Named places are armed in the first launch only: the others would pass them again and again. Data stay
  // what they are.
  Result<void> launch() {
    ProcessStart start{.arguments = launch_words(*setup_, run_.plan, paths_.directory),
                       .variables = {{"HOLDFAST_FAULTS",
                                      fault_points_of(run_.plan, {.only_of_data = !run_.launches.empty(),
                                                                  .later = std::exchange(later_, nullptr)})},
                                     {"HOLDFAST_FAULTS_LOG", points_log()}},
                       .output = output_ != nullptr ? output_path() : log_path(),
                       .own_session = true,
                       .die_with_parent = true};
    job_ended_ = false;
    seen_before_ = watcher_.steps_seen();
    run_.launches.push_back({.begun_us = env_->wall_time_us()});
    HF_TRY(launcher_, env_->processes().start(start));
    return {};
  }

  void watch_launch() {
    disk_was_full_ = false;
    while (!launcher_->wait_ended(0) && !time_is_over() && trouble_.ok()) {
      watcher_.look(launcher_->id());
      resources_.look(launcher_->id(), watcher_.start_directory());
      read_output();
      note_points();
      if (job_ended_ = act(); job_ended_) return;
      env_->sleep_us(look_us);
    }
    watcher_.look(launcher_->id());
    note_points();
  }

  std::int64_t limit_ms() const {
    const auto hangs = std::ranges::count_if(run_.injected, [](const ChaosInjected& injected) {
      return is_hang(injected.fault) || is_storage_error(injected.fault);
    });
    std::int64_t slow_ms = 0;
    for (const ChaosInjection& injection : run_.plan.injections)
      slow_ms += injection.call_ms > 0 ? injection.pause_us / 1000 : 0;
    return setup_->limit_ms + hangs * setup_->hang_ms + slow_limit * slow_ms;
  }
  bool time_is_over() const { return env_->monotonic_ns() - begun_ns_ > limit_ms() * 1'000'000; }

  void end_launch() {
    ChaosLaunch& launch = run_.launches.back();
    if (lasting_.has_value()) put_right();  // whoever waits for a stalled disk does not die before
    if (!launcher_->wait_ended(0)) {
      run_.ran_out_of_time = time_is_over();
      if (run_.ran_out_of_time)
        run_.wrong = fmt::format("no end within {} s: a hang ({})", limit_ms() / 1000, states());
      launch.killed = true;
      static_cast<void>(kill_job(*env_, *launcher_, paths_.directory));
    }
    launch.ended_us = env_->wall_time_us();
    if (const std::optional<ProcessEnd> end = launcher_->end()) {
      launch.killed = launch.killed || end->killed;
      launch.exit_code = end->code;
    }
    read_output();
    launch.last_words = end_of_log();
    for (const std::string& name : watcher_.starts())
      static_cast<void>(env_->remove_tree(launch_scratch(*env_, name)).ok());
  }

  // Returns whether there is another launch.
  bool on_resume() {
    const ChaosLaunch& launch = run_.launches.back();
    if (!run_.wrong.empty()) return false;
    if (job_ended_) return true;
    const bool numbers_were_wrong = std::ranges::any_of(run_.injected, [](const ChaosInjected& injected) {
      return facts_of(injected.fault).of_numbers && injected.fault != ChaosFault::bad_sample;
    });
    const LaunchEnd end = end_of(launch, disk_was_full_, numbers_were_wrong);
    if (end == LaunchEnd::done) return false;
    if (end == LaunchEnd::ended_truthfully && run_.ended_truthfully < launches_after_end) {
      ++run_.ended_truthfully;
      return true;
    }
    run_.wrong = fmt::format("it ended with {} {}: {}", launch.killed ? "signal" : "exit code",
                             launch.exit_code, launch.last_words);
    return false;
  }

  // Records planned faults that happened by themselves, with the time when each began.
  void note_points() {
    for (const TriggeredFault& point : watcher_.take_points()) {
      const std::vector<ChaosInjection>& injections = run_.plan.injections;
      const auto armed = std::ranges::find_if(injections, [&](const ChaosInjection& injection) {
        return is_armed_by(injection, point.name, point.hit, point.rank, point.action);
      });
      if (armed == injections.end() || is_armed_later(*armed)) continue;
      // A slow rank is late for three steps, a sample is read by several ranks, and again, and storage fails for all:
      // one fault each.
      const bool of_data = armed->fault == ChaosFault::bad_sample;
      const bool is_one = armed->fault == ChaosFault::slow_rank || is_storage_error(armed->fault) || of_data;
      if (is_one && !noted_.insert(armed - injections.begin()).second) continue;
      note(armed->fault, is_one ? armed->point : fmt::format("rank {} at {}", point.rank, armed->point));
      run_.injected.back().rank = of_data ? -1 : point.rank;
      run_.injected.back().time_us = point.time_us;
      if (of_data) run_.injected.back().step = step_of_sample(point.hit, setup_->samples_of_step);
    }
  }

  void note(ChaosFault fault, std::string what) {
    run_.injected.push_back({.fault = fault, .time_us = env_->wall_time_us(), .what = std::move(what)});
  }

  // Injects the faults that are due. Returns true if the job was killed.
  bool act() {
    if (lasting_.has_value()) {
      if (lasting_->is_over(step_reached()) || watcher_.finished()) put_right();
      if (!lasting_.has_value() || !lasts_beside_others(lasting_->fault())) return false;
    }
    const std::vector<ChaosInjection>& injections = run_.plan.injections;
    while (next_ < injections.size() && happens_by_itself(injections[next_])) ++next_;
    if (next_ == injections.size() || watcher_.finished()) return false;
    const ChaosInjection& injection = injections[next_];
    if (watcher_.newest_step() < injection.step || watcher_.steps_seen() <= seen_before_) return false;
    // A death while the ranks join is another fault: the others wait for as long as parallel.timeout.
    if (!watcher_.trains()) return false;
    const std::int64_t now_ns = env_->monotonic_ns();
    if (due_ns_ < 0) due_ns_ = now_ns + injection.delay_us * 1000;
    const bool lasts = facts_of(injection.fault).lasts;
    if (now_ns < due_ns_ || (lasts && lasting_.has_value()) || (!lasts && watcher_.living().empty()))
      return false;
    due_ns_ = -1;
    ++next_;
    if (facts_of(injection.fault).ends_job) return end_job(injection);
    if (lasts) {
      put_wrong(injection);
    } else {
      injection.fault == ChaosFault::mpirun_killed ? kill_mpirun() : strike(injection);
    }
    seen_before_ = watcher_.steps_seen();
    return false;
  }

  static bool happens_by_itself(const ChaosInjection& injection) {
    return !injection.point.empty() && !is_armed_later(injection);
  }

  void put_wrong(const ChaosInjection& injection) {
    const RunGround ground{small_disk_.get(), stalling_disk_.get(), output_.get(), slow_storage_.get()};
    lasting_.emplace(*env_, *setup_, ground, injection);
    note(injection.fault, lasting_->what());
    run_.injected.back().host = lasting_->host();
    run_.injected.back().peer = lasting_->peer();
    trouble_ = lasting_->begin();
    watcher_.look(launcher_->id());
    lasting_->since(step_reached());
    disk_was_full_ = disk_was_full_ || injection.fault == ChaosFault::full_disk;
  }

  // A full disk takes no line of the log.
  std::uint64_t step_reached() { return std::max(watcher_.newest_step(), watcher_.step_on_board()); }

  void put_right() {
    if (const Result<void> right = lasting_->end(); trouble_.ok()) trouble_ = right;
    lasting_.reset();
    seen_before_ = watcher_.steps_seen();
  }

  void kill_mpirun() {
    const std::unique_ptr<Process> mpirun = watcher_.mpirun();
    if (mpirun == nullptr) return;
    note(ChaosFault::mpirun_killed, "kill -9 of mpirun");
    static_cast<void>(mpirun->signal(SIGKILL).ok());
  }

  void strike(const ChaosInjection& injection) {
    const int number = injection.fault == ChaosFault::hang    ? SIGSTOP
                       : injection.fault == ChaosFault::crash ? injection.signal
                                                              : SIGKILL;
    std::vector<RankProcess*> living = watcher_.living();
    if (injection.fault == ChaosFault::all_killed) {
      for (RankProcess* rank : living) send(injection.fault, *rank, number);
      return;
    }
    int at = injection.victim;
    bool during_recovery = false;
    for (int death = 0; death < injection.deaths && !living.empty(); ++death) {
      at %= static_cast<int>(living.size());
      const RunWatcher::RecoveryMark mark = watcher_.recovery_mark();
      send(injection.fault, *living[static_cast<std::size_t>(at)], number);
      run_.injected.back().during_recovery = during_recovery;
      if (death + 1 == injection.deaths) return;
      const bool in_recovery = injection.fault == ChaosFault::kill_in_recovery;
      if (in_recovery && !wait_for_recovery(mark)) return;
      env_->sleep_us(injection.pause_us);
      watcher_.look(launcher_->id());
      during_recovery = in_recovery && watcher_.recovery_since(mark) == RunWatcher::Recovery::under_way;
      living = watcher_.living();
      at += injection.other;
    }
  }

  // Waits until the remaining ranks recover. A recovery that was over before it was seen is not waited for
  // any longer: the next death is then the first of another one. Returns false where there is none: the run
  // ends, or goes on as if no rank had died, because it was a spare.
  bool wait_for_recovery(const RunWatcher::RecoveryMark& mark) {
    const std::uint64_t step_max = step_reached() + steps_under_way_max;
    while (!time_is_over() && watcher_.trains() && !watcher_.finished() && !watcher_.living().empty()) {
      if (watcher_.recovery_since(mark) != RunWatcher::Recovery::not_seen) return true;
      if (step_reached() > step_max) return false;
      env_->sleep_us(recovery_look_us);
      watcher_.look(launcher_->id());
    }
    return false;
  }

  void send(ChaosFault fault, RankProcess& rank, int number) {
    const char* what = number == SIGSTOP ? "stop" : number == SIGKILL ? "kill -9" : "crash";
    note(fault, fmt::format("{} of rank {}", what, rank.rank));
    run_.injected.back().rank = rank.rank;
    static_cast<void>(rank.process->signal(number).ok());
    rank.ended = rank.ended || number == SIGKILL;  // who is dying is nobody's next victim
  }

  bool end_job(const ChaosInjection& injection) {
    note(injection.fault, std::string(facts_of(injection.fault).text));
    if (is_armed_later(injection)) {
      run_.injected.back().what += ": " + injection.point;
      later_ = &injection;
    }
    if (lasting_.has_value()) put_right();  // whoever waits for slow storage does not die before
    if (!kill_job(*env_, *launcher_, paths_.directory)) {
      run_.wrong = "processes of the run outlived its launcher by ten seconds";
      return true;
    }
    if (injection.fault == ChaosFault::job_killed) return true;
    if (const Result<std::string> id = read_run_id(*env_, paths_); id.ok())
      static_cast<void>(remove_snapshots(*env_, digest_of(*id)).ok());
    if (injection.fault == ChaosFault::damaged_checkpoint) damage_checkpoint(injection.place);
    return true;
  }

  // Damages the newest checkpoint if there is an older one.
  void damage_checkpoint(std::uint64_t place) {
    const std::string folder = paths_.directory + "/checkpoints";
    const Result<std::vector<std::string>> steps = env_->list(folder);
    if (!steps.ok() || steps->size() < 2) return;
    const std::string newest = folder + "/" + steps->back();
    const Result<std::vector<std::string>> files = env_->list(newest);
    if (!files.ok() || files->empty()) return;
    const std::string file = newest + "/" + (*files)[place % files->size()];
    Result<std::string> bytes = env_->read_text(file);
    if (!bytes.ok() || bytes->empty()) return;
    char& byte = (*bytes)[place / 1000 % bytes->size()];
    byte = static_cast<char>(byte ^ (1 << place % 8));
    run_.injected.back().what += ": " + file;
    static_cast<void>(env_->replace_text(file, *bytes).ok());
  }

  void check_end() {
    const Result<std::string> digest = digest_of_run(*env_, paths_.directory);
    if (const std::string state = read_status(*env_, paths_).state; state != "finished") {
      run_.wrong = fmt::format("the launcher ended well, but the run says that it is {}", state);
    } else if (!digest.ok()) {
      run_.wrong = "its last checkpoint: " + digest.error().message;
    } else {
      run_.same_bits = *digest == setup_->digest;
      if (!run_.same_bits) run_.excuse = excuse_of(run_);
      if (!run_.same_bits && run_.excuse.empty()) {
        run_.wrong =
            fmt::format("other bits than the undisturbed run:\n{}instead of\n{}", *digest, setup_->digest);
      } else {
        run_.wrong = left_behind();
        if (run_.wrong.empty()) run_.wrong = wrong_metrics();
      }
    }
    if (run_.wrong.empty()) run_.wrong = host_left_out(run_, setup_->hosts, env_->host_name());
    if (const auto baseless = check_numbers(run_).baseless; run_.wrong.empty() && !baseless.empty())
      run_.wrong = baseless.front();
  }

  // Compares what the run wrote of itself last with what its whole log says.
  std::string wrong_metrics() {
    const Result<std::string> kept = env_->read_text(paths_.directory + "/metrics.prom");
    if (!kept.ok()) return "";  // metrics.every is 0
    const std::string path = paths_.directory + ".metrics";
    const Result<std::unique_ptr<Process>> reader =
        env_->processes().start({.arguments = {setup_->program, "metrics", paths_.directory},
                                 .output = path,
                                 .die_with_parent = true});
    if (!reader.ok()) return reader.error().message;
    static_cast<void>((*reader)->wait_ended(metrics_limit_ms));
    const Result<std::string> read = env_->read_text(path);
    static_cast<void>(env_->remove(path).ok());
    const std::string line = read.ok() ? first_difference(*kept, *read) : read.error().message;
    return line.empty() ? "" : fmt::format("metrics.prom differs from what the log says: {}", line);
  }

  std::string left_behind() const {
    for (const std::string& name : watcher_.starts()) {
      if (const auto left = processes_of_start(*env_, paths_.launch() + "/" + name); !left.empty())
        return fmt::format("{} processes are left, one of them {}", left.size(), left.front()->id());
    }
    const Result<std::string> id = read_run_id(*env_, paths_);
    if (!id.ok()) return id.error().message;
    const std::size_t left = list_snapshots(*env_, digest_of(*id)).size();
    return left == 0 ? "" : fmt::format("{} RAM snapshots are left", left);
  }

  // "rank 0 S, rank 1 T": as in ps.
  std::string states() {
    std::string text;
    for (const RankProcess* rank : watcher_.living()) {
      const std::optional<ProcessFacts> facts = env_->processes().facts(rank->process->id());
      text += fmt::format("{}rank {} {}", text.empty() ? "" : ", ", rank->rank,
                          facts.has_value() ? facts->state : 'Z');
    }
    return text.empty() ? "no rank lives" : text;
  }

  void read_log() {
    const Result<LogReader> log = LogReader::open(*env_, paths_);
    if (!log.ok()) return;
    run_.log_bytes = log->bytes();
    WorkLossReader reader;
    StepClock steps;
    const auto take = [&](const Json& event) {
      reader.read(event);
      steps.read(event);
      if (auto verdict = event_as<VerdictEvent>(event)) run_.number_verdicts.push_back(*std::move(verdict));
      if (std::optional<HostRanks> start = ranks_of_start(event); start.has_value())
        run_.starts.push_back(std::move(*start));
    };
    if (log->for_each(take).ok()) run_.losses = std::move(reader).finish();
    remove_usual(run_.number_verdicts, setup_->usual_verdicts);
    for (ChaosInjected& injected : run_.injected)
      if (facts_of(injected.fault).of_numbers) steps.place(injected);
  }

  std::string end_of_log() const {
    const Result<std::string> text = env_->read_text(log_path());
    if (!text.ok()) return "";
    return text->size() <= last_words_bytes ? *text : text->substr(text->size() - last_words_bytes);
  }

  Env* env_;
  const ChaosSetup* setup_;
  RunPaths paths_;
  RunWatcher watcher_;
  ResourceWatch resources_;
  ChaosRun run_;
  std::unique_ptr<Process> launcher_;
  std::int64_t begun_ns_;
  std::int64_t due_ns_ = -1;  // of the next injection; -1: its step has not come
  std::size_t next_ = 0;
  std::uint64_t seen_before_ = 0;                // steps, at the last injection
  std::unique_ptr<SmallDisk> small_disk_;        // of a run whose plan fills it
  std::unique_ptr<StallingDisk> stalling_disk_;  // of one whose plan stalls it
  std::unique_ptr<SlowStorage> slow_storage_;    // of one whose plan slows it down
  std::unique_ptr<Fifo> output_;                 // of one whose plan stops reading
  std::string unread_;                           // of it, the line that is not whole yet
  std::optional<LastingFault> lasting_;          // while there is one, little else is done to the run
  bool disk_was_full_ = false;                   // in this launch
  Result<void> trouble_;                         // that keeps the campaign from going on
  const ChaosInjection* later_ = nullptr;        // injection whose point the next launch has armed
  bool job_ended_ = false;
  std::set<std::ptrdiff_t> noted_;  // injections that count once
};

}  // namespace

Result<ChaosRun> run_chaos(Env& env, const ChaosSetup& setup, const ChaosPlan& plan,
                           const std::string& directory, bool keep) {
  return Executor(env, setup, plan, directory).run(keep);
}

Result<std::string> digest_of_run(Env& env, const std::string& directory) {
  HF_TRY(std::optional<FoundCheckpoint> found, find_checkpoint(env, directory));
  if (!found.has_value()) return fail(ExitCode::checkpoint, "{} has no checkpoint", directory);
  HF_TRY(const StateDigest digest, digest_checkpoint(found->checkpoint));
  return to_text(digest);
}

}  // namespace holdfast::chaos
