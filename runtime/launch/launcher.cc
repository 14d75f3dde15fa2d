#include "runtime/launch/launcher.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "runtime/launch/host_probe.h"
#include "runtime/launch/run_progress.h"
#include "runtime/metrics/metrics_sink.h"
#include "runtime/os/console.h"
#include "runtime/os/foreign_text.h"
#include "runtime/os/paths.h"
#include "runtime/os/posix_start.h"
#include "runtime/run/log_reader.h"
#include "runtime/run/requests.h"
#include "runtime/run/run_directory.h"

namespace holdfast::launch {
namespace {

constexpr std::int64_t look_ms = 50;

// Returns the directory for Open MPI's files of a start on this host alone, so that the files of a killed
// start can be removed; empty if there is none. With several hosts the ranks make such a directory themselves
// (use_launch_scratch), because the path for a daemon's files cannot be set for one host alone.
std::string make_scratch(Env& env, const std::string& start) {
  Result<std::string> made = env.make_shared_directory(launch_scratch_name(start));
  return made.ok() ? std::move(made).value() : std::string();
}

}  // namespace

Launcher::Launcher(Env& env, StopRequest& stop, const LaunchOptions& options, LaunchPaths places,
                   Config config, std::vector<LaunchHost> hosts)
    : env_(&env),
      stop_(&stop),
      options_(options),
      places_(std::move(places)),
      config_(std::move(config)),
      paths_{config_.run.directory},
      log_(std::make_unique<EventLog>(env, paths_.events())),
      hosts_(std::move(hosts)) {
  int slots = 0;
  for (const LaunchHost& host : hosts_) slots += host.slots;
  has_slots_for_all_ = slots >= options_.ranks;
}

Result<Launcher> Launcher::create(Env& env, StopRequest& stop, const LaunchOptions& options) {
  HF_TRY(const std::vector<Override> overrides, parse_overrides(options.overrides));
  HF_TRY(LoadedConfig config, load_config(env, options.config, overrides));
  HF_TRY(LaunchPaths places, find_launch_paths(env, options));
  places.home = home_of_user();
  HF_TRY(std::vector<LaunchHost> hosts, named_hosts(env, options));
  Launcher launcher(env, stop, options, std::move(places), std::move(config.config), std::move(hosts));
  const RanksWanted wanted = launcher.ranks_wanted();
  if (wanted.at_most && launcher.config_.elastic.spares > 0) {
    return fail(
        ExitCode::config,
        "launch: -np MIN:MAX takes what room there is, and elastic.spares = {} keeps some of it free; "
        "leave one of them out",
        launcher.config_.elastic.spares);
  }
  if (wanted.at_most && wanted.ranks < wanted.min_copies * wanted.per_copy) {
    return fail(
        ExitCode::config,
        "launch: -np {}:{} asks for at least {} cop{} of the model of {} ranks each (parallel.tensor x "
        "parallel.pipeline), and MAX, parallel.data and parallel.lanes allow {}",
        options.min_ranks, options.ranks, wanted.min_copies, wanted.min_copies == 1 ? "y" : "ies",
        wanted.per_copy, wanted.ranks / wanted.per_copy);
  }
  return launcher;
}

void Launcher::say(const std::string& sentence) {
  write_to_console(stderr, fmt::format("holdfast launch: {}\n", sentence));
}

std::string Launcher::dry_run() const {
  const std::optional<StartLayout> layout = layout_on(hosts_, /*min_ranks=*/1);
  const LaunchShape shape = layout.has_value() ? shape_on_hosts_left(*layout) : whole_shape();
  return shell_line(mpirun_line(*env_, options_, places_, shape));
}

// Waits; returns false if a stop has been requested.
bool Launcher::wait_ms(std::int64_t duration_ms) {
  const std::int64_t until_ns = env_->monotonic_ns() + duration_ms * 1'000'000;
  while (true) {
    stop_->poll();
    if (stop_->requested()) return false;
    const std::int64_t left_us = (until_ns - env_->monotonic_ns()) / 1000;
    if (left_us <= 0) return true;
    env_->sleep_us(std::min(left_us, look_ms * 1000));
  }
}

// Returns what LaunchMind needs of this launch.
LaunchMindSettings Launcher::mind_settings() const {
  const Result<FileStatus> config = env_->status(paths_.config());
  return {.own_host = env_->host_name(),
          .program = places_.program,
          .grow_after_ms = config_.elastic.grow_after_ms,
          .settled_ms = config_.elastic.settle_after_ms,
          .wait_for_hosts_ms = options_.wait_for_hosts_ms,
          .has_begun = !config.ok() || config->exists,
          .ranks_on =
              [this](const std::vector<LaunchHost>& hosts, int min_ranks) {
                return layout_on(hosts, min_ranks).value_or(StartLayout{.ranks = 0}).ranks;
              },
          .whole =
              [this] {
                const RanksWanted wanted = ranks_wanted();
                return ScaleUp::Whole{.computing = wanted.ranks - wanted.spares,
                                      .kept_spares = spares_for_a_host(hosts_, wanted)};
              }};
}

Result<ExitCode> Launcher::run() {
  Result<ExitCode> end = run_to_end();
  tell_end(end);
  return end;
}

// The launcher tells, because it is there when all ranks are gone.
void Launcher::begin_notices() {
  const NotifyConfig& config = config_.notify;
  if (config.command.empty()) return;
  notifier_ =
      std::make_unique<Notifier>(*env_, Notifier::Settings{.paths = paths_,
                                                           .command = config.command,
                                                           .timeout_ms = config.timeout_ms,
                                                           .mind = {.at_most = config.at_most,
                                                                    .heartbeat_ms = config.heartbeat_ms,
                                                                    .ends_with_start = false}});
}

void Launcher::tell_end(const Result<ExitCode>& end) {
  if (notifier_ == nullptr) return;
  const ExitCode code = end.ok() ? *end : end.error().code;
  News news{.kind = std::string(FinishEvent::kind),
            .sentence = end.ok() ? end_sentence_ : end.error().message,
            .time_us = env_->wall_time_us(),
            .state = code == ExitCode::done    ? "finished"
                     : code == ExitCode::saved ? "saved"
                                               : FinishEvent::failed,
            .exit_code = static_cast<int>(code)};
  constexpr std::int64_t killing_ms = 500;
  // With a notice this process must have ended, too, when it is over.
  notifier_->finish(std::move(news),
                    stop_->requested() ? std::clamp<std::int64_t>((stop_->left_to_end_ms() - killing_ms) / 2,
                                                                  1, Notifier::end_patience_ms)
                                       : Notifier::end_patience_ms);
}

Result<ExitCode> Launcher::run_to_end() {
  const Result<FileStatus> before = env_->status(paths_.directory);
  const bool makes_directory = before.ok() && !before->exists;
  HF_TRY(claim_, claim_launch(*env_, paths_));
  begin_notices();
  stop_->on_save_request([this] { ask_for_save(); });
  mind_ = std::make_unique<LaunchMind>(mind_settings());
  mind_->name_hosts(env_->monotonic_ns(), hosts_);
  HF_TRY_VOID(clean_up_before());
  take_earlier_drains();
  say_findings();
  const bool looks_at_hosts =
      launched_before_ || ranks_wanted().at_most || mpirun_uses_srun(*env_) || hosts_.size() > 1;
  if (!looks_at_hosts) mind_->take_all();
  Result<LaunchShape> shape = looks_at_hosts ? next_shape() : whole_shape();
  const auto stopped = [&](const std::string& sentence) {
    say(sentence);
    end_sentence_ = sentence;
    forget_hosts();
    return ExitCode::saved;
  };
  stop_->poll();
  if (stop_->requested()) return stopped("stopped on request before it began");
  while (true) {
    if (!shape.ok()) {
      forget_hosts();
      return shape.error();
    }
    HF_TRY(const RestartDecision decision, make_start(*shape));
    if (!decision.restart) {
      if (decision.code != ExitCode::done) say(decision.sentence);
      end_sentence_ = decision.sentence;
      const bool refused = makes_directory && is_refusal(decision.code);
      if (refused && remove_unused_directory(*env_, paths_)) claim_.reset();
      return decision.code;
    }
    say(fmt::format("{}; starting again{}", decision.sentence,
                    decision.delay_ms == 0 ? "" : fmt::format(" in {} s", decision.delay_ms / 1000)));
    if (wait_ms(decision.delay_ms)) shape = next_shape();
    if (stop_->requested()) return stopped(after_start({&mind_->last_end(), 1}, true, {}).sentence);
  }
}

// Makes a start, and decides what follows it. Error: it could not be made, and no other can.
Result<RestartDecision> Launcher::make_start(const LaunchShape& shape) {
  Result<EndedStart> ended = start(shape);
  if (ended.ok() && cut_short_) ended = save_what_is_in_memory(shape);
  HF_TRY_VOID(check_claim());
  const std::int64_t now_ns = env_->monotonic_ns();
  if (!ended.ok()) {
    RestartDecision decision = mind_->own_call_failed(now_ns, ended.error());
    if (!decision.restart) return with_code(decision.code, ended.error());
    return decision;
  }
  RestartDecision decision = mind_->ended(now_ns, std::move(ended).value(), stop_->requested());
  const StartEnd& end = mind_->last_end();
  tell_news();
  clean_up_after(end, !decision.restart);
  if (decision.restart) {
    failed_ns_ = env_->monotonic_ns();
    ranks_before_ = ranks_at_end(*env_, paths_, log_bytes_).value_or(shape.ranks);
    if (!ended_as_asked_) log_fault(end);
    log_drains(end.step);
  }
  if (config_.metrics.every_ms > 0) renew_metrics(*env_, paths_);
  return decision;
}

// Fails if another launcher has taken the run over: that launcher decides what follows, and its ranks could
// be mistaken for leftovers of a start of this one. A file that cannot be read is no evidence.
Result<void> Launcher::check_claim() const {
  const Result<void> mine = claim_->check();
  const bool is_replaced = !mine.ok() && mine.error().code == ExitCode::communication;
  return is_replaced ? mine : Result<void>();
}

// Requests a save by a file, not by a signal to the ranks, so that the request also reaches a start that has
// not begun, or the next one.
void Launcher::ask_for_save() {
  if (!save_request_.empty() && read_save_answer(*env_, save_request_).state == SaveAnswer::State::asked)
    return;
  const Result<std::string> request = request_save(*env_, paths_, RequestKind::unattended);
  if (request.ok()) save_request_ = *request;
  say(request.ok() ? "SIGUSR1: the run saves after its next step, and goes on"
                   : "SIGUSR1: the run cannot be asked to save: " + request.error().message);
}

Result<EndedStart> Launcher::start(LaunchShape shape) {
  shape.forwarded = {launch_variable};
  const std::string name = fmt::format("{}-{:016x}", token_, env_->random_u64());
  const std::string scratch = shape.several_hosts ? "" : make_scratch(*env_, name);
  LaunchPaths places = places_;
  // Without a home directory mpirun would look for its settings in places to which other users may write. The
  // shared memory of this user is writable for no other user, and / only for root.
  if (places.home.empty() && env_->variable("HOME").empty()) places.home = scratch.empty() ? "/" : scratch;
  JobPlan plan{.line = mpirun_line(*env_, options_, places, shape),
               .ranks = shape.ranks,
               .paths = paths_,
               .directory = paths_.launch() + "/" + name};
  plan.on_running = [this, ranks = shape.ranks](std::uint64_t step) {
    mind_->trains(env_->monotonic_ns());
    log_excluded_before();
    if (failed_ns_ >= 0) log_recovery(ranks, step);
    drains_.forget_cancelled(read_drain_requests(*env_, paths_));
    answer(drains_.trains(step));
  };
  if (hosts_.size() > 1) plan.lives_elsewhere = [this] { return lives_elsewhere(); };
  plan.look_after_hosts = [this] { return look_after_hosts(); };
  if (const Result<void> made = env_->make_directories(plan.directory); !made.ok())
    return run_directory_error(made.error());
  log_->retry();  // before the lines of the start, if possible
  log_bytes_ = seen_bytes_ = log_bytes(*env_, paths_);
  for (const char* variable : {"OMPI_MCA_btl_sm_backing_directory", "PRTE_MCA_prte_tmpdir_base"}) {
    if (!scratch.empty() && env_->variable(variable).empty()) plan.line.variables[variable] = scratch;
  }
  // mpirun ends the ranks when nothing reads their output; so one start is enough to detect that.
  replace_unread_streams();
  const std::string directory = start_directory_ = plan.directory;
  plan.may_be_cut_short = config_.checkpoint.ram_every_steps != 0 && !cut_short_;
  mind_->begins(env_->monotonic_ns(), shape.given, shape.ranks, shape.is_narrower);
  Job job(*env_, *stop_, std::move(plan));
  Result<EndedStart> ended = job.run();
  give_up_asking();
  mind_->suspect(job.suspected_hosts());
  cut_short_ = job.was_cut_short();
  ended_as_asked_ = ended.ok() && ended->is_as_asked;
  if (ended.ok()) ended->lost_work_ms = std::llround(lost_job_ms(*env_, paths_, log_bytes_).value_or(0));
  if (ended_as_asked_) {
    const std::vector<std::string> leaving = drains_.leaving();
    ended->end.fault =
        leaving.empty() ? fmt::format("{} ranks have ended for a start with more", mind_->scale_up().ranks())
                        : fmt::format("the ranks have ended for a start without host{} {}",
                                      leaving.size() == 1 ? "" : "s", fmt::join(leaving, ", "));
    cut_short_ = stop_->requested();
  }
  static_cast<void>(env_->remove_tree(directory).ok());  // files that cannot be removed do no harm
  static_cast<void>(env_->remove_tree(launch_scratch(*env_, name)).ok());
  return ended;
}

// Removes what a killed launcher has left: the processes and files of its starts on this host, and their
// directories.
Result<void> Launcher::clean_up_before() {
  const Result<std::vector<std::string>> names = env_->list(paths_.launch());
  if (!names.ok()) return run_directory_error(names.error());
  launched_before_ = std::ranges::find(*names, "token") != names->end();
  Result<std::string> token = launch_token(*env_, paths_);
  if (!token.ok() && token.error().code == ExitCode::data) return token.error();  // the run's id is damaged
  if (!token.ok()) return run_directory_error(token.error());
  token_ = std::move(token).value();
  if (!do_host_command(*env_, HostCommand::clean, token_, "")) {
    return fail(ExitCode::communication,
                "launch: processes of an earlier start of this run do not die on this host; the system holds "
                "them");
  }
  for (const std::string& name : *names) {
    if (!name.starts_with(token_ + "-")) continue;
    static_cast<void>(env_->remove_tree(paths_.launch() + "/" + name).ok());
  }
  return {};
}

// Saves the state in memory by another start. The step that was under way is lost, and the state before it
// becomes a checkpoint: a start that is asked to stop before it begins saves the state that it finds in
// memory.
Result<EndedStart> Launcher::save_what_is_in_memory(const LaunchShape& shape) {
  say(ended_as_asked_
          ? "stopped on request while its state was in memory alone: that is saved"
          : "the step would last longer than the notice: what is in memory of the one before is saved");
  return start(shape);
}

void Launcher::note_run_id() {
  const Result<RunIdentity> identity = identify_run(*env_, paths_);
  const std::string run_id = identity.ok() ? identity->id : "";
  if (run_id.empty() || run_ids_.find(run_id) != std::string::npos) return;
  run_ids_ += (run_ids_.empty() ? "" : ",") + run_id;
}

// Cleans up after a start. A finished run needs nothing of what its ranks had in the memory of its hosts.
// Before another start the hosts are asked in any case.
void Launcher::clean_up_after(const StartEnd& end, bool last) {
  const bool finished = end.record == StartEnd::Record::finished;
  note_run_id();
  if (last) forget_hosts();
  if (last && hosts_.size() > 1) ask_at_end(finished ? HostCommand::finish : HostCommand::clean);
  if (finished) static_cast<void>(do_host_command(*env_, HostCommand::finish, token_, run_ids_));
}

// The launcher writes its own events: between two starts, when no rank writes the log, and once the next
// start trains.

void Launcher::log_fault(const StartEnd& end) {
  if (log_bytes(*env_, paths_) == 0) return;
  log_->others_have_written();
  FaultEvent event{.time_us = env_->wall_time_us(),
                   .level = FaultEvent::by_launcher,
                   .step = end.step,
                   .cause = std::string(name_of(end.cause)),
                   .reason = end.fault};
  event.put_kernel(end.kernel);
  log_->write(event);
}

void Launcher::log_drains(std::uint64_t step) {
  if (drains_.leaving().empty()) return;
  log_->others_have_written();
  for (const std::string& host : drains_.leaving()) {
    DrainEvent event{.time_us = env_->wall_time_us(), .step = step, .host = host};
    if (const std::string reason = drains_.reason(host); !reason.empty()) event.reason = reason;
    log_->write(event);
  }
}

void Launcher::log_excluded(const std::string& host, const std::string& reason) {
  unlogged_.push_back(
      {.time_us = env_->wall_time_us(), .step = newest_step(*env_, paths_), .host = host, .reason = reason});
  if (log_bytes(*env_, paths_) > 0) log_excluded_before();
}

// The log of a run begins with its first start, which the ranks write.
void Launcher::log_excluded_before() {
  if (unlogged_.empty()) return;
  log_->others_have_written();
  for (const ExcludeEvent& event : std::exchange(unlogged_, {})) log_->write(event);
}

void Launcher::log_recovery(int ranks, std::uint64_t step) {
  const std::uint64_t reached = mind_->last_end().step;
  const std::int64_t duration_ms = (env_->monotonic_ns() - failed_ns_) / 1'000'000;
  log_->others_have_written();
  RecoveryEvent event{.time_us = env_->wall_time_us(),
                      .level = RecoveryEvent::by_launcher,
                      .ranks_before = ranks_before_,
                      .ranks_after = ranks,
                      .lost_steps = reached > step ? reached - step : 0,
                      .duration_ms = duration_ms};
  if (waited_ms_ > 0) event.waited_for_hosts_ms = std::exchange(waited_ms_, 0);
  const bool ended_as_asked = std::exchange(ended_as_asked_, false);
  if (!drains_.leaving().empty()) {
    event.reason = RecoveryEvent::drain;
  } else if (ended_as_asked) {
    event.reason = RecoveryEvent::growth;
  }
  log_->write(event);
  failed_ns_ = env_->monotonic_ns();
}

}  // namespace holdfast::launch
