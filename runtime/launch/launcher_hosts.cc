// The launcher chooses the hosts of each start, looks after them while a run trains, and does what LaunchMind decides
// about them; launcher_asks.cc asks them. When they have room for more ranks, or the run should leave one of them (drains.h), it asks the run to end after its
// next step, and starts it again.
#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "runtime/launch/host_ready.h"
#include "runtime/launch/launcher.h"
#include "runtime/launch/named_hosts.h"
#include "runtime/launch/run_progress.h"
#include "runtime/os/foreign_text.h"
#include "runtime/run/hardware_record.h"
#include "runtime/run/host_book.h"
#include "runtime/run/launch_record.h"
#include "runtime/run/log_reader.h"
#include "runtime/run/requests.h"
#include "runtime/run/run_summary.h"

namespace holdfast::launch {
namespace {

constexpr std::int64_t host_retry_ms = 5'000;

}  // namespace

// Returns the shape of the next start, on the hosts that LaunchMind chooses; waits while they are too few. Error:
// they stay too few.
Result<LaunchShape> Launcher::next_shape() {
  std::int64_t begin_ns = -1;  // of the time without hosts enough
  for (;;) {
    HF_TRY_VOID(check_claim());
    read_hosts_again();
    look_at_drains_between_starts();
    note_faulty_hosts();
    ask_before_start();
    const LaunchMind::Choice choice = mind_->choose(env_->monotonic_ns());
    tell_news();
    if (choice.starts) {
      // Starts that fail before a step are one restart with the one before.
      if (begin_ns >= 0 && failed_ns_ >= 0) waited_ms_ += (env_->monotonic_ns() - begin_ns) / 1'000'000;
      hosts_ = choice.hosts;
      // The config of the run, which a narrower layout needs, may not be readable at this moment.
      if (const std::optional<StartLayout> layout = layout_on(hosts_, mind_->min_ranks());
          layout.has_value()) {
        if (is_narrower(*layout)) say_narrower(*layout, ranks_per_copy());
        return shape_on_hosts_left(*layout);
      }
    }
    if (!choice.sentence.empty()) return fail(ExitCode::communication, "{}", choice.sentence);
    if (begin_ns < 0) {
      say_waiting();
      begin_ns = env_->monotonic_ns();
    }
    if (!wait_ms(host_retry_ms)) return whole_shape();
  }
}

void Launcher::say_waiting() const {
  const std::string why = mind_->why_missing();
  const std::string reason = why.empty() ? "" : " (" + printable(why) + ")";
  if (hosts_.size() < 2) return say("the run waits for its host" + reason);
  const RanksWanted wanted = ranks_wanted();
  say(fmt::format(
      "too few hosts are left for {} = {} copies of the model on {} ranks each: waiting for more{}",
      wanted.at_most ? "the least ranks of -np" : "elastic.min_data_parallel", wanted.min_copies,
      wanted.per_copy, reason));
}

std::string Launcher::look_after_hosts() {
  look_at_ranks();
  if (look_at_drains()) {
    const std::string host = drains_.overdue(env_->monotonic_ns()).value_or("");
    if (!host.empty()) {
      answer(drains_.begun());
      return fmt::format("host {} has to be left now, and the step would last longer", host);
    }
  }
  const bool may_grow = whole_shape().several_hosts || hosts_may_change(options_);
  if (may_grow && config_.elastic.grow == "auto" && !mind_->is_leaving()) look_for_room();
  tell_news();
  return {};
}

void Launcher::look_for_room() {
  const std::int64_t now_ns = env_->monotonic_ns();
  if (question_ != nullptr) {
    if (!question_->answers.finished()) return;
    const std::unique_ptr<Question> question = std::exchange(question_, nullptr);
    const Result<std::vector<HostAnswer>> answers = question->answers.take();
    if (answers.ok()) {
      ask_for_another_start(*question, *answers);
    } else {
      mind_->postpone(now_ns);
    }
  } else if (mind_->scale_up().is_due(now_ns)) {
    read_hosts_again();
    asked_ = mind_->candidates(now_ns);
    if (!asked_.empty()) ask_for_room();
  }
}

// Reads from the log of the run where its ranks are, and from their reports which of them left as unfit.
void Launcher::look_at_ranks() {
  const std::uint64_t bytes = log_bytes(*env_, paths_);
  if (bytes == seen_bytes_) return;
  const std::optional<RanksInLog> ranks = newest_ranks(*env_, paths_, seen_bytes_);
  seen_bytes_ = bytes;
  if (!ranks.has_value()) return;
  const std::int64_t now_ns = env_->monotonic_ns();
  mind_->has(now_ns, ranks->by_host, read_silent_pairs(*env_, start_directory_),
             unfit_hosts(read_launched_ranks(*env_, start_directory_)), ranks->spares);
}

// Writes which hosts are not used, and says what LaunchMind has decided about them: status knows what the log tells.
void Launcher::tell_news() {
  write_rows();
  for (const LaunchNews& news : mind_->take_news()) {
    const std::string sentence = printable(news.sentence);
    say(sentence);
    if (news.excluded.has_value()) log_excluded(news.excluded->name, sentence);
  }
}

void Launcher::write_rows() {
  std::vector<HostView> views = mind_->views();
  if (views == told_views_) return;
  told_views_ = std::move(views);
  const std::int64_t now_ns = env_->monotonic_ns(), now_us = env_->wall_time_us();
  const auto wall_us = [&](std::int64_t at_ns) { return now_us + (at_ns - now_ns) / 1'000; };
  HostRows rows;
  for (const HostView& host : told_views_) {
    if (host.state == HostState::ready) continue;
    rows.hosts.push_back({.host = host.name,
                          .state = name_of(host.state),
                          .reason = host.reason,
                          .since_us = wall_us(host.since_ns),
                          .until_us = host.until_ns > now_ns ? wall_us(host.until_ns) : 0,
                          .failures = host.failures});
  }
  static_cast<void>(write_host_rows(*env_, paths_, rows).ok());  // nothing but what people see depends on it
}

// Removes what is written about hosts for this launch alone.
void Launcher::forget_hosts() {
  static_cast<void>(remove_host_rows(*env_, paths_).ok());
  static_cast<void>(remove_ready_nonce(*env_, paths_, token_).ok());
}

MissingHosts Launcher::missing_hosts() const {
  const auto is_missing = [](const HostView& host) { return host.state != HostState::ready; };
  const std::vector<HostView> views = mind_->views();
  int ranks = mind_->scale_up().ranks();
  if (!mind_->is_training())
    ranks = layout_on(hosts_, mind_->min_ranks()).value_or(StartLayout{.ranks = 0}).ranks;
  return {.hosts = static_cast<int>(std::ranges::count_if(views, is_missing)),
          .ranks = std::max(ranks_wanted().ranks - ranks, 0),
          .why = printable(mind_->why_missing())};
}

// Reads the hosts again, because the hostfile, or the output of the command, may change while a run lasts.
void Launcher::read_hosts_again() {
  if (!hosts_may_change(options_)) return;
  Result<std::vector<LaunchHost>> named = named_hosts(*env_, options_, missing_hosts());
  const std::string trouble = named.ok() ? "" : named.error().message;
  if (std::exchange(hosts_trouble_, trouble) != trouble && !trouble.empty())
    say(fmt::format("{}; those that it named before are kept", trouble));
  if (!named.ok()) return;
  for (LaunchHost& host : *named) {
    const auto known = std::ranges::find(hosts_, host.name, &LaunchHost::name);
    if (known == hosts_.end()) {
      say(fmt::format("host {} is new in {}: the next start can use it", host.name,
                      source_of_hosts(options_)));
    } else {
      host.answers = known->answers;
    }
  }
  for (const LaunchHost& host : hosts_) {
    if (std::ranges::find(*named, host.name, &LaunchHost::name) == named->end())
      say(fmt::format("host {} is no longer in {}: the next start is without it", host.name,
                      source_of_hosts(options_)));
  }
  hosts_ = std::move(named).value();
  mind_->name_hosts(env_->monotonic_ns(), hosts_);
}

// Returns the hosts of the list that should be left out while others will do, each with a sentence: those whose hardware
// gave wrong numbers lately, that a preflight found unfit, and that somebody has tainted.
std::map<std::string, std::string> Launcher::findings_of_hosts() const {
  const HardwareRecord record = read_hardware_record(*env_, paths_).record;
  std::map<std::string, std::string> findings =
      sentences_of_hosts(record, paths_, env_->wall_time_us(), config_.verdict.findings_window_ms);
  for (const auto& [host, sentence] : options_.unfit_hosts) findings.insert_or_assign(host, sentence);
  const Result<HostBook> book = read_host_book(*env_);
  if (!book.ok()) return findings;
  for (auto& [host, sentence] : book->tainted(env_->wall_time_us())) {
    if (std::ranges::find(hosts_, host, &LaunchHost::name) != hosts_.end())
      findings.insert_or_assign(host, std::move(sentence));
  }
  return findings;
}

// Says which hosts these are. A damaged record of hardware is told by the ranks.
void Launcher::say_findings() const {
  for (const auto& [host, sentence] : findings_of_hosts()) say(sentence);
  const Result<HostBook> book = read_host_book(*env_);
  if (!book.ok()) say(fmt::format("{}; this launch knows of no tainted hosts", book.error().message));
}

void Launcher::note_faulty_hosts() {
  mind_->set_faulty(findings_of_hosts());
}

// Takes over the drains of an earlier launcher that was killed. Those of one that came to its end are over.
void Launcher::take_earlier_drains() {
  const bool was_killed = launched_before_ && read_status(*env_, paths_).state == "running";
  for (const DrainRequest& request : read_drain_requests(*env_, paths_)) {
    if (!was_killed || !drains_.take_over(request, hosts_))
      static_cast<void>(remove_drain_request(*env_, paths_, request.host).ok());
  }
}

void Launcher::tell_drained() {
  std::map<std::string, std::string> left;
  for (const LaunchHost& host : hosts_) {
    if (drains_.leaves(host.name)) left[host.name] = drains_.reason(host.name);
  }
  mind_->set_drained(left);
}

// Writes answers to requests. A request that has been withdrawn meanwhile stays withdrawn.
void Launcher::answer(const std::vector<DrainRequest>& drains) {
  if (drains.empty()) return;
  const std::vector<DrainRequest> there = read_drain_requests(*env_, paths_);
  for (const DrainRequest& request : drains) {
    if (std::ranges::find(there, request.host, &DrainRequest::host) == there.end()) continue;
    static_cast<void>(write_drain_request(*env_, paths_, request).ok());  // the drain is valid without it
  }
}

DrainView Launcher::drain_view(const std::vector<std::string>& names, std::uint64_t step) const {
  return {.step = step,
          .launcher_host = env_->host_name(),
          .has_ranks = [&](const std::string& host) { return mind_->scale_up().may_have_ranks(host, names); },
          .has_room =
              [&](const std::vector<LaunchHost>& hosts, int ranks) {
                return layout_on(hosts, std::max(mind_->min_ranks(), ranks)).has_value();
              }};
}

// Answers the requests, and logs the refused ones.
void Launcher::answer_refused(const DrainStep& step) {
  answer(step.answers);
  for (const DrainRequest& refused : step.answers) {
    if (refused.state == DrainRequest::State::refused)
      say(fmt::format("host {} is not drained: {}", refused.host, printable(refused.sentence)));
  }
  if (step.stop.empty()) return;
  say("the run saves and stops, because it cannot go on elsewhere");
  stop_->request();
}

// Takes drain requests between starts. A host is left by ending a start that trains, so the next start uses
// the host for that long, unless its deadline is over.
void Launcher::look_at_drains_between_starts() {
  const std::vector<DrainRequest> requests = read_drain_requests(*env_, paths_);
  drains_.forget_cancelled(requests);
  tell_drained();
  if (requests.empty()) return;
  DrainView view = drain_view({}, newest_step(*env_, paths_));
  view.has_ranks = [](const std::string&) { return true; };
  const std::int64_t now_ns = env_->monotonic_ns();
  answer_refused(drains_.take(now_ns, requests, hosts_, view));
  if (drains_.overdue(now_ns).has_value()) answer(drains_.begun());
  tell_drained();
}

// Takes drain requests while the run trains; returns false if there are none.
bool Launcher::look_at_drains() {
  const std::vector<DrainRequest> requests = read_drain_requests(*env_, paths_);
  drains_.forget_cancelled(requests);
  tell_drained();
  if (requests.empty()) return false;
  std::vector<std::string> names;
  for (const LaunchHost& host : hosts_) names.push_back(host.name);
  const DrainStep step =
      drains_.take(env_->monotonic_ns(), requests, hosts_, drain_view(names, newest_step(*env_, paths_)));
  answer_refused(step);
  if (step.stop.empty() && !step.leave.empty() && !mind_->is_leaving()) {
    const auto leaving = static_cast<int>(step.leave.size());
    if (request_restart(*env_, paths_, leaving).ok()) {
      mind_->leaves();
      answer(drains_.begun());
      say(fmt::format("host{} {} {} left: the run is started again without after its next step",
                      leaving == 1 ? "" : "s", fmt::join(step.leave, ", "), leaving == 1 ? "is" : "are"));
    }
  }
  return true;
}

// The launcher lays a start out on its hosts: how many ranks there are, where, and which of the config's settings
// change for them.

namespace {

void replace_setting(std::vector<std::string>& overrides, const std::string& key, std::int64_t value) {
  const std::string option = fmt::format("--{}=", key);
  std::erase_if(overrides, [&](const std::string& word) { return word.starts_with(option); });
  overrides.push_back(fmt::format("{}{}", option, value));
}

}  // namespace

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
  shape.given = ranks_by_host(hosts_, wanted.ranks);
  if (!hosts_.empty() && options_.hosts.empty() && options_.hostfile.empty())
    shape.hosts = list_of_hosts_left(hosts_, wanted.ranks);
  // A run that loses ranks goes on with as few as a start would have.
  if (wanted.min_copies > config_.elastic.min_data_parallel)
    replace_setting(shape.overrides, "elastic.min_data_parallel", wanted.min_copies);
  return shape;
}

void Launcher::say_narrower(const StartLayout& layout, int per_copy) {
  say(
      fmt::format("the hosts that are left have no room for a copy of the model on {} ranks: the run goes on "
                  "with {} rank{} a copy (parallel.tensor = {}, parallel.pipeline = {}), and the same bits",
                  per_copy, layout.tensor * layout.pipeline, layout.tensor * layout.pipeline == 1 ? "" : "s",
                  layout.tensor, layout.pipeline));
}

// Returns the layout with at least `min_ranks` ranks that a start has on the hosts that answer; none if they are too
// few.
std::optional<StartLayout> Launcher::layout_on(const std::vector<LaunchHost>& hosts, int min_ranks) const {
  const RanksWanted wanted = ranks_wanted();
  StartLayout layout{.pipeline = static_cast<int>(std::max<std::int64_t>(config_.parallel.pipeline, 1)),
                     .tensor = static_cast<int>(std::max<std::int64_t>(config_.parallel.tensor, 1))};
  if (const std::optional<int> ranks = ranks_on_hosts_left(hosts, wanted);
      ranks.has_value() && *ranks >= min_ranks) {
    layout.ranks = *ranks;
    return layout;
  }
  std::optional<Config> run = wanted.per_copy > 1 ? config_of_run() : std::nullopt;
  if (!run.has_value()) return std::nullopt;
  run->parallel.pipeline = layout.pipeline;
  run->parallel.pipeline_chunks = config_.parallel.pipeline_chunks;
  run->parallel.tensor = layout.tensor;
  return narrower_layout(*run, hosts, wanted, std::max(options_.min_ranks, min_ranks));
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
  const int group = shape.is_narrower ? layout.tensor : 1;
  shape.hosts = list_of_hosts_left(hosts_, layout.ranks, group);
  shape.given = ranks_by_host(hosts_, layout.ranks, group);
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

}  // namespace holdfast::launch
