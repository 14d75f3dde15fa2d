#include "tools/chaos/work_loss.h"

#include <algorithm>
#include <cmath>

#include "runtime/core/json.h"
#include "runtime/run/event_reading.h"

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

}  // namespace holdfast::chaos
