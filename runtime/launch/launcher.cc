#include "runtime/launch/launcher.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "checkpoint/ram_tier.h"
#include "runtime/core/digest.h"
#include "runtime/launch/host_probe.h"
#include "runtime/launch/named_hosts.h"
#include "runtime/launch/run_progress.h"
#include "runtime/launch/slurm.h"
#include "runtime/os/console.h"
#include "runtime/os/foreign_text.h"
#include "runtime/os/paths.h"
#include "runtime/os/posix_streams.h"
#include "runtime/run/log_reader.h"
#include "runtime/run/run_identity.h"
#include "runtime/run/save_requests.h"
#include "runtime/run/unused_directory.h"

namespace holdfast::inline launch {
namespace {

constexpr std::int64_t host_retry_ms = 5'000;
constexpr std::int64_t look_ms = 50;
constexpr std::int64_t host_answer_ms = 10'000;
constexpr std::int64_t hurried_answer_ms = 2'000;  // while the notice runs; less when it is over soon
constexpr std::int64_t min_answer_ms = 200, end_reserve_ms = 100;
constexpr std::int64_t look_answer_ms = 5'000;

// Returns the directory for Open MPI's files of a start on this host alone, so that the files of a killed
// start can be removed; empty if there is none. With several hosts the ranks make such a directory themselves
// (use_launch_scratch), because the path for a daemon's files cannot be set for one host alone.
std::string make_scratch(Env& env, const std::string& start) {
  Result<std::string> made = env.make_shared_directory(launch_scratch_name(start));
  return made.ok() ? std::move(made).value() : std::string();
}

void replace_setting(std::vector<std::string>& overrides, const std::string& key, std::int64_t value) {
  const std::string option = fmt::format("--{}=", key);
  std::erase_if(overrides, [&](const std::string& word) { return word.starts_with(option); });
  overrides.push_back(fmt::format("{}{}", option, value));
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
      hosts_(std::move(hosts)),
      scale_up_(config_.elastic.grow_after_ms, config_.elastic.settle_after_ms) {
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

int Launcher::ranks_per_copy() const {
  return static_cast<int>(std::max<std::int64_t>(config_.parallel.tensor, 1) *
                          std::max<std::int64_t>(config_.parallel.pipeline, 1));
}

// Asks, for a range of ranks, for no more copies of the model than a start could use.
RanksWanted Launcher::ranks_wanted() const {
  const int per_copy = ranks_per_copy();
  const auto least = static_cast<int>(config_.elastic.min_data_parallel);
  if (options_.min_ranks == 0)
    return {.ranks = options_.ranks,
            .per_copy = per_copy,
            .min_copies = least,
            .spares = static_cast<int>(config_.elastic.spares),
            .within_slots = has_slots_for_all_};
  const std::int64_t lanes = lanes_of_run() > 0 ? lanes_of_run() : default_lanes;
  const std::int64_t most = config_.parallel.data > 0 ? config_.parallel.data : lanes;
  const std::int64_t copies = std::min<std::int64_t>(most, options_.ranks / per_copy);
  return {.ranks = static_cast<int>(copies) * per_copy,
          .per_copy = per_copy,
          .min_copies = std::max(least, (options_.min_ranks + per_copy - 1) / per_copy),
          .at_most = true};
}

// Gives mpirun a list of hosts if a command printed them, or Slurm allocated them.
LaunchShape Launcher::whole_shape() const {
  const RanksWanted wanted = ranks_wanted();
  LaunchShape shape{
      .ranks = wanted.ranks, .several_hosts = hosts_.size() > 1, .overrides = options_.overrides};
  if (!hosts_.empty() && options_.hosts.empty() && options_.hostfile.empty())
    shape.hosts = list_of_hosts_left(hosts_, wanted.ranks);
  // A run that loses ranks goes on with as few as a start would have.
  if (wanted.min_copies > config_.elastic.min_data_parallel)
    replace_setting(shape.overrides, "elastic.min_data_parallel", wanted.min_copies);
  return shape;
}

std::string Launcher::dry_run() const {
  const std::optional<StartLayout> layout = layout_on(hosts_);
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

Result<ExitCode> Launcher::run() {
  const Result<FileStatus> before = env_->status(paths_.directory);
  const bool makes_directory = before.ok() && !before->exists;
  HF_TRY(claim_, claim_launch(*env_, paths_));
  stop_->on_save_request([this] { ask_for_save(); });
  HF_TRY_VOID(clean_up_before());
  forget_earlier_drains();
  say_findings();
  const bool looks_at_hosts = launched_before_ || ranks_wanted().at_most || mpirun_uses_srun(*env_);
  Result<LaunchShape> first = looks_at_hosts ? shape_of_restart() : whole_shape();
  stop_->poll();
  if (stop_->requested()) {
    say("stopped on request before it began");
    return ExitCode::saved;
  }
  HF_TRY(LaunchShape shape, std::move(first));
  while (true) {
    HF_TRY(StartEnd end, start(shape));
    if (cut_short_) {
      HF_TRY(end, save_what_is_in_memory(shape));
    }
    if (end.record == StartEnd::Record::failed && end.code == ExitCode::does_not_fit && shape.is_narrower) {
      min_ranks_that_fit_ = shape.ranks + 1;
      end.code = ExitCode::communication;  // with more ranks it fits
      end.fault = fmt::format("a copy of the model on {} ranks does not fit into memory", shape.ranks);
      end.kind.clear();
    }
    starts_.push_back(std::move(end));
    const Verdict verdict = after_start(starts_, stop_->requested(), {});
    HF_TRY_VOID(check_claim());
    clean_up_after(starts_.back(), !verdict.restart);
    if (!verdict.restart) {
      if (verdict.code != ExitCode::done) say(verdict.sentence);
      const bool refused = makes_directory && is_refusal(verdict.code);
      if (refused && remove_unused_directory(*env_, paths_)) claim_.reset();
      return verdict.code;
    }
    failed_ns_ = env_->monotonic_ns();
    ranks_before_ = ranks_at_end(*env_, paths_, log_bytes_).value_or(shape.ranks);
    if (!ended_as_asked_) log_fault(starts_.back());
    log_drains(starts_.back().step);
    say(fmt::format("{}; starting again{}", verdict.sentence,
                    verdict.delay_ms == 0 ? "" : fmt::format(" in {} s", verdict.delay_ms / 1000)));
    Result<LaunchShape> next = wait_ms(verdict.delay_ms) ? shape_of_restart() : shape;
    if (!next.ok()) return next.error();
    if (stop_->requested()) {
      say(after_start(starts_, true, {}).sentence);
      return ExitCode::saved;
    }
    shape = std::move(next).value();
  }
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

Result<StartEnd> Launcher::start(LaunchShape shape) {
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
  if (failed_ns_ >= 0) {
    plan.on_running = [this, ranks = shape.ranks](std::uint64_t step) {
      log_recovery(ranks, step);
      drains_.forget_cancelled(read_drain_requests(*env_, paths_));
      answer(drains_.trains(step));
    };
  }
  if (hosts_.size() > 1) plan.lives_elsewhere = [this] { return lives_elsewhere(); };
  plan.look_after_hosts = [this] { return look_after_hosts(); };
  if (const Result<void> made = env_->make_directories(plan.directory); !made.ok())
    return run_directory_error(made.error());
  log_->retry();  // before the lines of the start, if possible
  log_bytes_ = seen_bytes_ = log_bytes(*env_, paths_);
  trains_ = asked_for_another_start_ = false;
  for (const char* variable : {"OMPI_MCA_btl_sm_backing_directory", "PRTE_MCA_prte_tmpdir_base"}) {
    if (!scratch.empty() && env_->variable(variable).empty()) plan.line.variables[variable] = scratch;
  }
  // mpirun ends the ranks when nothing reads their output; so one start is enough to detect that.
  replace_unread_streams();
  const std::string directory = start_directory_ = plan.directory;
  unfit_ranks_.clear();
  plan.may_be_cut_short = config_.checkpoint.ram_every_steps != 0 && !cut_short_;
  Job job(*env_, *stop_, std::move(plan));
  Result<StartEnd> end = job.run();
  give_up_asking();
  const std::set<std::string> suspected = job.suspected_hosts();
  for (LaunchHost& host : hosts_) host.is_suspected = suspected.contains(host.name);
  cut_short_ = job.was_cut_short();
  ended_as_asked_ = end.ok() && job.ended_for_another_start();
  if (ended_as_asked_) {
    end->record = StartEnd::Record::failed;  // so that another start follows: the state may be in RAM alone
    end->code = ExitCode::communication;
    const std::vector<std::string> leaving = drains_.leaving();
    end->fault = leaving.empty() ? fmt::format("{} ranks have ended for a start with more", scale_up_.ranks())
                                 : fmt::format("the ranks have ended for a start without host{} {}",
                                               leaving.size() == 1 ? "" : "s", fmt::join(leaving, ", "));
    end->kind.clear();
    cut_short_ = stop_->requested();
  }
  static_cast<void>(env_->remove_tree(directory).ok());  // files that cannot be removed do no harm
  static_cast<void>(env_->remove_tree(launch_scratch(*env_, name)).ok());
  return end;
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
Result<StartEnd> Launcher::save_what_is_in_memory(const LaunchShape& shape) {
  say(ended_as_asked_
          ? "stopped on request while its state was in memory alone: that is saved"
          : "the step would last longer than the notice: what is in memory of the one before is saved");
  return start(shape);
}

// Asks all hosts to clean up after the starts before, so that no process of a host that was unreachable goes
// on beside the next start.
void Launcher::ask_all_hosts(HostCommand duty, bool last) {
  note_run_id();
  std::vector<std::string> words = arguments_of(duty, token_, run_ids_);
  words.insert(words.begin(), places_.program);
  if (last) {  // a host that did not answer before rarely does now
    const bool all_answer = std::ranges::all_of(hosts_, &LaunchHost::answers);
    static_cast<void>(ask(words, all_answer ? host_answer_ms : look_answer_ms));
    return;
  }
  const std::vector<std::optional<int>> codes = ask(words, host_answer_ms);
  for (std::size_t i = 0; i < hosts_.size(); ++i) {
    const bool answers = codes[i] == 0;
    if (!may_use(hosts_[i].name)) {
      hosts_[i].answers = false;
      continue;
    }
    if (codes[i].has_value() && !answers) {
      say(fmt::format("host {} cannot be used: {} ended there with exit code {}", hosts_[i].name,
                      places_.program, *codes[i]));
    } else if (hosts_[i].answers != answers) {
      say(fmt::format("host {} {}", hosts_[i].name,
                      answers ? "answers again: the run takes it back" : "does not answer: it is left out"));
    }
    hosts_[i].answers = answers;
    hosts_[i].is_suspected = false;  // if it comes back, its login takes the usual time
  }
}

void Launcher::note_run_id() {
  const Result<RunIdentity> identity = identify_run(*env_, paths_);
  const std::string run_id = identity.ok() ? identity->id : "";
  if (run_id.empty() || run_ids_.find(run_id) != std::string::npos) return;
  run_ids_ += (run_ids_.empty() ? "" : ",") + run_id;
}

// Asks all hosts, with a shorter limit once a stop has been requested, even meanwhile, because this must end
// within the notice, too.
std::vector<std::optional<int>> Launcher::ask(const std::vector<std::string>& words, std::int64_t limit_ms) {
  const std::int64_t until_ns = env_->monotonic_ns() + limit_ms * 1'000'000;
  std::int64_t hurried_until_ns = -1;
  return ask_hosts(*env_, hosts_, words, [&] {
    stop_->poll();
    const std::int64_t now_ns = env_->monotonic_ns();
    if (!stop_->requested()) return (until_ns - now_ns) / 1'000'000;
    if (hurried_until_ns < 0) {
      const std::int64_t left_ms = std::clamp<std::int64_t>(stop_->left_to_end_ms() - end_reserve_ms,
                                                            min_answer_ms, hurried_answer_ms);
      hurried_until_ns = std::min(until_ns, now_ns + left_ms * 1'000'000);
    }
    return (hurried_until_ns - now_ns) / 1'000'000;
  });
}

bool Launcher::lives_elsewhere() {
  std::vector<std::string> words = arguments_of(HostCommand::look, token_, "");
  words.insert(words.begin(), places_.program);
  const std::vector<std::optional<int>> codes = ask(words, look_answer_ms);
  // A host that was asked with the shorter limit may not have had time to answer.
  return stop_->requested() ||
         std::ranges::any_of(codes, [](const std::optional<int>& code) { return code == 1; });
}

void Launcher::say_narrower(const StartLayout& layout, int per_copy) {
  say(
      fmt::format("the hosts that are left have no room for a copy of the model on {} ranks: the run goes on "
                  "with {} rank{} a copy (parallel.tensor = {}, parallel.pipeline = {}), and the same bits",
                  per_copy, layout.tensor * layout.pipeline, layout.tensor * layout.pipeline == 1 ? "" : "s",
                  layout.tensor, layout.pipeline));
}

// Returns the shape of a start on the hosts that are left; waits while they are too few.
Result<LaunchShape> Launcher::shape_of_restart() {
  const RanksWanted wanted = ranks_wanted();
  const bool always_the_same = hosts_.size() < 2 && !hosts_may_change(options_) && !wanted.at_most;
  if (always_the_same) return whole_shape();
  const std::int64_t begin_ns = env_->monotonic_ns();
  for (bool said = false;; said = true) {
    HF_TRY_VOID(check_claim());
    read_hosts_again();
    look_at_drains_between_starts();
    ask_all_hosts(HostCommand::clean, /*last=*/false);
    if (const std::optional<StartLayout> layout = layout_on(hosts_); layout.has_value()) {
      if (is_narrower(*layout)) say_narrower(*layout, wanted.per_copy);
      return shape_on_hosts_left(*layout);
    }
    if (!said) {
      say(fmt::format(
          "too few hosts are left for {} = {} copies of the model on {} ranks each: waiting for more",
          wanted.at_most ? "the least ranks of -np" : "elastic.min_data_parallel", wanted.min_copies,
          wanted.per_copy));
    }
    if (env_->monotonic_ns() - begin_ns > options_.wait_for_hosts_ms * 1'000'000) {
      return fail(ExitCode::communication,
                  "no more hosts came within {} s; start it again when they are there",
                  options_.wait_for_hosts_ms / 1000);
    }
    if (!wait_ms(host_retry_ms)) return whole_shape();
  }
}

// Returns the layout that a start has on the hosts that answer; none if they are too few.
std::optional<StartLayout> Launcher::layout_on(const std::vector<LaunchHost>& hosts) const {
  const RanksWanted wanted = ranks_wanted();
  StartLayout layout{.pipeline = static_cast<int>(std::max<std::int64_t>(config_.parallel.pipeline, 1)),
                     .tensor = static_cast<int>(std::max<std::int64_t>(config_.parallel.tensor, 1))};
  if (const std::optional<int> ranks = ranks_on_hosts_left(hosts, wanted); ranks.has_value()) {
    layout.ranks = *ranks;
    return layout;
  }
  std::optional<Config> run = wanted.per_copy > 1 ? config_of_run() : std::nullopt;
  if (!run.has_value()) return std::nullopt;
  run->parallel.pipeline = layout.pipeline;
  run->parallel.pipeline_chunks = config_.parallel.pipeline_chunks;
  run->parallel.tensor = layout.tensor;
  return narrower_layout(*run, hosts, wanted, std::max(options_.min_ranks, min_ranks_that_fit_));
}

bool Launcher::is_narrower(const StartLayout& layout) const {
  return layout.pipeline * layout.tensor < ranks_per_copy();
}

LaunchShape Launcher::shape_on_hosts_left(const StartLayout& layout) const {
  LaunchShape shape = whole_shape();
  const int wanted = shape.ranks;
  const bool all_answer = std::ranges::all_of(hosts_, &LaunchHost::answers) && hosts_trouble_.empty();
  if (layout.ranks == wanted && all_answer) return shape;
  shape.ranks = layout.ranks;
  shape.is_narrower = is_narrower(layout);
  shape.hosts = list_of_hosts_left(hosts_, layout.ranks, shape.is_narrower ? layout.tensor : 1);
  if (layout.ranks == wanted) return shape;
  const std::int64_t computing = wanted - config_.elastic.spares;
  const std::int64_t spares = std::max<std::int64_t>(0, layout.ranks - computing);
  if (config_.elastic.spares > 0) replace_setting(shape.overrides, "elastic.spares", spares);
  if (shape.is_narrower) {
    replace_setting(shape.overrides, "parallel.tensor", layout.tensor);
    replace_setting(shape.overrides, "parallel.pipeline", layout.pipeline);
    if (layout.pipeline == 1) replace_setting(shape.overrides, "parallel.pipeline_chunks", 1);
  }
  const std::int64_t data = (layout.ranks - spares) / (layout.pipeline * layout.tensor);
  if (config_.parallel.data <= data) return shape;
  // The requested degree is not possible. It also sets the number of lanes if that is not configured.
  replace_setting(shape.overrides, "parallel.data", data);
  replace_setting(shape.overrides, "parallel.lanes", lanes_of_run());
  return shape;
}

// Returns the config as the first start resolved it; none if no start came that far.
std::optional<Config> Launcher::config_of_run() const {
  const Result<std::string> stored = read_text_within(*env_, paths_.config(), text_limits::config);
  if (!stored.ok()) return std::nullopt;
  Result<LoadedConfig> config = load_stored_config(*env_, *stored, paths_.config());
  if (!config.ok()) return std::nullopt;
  return std::move(config->config);
}

// Returns the number of lanes as the run's first start resolved it.
std::int64_t Launcher::lanes_of_run() const {
  if (config_.parallel.lanes > 0) return config_.parallel.lanes;
  const std::optional<Config> run = config_of_run();
  return run.has_value() && run->parallel.lanes > 0 ? run->parallel.lanes : config_.parallel.data;
}

// Cleans up after a start. A finished run needs nothing of what its ranks had in the memory of its hosts.
// Before another start the hosts are asked in any case.
void Launcher::clean_up_after(const StartEnd& end, bool last) {
  const bool finished = end.record == StartEnd::Record::finished;
  if (last && hosts_.size() > 1)
    ask_all_hosts(finished ? HostCommand::finish : HostCommand::clean, /*last=*/true);
  if (!finished) return;
  const Result<std::string> run_id = read_run_id(*env_, paths_);
  if (run_id.ok()) static_cast<void>(remove_snapshots(*env_, digest_of(*run_id)).ok());
}

}  // namespace holdfast::inline launch
