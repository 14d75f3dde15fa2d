#include "tools/chaos/chaos_record.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "runtime/run/event_reading.h"
#include "runtime/run/numbers_log.h"

namespace holdfast::chaos {

void WorkLossReader::read(const Json& json) {
  const std::int64_t time_us = event_time(json);
  if (event_kind(json).empty() || time_us == 0) return;
  if (const auto gap = event_as<GapEvent>(json); gap.has_value() && gap->is_of_steps()) {
    std::uint64_t& newest = open_.has_value() ? open_step_ : step_;
    newest = std::max(newest, *gap->last_step);  // its time is none of the writer's that died
    return;
  }
  if (const auto cost = event_as<FailureCostEvent>(json))
    reported_ = {.process_ms = cost->process_ms, .host_ms = cost->host_ms, .job_ms = cost->job_ms};
  if (const auto step = event_as<StepEvent>(json)) read_step(*step);
  if (const auto fault = event_as<FaultEvent>(json)) {
    if (!fault->is_aside()) open(fault->begin_us(), fault->step);
  }
  if (event_kind(json) == StartEvent::kind) {
    if (begun_ && !stopped_) open(last_us_, 0);  // nobody may have written how the one before ended
    begun_ = true;
    stopped_ = false;
    reported_.reset();
    begin_epoch();
  }
  if (const auto recovery = event_as<RecoveryEvent>(json)) {
    if (recovery->reason == RecoveryEvent::growth) begin_epoch();
  }
  if (const auto finish = event_as<FinishEvent>(json)) {
    if (finish->state != FinishEvent::failed) {
      open_.reset();
      stopped_ = true;
    }
  }
  last_us_ = std::max(last_us_, time_us);
}

void WorkLossReader::read_step(const StepEvent& event) {
  const std::uint64_t step = event.step;
  if (open_.has_value()) {
    open_->resumed_us = event.time_us;
    open_->steps = open_step_ >= step ? open_step_ - step + 1 : 0;
    losses_.push_back(*open_);
    open_.reset();
    begin_epoch();
  }
  step_ = step;
  step_us_ = event.time_us;
  if (++steps_of_epoch_ <= slow_steps) return;
  durations_ms_[static_cast<std::size_t>(steps_of_epoch_ - slow_steps - 1) % kept] =
      std::isnan(event.step_duration_ms) ? 0.0 : event.step_duration_ms;
}

void WorkLossReader::open(std::int64_t noticed_us, std::uint64_t step) {
  if (open_.has_value()) return;
  open_step_ = std::max(step_, step);  // a line of the log may have died with its writer
  const double step_ms = usual_step_ms();
  const double since_step_ms = static_cast<double>(noticed_us - step_us_) / 1e3;
  open_ = {.noticed_us = noticed_us,
           .step_ms = step_ms,
           .unfinished_ms = std::clamp(since_step_ms, 0.0, step_ms),
           .reported = reported_};
}

void WorkLossReader::begin_epoch() {
  usual_ms_ = usual_step_ms();
  steps_of_epoch_ = 0;
}

// Returns the median duration of this epoch's steps, or that of the epoch before while there are only slow
// steps.
double WorkLossReader::usual_step_ms() {
  const std::int64_t count = std::min(steps_of_epoch_ - slow_steps, static_cast<std::int64_t>(kept));
  if (count <= 0) return usual_ms_;
  std::array<double, kept> sorted = durations_ms_;
  std::sort(sorted.begin(), sorted.begin() + count);
  return sorted[static_cast<std::size_t>(count / 2)];
}

void StepClock::read(const Json& json) {
  const std::int64_t time_us = event_time(json);
  if (const auto step = event_as<StepEvent>(json)) ends_.push_back({step->time_us, step->step});
  if (event_kind(json) == StartEvent::kind) loads_us_.push_back(time_us);
  if (const auto fault = event_as<FaultEvent>(json))
    if (!fault->is_aside()) loads_us_.push_back(fault->begin_us());
  if (const auto verdict = event_as<VerdictEvent>(json)) {
    const bool goes_back = verdict->action == name_of(VerdictAction::rollback) ||
                           verdict->action == name_of(VerdictAction::evict);
    if (goes_back) loads_us_.push_back(time_us);
  }
  // The record of a growth is written after the first step with the new ranks.
  if (const auto recovery = event_as<RecoveryEvent>(json)) {
    if (recovery->reason == RecoveryEvent::growth && ends_.size() > 1)
      loads_us_.push_back(ends_[ends_.size() - 2].time_us);
  }
}

void StepClock::place(ChaosInjected& injected) const {
  const auto before = std::find_if(ends_.rbegin(), ends_.rend(),
                                   [&](const EndOfStep& end) { return end.time_us <= injected.time_us; });
  if (injected.step == 0) injected.step = before == ends_.rend() ? 1 : before->step + 1;
  std::int64_t loaded_us = 0;
  for (const std::int64_t load_us : loads_us_)
    if (load_us <= injected.time_us) loaded_us = std::max(loaded_us, load_us);
  injected.before_first_update = before == ends_.rend() || before->time_us <= loaded_us;
}

namespace {

bool each_host_must_have_ranks(const ChaosRun& run, std::span<const LaunchHost> hosts) {
  const ChaosLayout& layout = run.plan.layout;
  if (layout.pipeline != 1 || layout.tensor != 1 || layout.spares != 0 || run.starts.empty()) return false;
  int slots = 0;
  for (const LaunchHost& host : hosts) {
    if (host.slots <= 0) return false;
    slots += host.slots;
  }
  const bool same_names = std::ranges::all_of(run.starts.front(), [&](const auto& used) {
    return std::ranges::find(hosts, used.first, &LaunchHost::name) != hosts.end();
  });
  return slots == layout.ranks && same_names;
}

}  // namespace

std::optional<HostRanks> ranks_of_start(const Json& event) {
  const std::optional<StartEvent> start = event_as<StartEvent>(event);
  return start.has_value() ? start->hosts : std::nullopt;
}

std::string host_left_out(const ChaosRun& run, std::span<const LaunchHost> hosts, const std::string& here) {
  if (!each_host_must_have_ranks(run, hosts)) return "";
  for (const LaunchHost& host : hosts) {
    const bool met = std::ranges::any_of(run.injected, [&](const ChaosInjected& injected) {
      return (injected.host.empty() ? here : injected.host) == host.name || injected.peer == host.name;
    });
    if (met) continue;
    for (std::size_t i = 0; i < run.starts.size(); ++i) {
      const auto used = run.starts[i].find(host.name);
      if (used != run.starts[i].end() && used->second > 0) continue;
      return fmt::format("start {} of {} had no rank on host {}, to which nothing had happened", i + 1,
                         run.starts.size(), host.name);
    }
  }
  return "";
}

}  // namespace holdfast::chaos
