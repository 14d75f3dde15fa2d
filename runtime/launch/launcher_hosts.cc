// The launcher watches its hosts while a run trains: when they have room for more ranks (scale_up.h), or the
// run should leave one of them (drains.h), it asks the run to end after its next step, and starts it again.
#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "runtime/core/units.h"
#include "runtime/launch/host_probe.h"
#include "runtime/launch/launcher.h"
#include "runtime/launch/named_hosts.h"
#include "runtime/launch/run_progress.h"
#include "runtime/os/foreign_text.h"
#include "runtime/run/hardware_record.h"
#include "runtime/run/launch_record.h"
#include "runtime/run/log_reader.h"
#include "runtime/run/save_requests.h"

namespace holdfast::inline launch {
namespace {

constexpr std::int64_t answer_limit_ms = 5'000;
constexpr int nothing_lives = 0, something_lives = 1;  // exit codes of HostCommand::look

}  // namespace

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
  if (may_grow && config_.elastic.grow == "auto" && !asked_for_another_start_) look_for_room();
  return {};
}

void Launcher::look_for_room() {
  if (question_ != nullptr) {
    if (!question_->answers.finished()) return;
    const Result<std::vector<std::optional<int>>> answers = std::exchange(question_, nullptr)->answers.take();
    if (answers.ok()) {
      ask_for_another_start(*answers);
    } else {
      scale_up_.postpone(env_->monotonic_ns());
    }
  } else if (scale_up_.is_due(env_->monotonic_ns())) {
    ask_for_room();
  }
}

// Reads from the log of the run where its ranks are.
void Launcher::look_at_ranks() {
  const std::uint64_t bytes = log_bytes(*env_, paths_);
  if (bytes == seen_bytes_) return;
  const std::optional<std::map<std::string, int>> ranks = newest_hosts(*env_, paths_, seen_bytes_);
  seen_bytes_ = bytes;
  if (!ranks.has_value()) return;
  const std::int64_t now_ns = env_->monotonic_ns();
  if (!std::exchange(trains_, true)) {
    scale_up_.began(now_ns, *ranks);
    pause_unfit_hosts(now_ns, {});
    return;
  }
  const std::vector<std::string> lost = scale_up_.saw(now_ns, *ranks);
  pause_unfit_hosts(now_ns, lost);
  for (const std::string& host : lost) {
    if (scale_up_.pauses().failures(host) != GrowingPauses::max_failures) continue;
    say(fmt::format("host {} has lost its ranks {} times soon after it got them back: it is left out", host,
                    GrowingPauses::max_failures));
  }
}

// Pauses the use of hosts whose ranks have left because they are unfit: ranks that the run got there would leave
// again. `counted`: hosts for which this has just been counted.
void Launcher::pause_unfit_hosts(std::int64_t now_ns, const std::vector<std::string>& counted) {
  if (hosts_.size() < 2) return;               // on one host the run grows by itself, and there is no other
  std::map<std::string, std::string> reasons;  // by host
  for (const LaunchedRank& rank : read_launched_ranks(*env_, start_directory_)) {
    if (rank.unfit.has_value() && unfit_ranks_.insert(rank.rank).second)
      reasons.emplace(rank.host, printable(rank.unfit->sentence));
  }
  for (const auto& [host, reason] : reasons) {
    if (std::ranges::find(counted, host) == counted.end()) scale_up_.pauses().failed(host, now_ns);
    const std::int64_t pause_ms = (scale_up_.pauses().until_ns(host) - now_ns) / 1'000'000;
    const std::string sentence =
        scale_up_.pauses().is_condemned(host)
            ? fmt::format("host {} is left out for good: {}", host, reason)
            : fmt::format("host {} is left out for {}: {}", host, format_duration(pause_ms), reason);
    say(sentence);
    log_excluded(host, sentence);
  }
}

void Launcher::ask_for_room() {
  const std::int64_t now_ns = env_->monotonic_ns();
  read_hosts_again();
  asked_ = hosts_;
  for (LaunchHost& host : asked_)
    host.answers = scale_up_.is_worth_a_start(host.name, now_ns) && !drains_.leaves(host.name);
  const bool grows_itself = asked_.size() == 1;  // on one host the run grows by itself
  if (grows_itself || layout_on(asked_).value_or(StartLayout{.ranks = 0}).ranks <= scale_up_.ranks()) {
    scale_up_.postpone(now_ns);
    return;
  }
  std::vector<std::string> words = arguments_of(HostCommand::look, token_, "");
  words.insert(words.begin(), places_.program);
  const std::int64_t until_ns = now_ns + answer_limit_ms * 1'000'000;
  question_ = std::make_unique<Question>();
  const auto left_ms = [env = env_, until_ns, &given_up = question_->given_up]() -> std::int64_t {
    return given_up ? 0 : (until_ns - env->monotonic_ns()) / 1'000'000;
  };
  question_->answers.start(
      *env_, "host probe",
      [env = env_, hosts = asked_, words, left_ms]() -> Result<std::vector<std::optional<int>>> {
        return ask_hosts(*env, hosts, words, left_ms);
      });
}

// Reads the hosts again, because the hostfile, or the output of the command, may change while a run lasts.
void Launcher::read_hosts_again() {
  if (!hosts_may_change(options_)) return;
  Result<std::vector<LaunchHost>> named = named_hosts(*env_, options_);
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
      host.is_suspected = known->is_suspected;
    }
  }
  for (const LaunchHost& host : hosts_) {
    if (std::ranges::find(*named, host.name, &LaunchHost::name) == named->end())
      say(fmt::format("host {} is no longer in {}: the next start is without it", host.name,
                      source_of_hosts(options_)));
  }
  hosts_ = std::move(named).value();
}

// Says which hosts gave wrong numbers lately. They are used all the same. A damaged record is told by the ranks.
void Launcher::say_findings() const {
  const HardwareRecord record = read_hardware_record(*env_, paths_).record;
  for (const std::string& sentence :
       sentences_of_hosts(record, paths_, env_->wall_time_us(), config_.verdict.findings_window_ms))
    say(sentence);
}

void Launcher::forget_earlier_drains() {
  for (const DrainRequest& request : read_drain_requests(*env_, paths_))
    static_cast<void>(remove_drain_request(*env_, paths_, request.host).ok());
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
          .has_ranks = [&](const std::string& host) { return scale_up_.may_have_ranks(host, names); },
          .has_room = [&](const std::vector<LaunchHost>& hosts) { return layout_on(hosts).has_value(); }};
}

// Answers the requests, and logs the refused ones.
void Launcher::answer_refused(const DrainStep& step) {
  answer(step.answers);
  for (const DrainRequest& refused : step.answers) {
    if (!refused.sentence.empty())
      say(fmt::format("host {} is not drained: {}", refused.host, refused.sentence));
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
  if (requests.empty()) return;
  DrainView view = drain_view({}, newest_step(*env_, paths_));
  view.has_ranks = [](const std::string&) { return true; };
  const std::int64_t now_ns = env_->monotonic_ns();
  answer_refused(drains_.take(now_ns, requests, hosts_, view));
  if (drains_.overdue(now_ns).has_value()) answer(drains_.begun());
}

// Takes drain requests while the run trains; returns false if there are none.
bool Launcher::look_at_drains() {
  const std::vector<DrainRequest> requests = read_drain_requests(*env_, paths_);
  drains_.forget_cancelled(requests);
  if (requests.empty()) return false;
  std::vector<std::string> names;
  for (const LaunchHost& host : hosts_) names.push_back(host.name);
  const DrainStep step =
      drains_.take(env_->monotonic_ns(), requests, hosts_, drain_view(names, newest_step(*env_, paths_)));
  answer_refused(step);
  if (step.stop.empty() && !step.leave.empty() && !asked_for_another_start_) {
    const auto leaving = static_cast<int>(step.leave.size());
    if (request_restart(*env_, paths_, leaving).ok()) {
      asked_for_another_start_ = true;
      answer(drains_.begun());
      say(fmt::format("host{} {} {} left: the run is started again without after its next step",
                      leaving == 1 ? "" : "s", fmt::join(step.leave, ", "), leaving == 1 ? "is" : "are"));
    }
  }
  return true;
}

void Launcher::give_up_asking() {
  if (question_ == nullptr) return;
  question_->given_up = true;
  question_.reset();  // waits until the asking ends
}

void Launcher::ask_for_another_start(const std::vector<std::optional<int>>& codes) {
  for (std::size_t i = 0; i < asked_.size(); ++i) {
    // On a host that was left out, a living process is one that could not be killed, so a start cannot use
    // the host.
    const bool in_use = hosts_[i].answers;
    const bool answers = codes[i] == nothing_lives || (codes[i] == something_lives && in_use);
    asked_[i].answers = asked_[i].answers && answers;
  }
  const int room = layout_on(asked_).value_or(StartLayout{.ranks = 0}).ranks;
  if (room <= scale_up_.ranks()) {
    scale_up_.postpone(env_->monotonic_ns());
    return;
  }
  const Result<void> asked = request_restart(*env_, paths_, /*hosts_leaving=*/0);
  if (!asked.ok()) {
    scale_up_.postpone(env_->monotonic_ns());
    return;
  }
  asked_for_another_start_ = true;
  say(fmt::format(
      "the run has {} ranks, and its hosts have room for {}: it is started again after its next step",
      scale_up_.ranks(), room));
}

}  // namespace holdfast::inline launch
