#include "runtime/health/health_watch.h"

#include <fmt/core.h>

#include <algorithm>
#include <mutex>
#include <utility>
#include <vector>

#include "runtime/os/console.h"
#include "runtime/os/thread.h"
#include "runtime/run/event_log.h"

namespace holdfast::health {
namespace {

constexpr std::int64_t processor_share = 1000;  // a look may take one part of so many of a processor
constexpr std::int64_t leave_within_s = 30;     // where the host must not be used any longer

}  // namespace

std::string_view name_of(HealthAnswer answer) {
  constexpr std::array<std::string_view, 4> names = {"told", "would ask to leave", "nobody to ask",
                                                     "asked to leave"};
  return names[static_cast<std::size_t>(answer)];
}

std::string_view clause_of(HealthAnswer answer) {
  if (answer == HealthAnswer::would_ask)
    return "; with health.preset = \"guard\" the run would leave the host";
  if (answer == HealthAnswer::nobody)
    return "; the run should leave the host, which only `holdfast launch` makes it do";
  return answer == HealthAnswer::ask ? "; the run is asked to leave the host" : "";
}

HealthAnswer answer_to(HealthAction action, bool acts, bool has_launcher) {
  if (action < HealthAction::drain) return HealthAnswer::told;
  if (!acts) return HealthAnswer::would_ask;
  return has_launcher ? HealthAnswer::ask : HealthAnswer::nobody;
}

std::string line_of(const HealthFinding& finding, HealthAnswer answer, const std::string& host) {
  return fmt::format("host {}: {} ({}){}", host, finding.sentence, finding.rule, clause_of(answer));
}

HealthEvent event_of(const HealthFinding& finding, HealthAnswer answer, const std::string& host,
                     std::span<const HealthRule> rules) {
  HealthEvent event{.time_us = finding.time_ms * 1000,
                    .host = host,
                    .rule = finding.rule,
                    .part = finding.part,
                    .value = finding.value,
                    .action = std::string(health::name_of(finding.action)),
                    .answer = std::string(name_of(answer)),
                    .reason = finding.sentence};
  const auto rule = std::ranges::find(rules, finding.rule, &HealthRule::name);
  if (rule == rules.end()) return event;
  event.reading = fmt::format("{}{}{}", rule->source, rule->reading.empty() ? "" : ": ", rule->reading);
  if (rule->test != HealthTest::xid) event.threshold = rule->threshold;
  return event;
}

DrainRequest request_of(const HealthFinding& finding, const std::string& host) {
  return {.host = host,
          .state = DrainRequest::State::sick,
          .deadline_s = finding.action > HealthAction::drain ? leave_within_s : 0,
          .sentence =
              fmt::format("{} ({}, {})", finding.sentence, finding.rule, health::name_of(finding.action))};
}

std::int64_t pause_after_look_ms(std::int64_t every_ms, std::int64_t processor_ns) {
  return std::max(every_ms, processor_ns * processor_share / 1'000'000);
}

class HealthWatch::State {
 public:
  State(Env& env, Settings settings)
      : env_(&env), settings_(std::move(settings)), host_(env.host_name()), changed_(env.make_condition()) {}

  static Result<void> begin(const std::shared_ptr<State>& state) {
    HF_TRY(state->thread_, state->env_->start_thread("health", [state] { state->work(); }));
    return {};
  }

  void end() {
    bool looks = false;
    {
      const std::lock_guard lock(mutex_);
      stops_ = true;
      looks = looks_;
    }
    changed_->notify();
    if (looks) {
      thread_->leave();
    } else {
      thread_->wait();
    }
    thread_.reset();  // it holds this object
  }

 private:
  void work() {
    env_->lower_thread_priority();
    HostSources sources(*env_, settings_.places, settings_.open_gpus ? settings_.open_gpus() : GpuReader());
    HealthJudge judge(settings_.rules);
    while (true) {
      const std::int64_t begin_ns = env_->thread_processor_ns();
      for (const HealthReading& reading : sources.look()) {
        for (const HealthFinding& finding : judge.take(reading)) tell(finding);
      }
      write();
      const std::int64_t pause_ms =
          pause_after_look_ms(settings_.every_ms, env_->thread_processor_ns() - begin_ns);
      std::unique_lock lock(mutex_);
      looks_ = false;
      if (changed_->wait_at_most(lock, pause_ms, [this] { return stops_; })) return;
      looks_ = true;
    }
  }

  void tell(const HealthFinding& finding) {
    const HealthAnswer answer = answer_to(finding.action, settings_.acts, settings_.has_launcher);
    if (finding.action != HealthAction::ignore)
      write_to_console(stderr, fmt::format("holdfast guard: {}\n", line_of(finding, answer, host_)));
    events_.push_back(event_of(finding, answer, host_, settings_.rules));
    const bool is_worse = !request_.has_value() || request_->deadline_s == 0;
    if (answer == HealthAnswer::ask && is_worse) request_ = request_of(finding, host_);
  }

  // The log is begun by the ranks; where run.directory is local to each host, there is none on most of them.
  void write() {
    if (request_.has_value() && ask_to_leave(*env_, settings_.paths, *request_).ok()) request_.reset();
    if (log_.has_value()) log_->retry();
    if (events_.empty()) return;
    const Result<FileStatus> log = env_->status(settings_.paths.events());
    if (!log.ok() || !log->exists) return;
    if (!log_.has_value()) log_.emplace(*env_, settings_.paths.events());
    log_->others_have_written();
    for (const HealthEvent& event : std::exchange(events_, {})) log_->write(event);
  }

  Env* env_;
  Settings settings_;
  std::string host_;
  std::unique_ptr<Thread> thread_;
  std::mutex mutex_;  // guards `looks_` and `stops_`
  const std::unique_ptr<Condition> changed_;
  bool looks_ = true, stops_ = false;
  // These belong to the thread.
  std::vector<HealthEvent> events_;           // that are not written
  std::optional<DrainRequest> request_ = {};  // likewise
  std::optional<EventLog> log_ = {};
};

Result<std::unique_ptr<HealthWatch>> HealthWatch::begin(Env& env, Settings settings) {
  auto state = std::make_shared<State>(env, std::move(settings));
  HF_TRY_VOID(State::begin(state));
  return std::unique_ptr<HealthWatch>(new HealthWatch(std::move(state)));
}

HealthWatch::~HealthWatch() {
  state_->end();
}

}  // namespace holdfast::health
