#include "runtime/chaos/work_loss.h"

#include <algorithm>
#include <string>

#include "runtime/core/json.h"
#include "runtime/run/event_reading.h"

namespace holdfast::inline chaos {
namespace {

std::int64_t time_of(const Json& event, const char* key = "time_us") {
  return static_cast<std::int64_t>(std::min(count_of(event, key), std::uint64_t{1} << 62));
}

ReportedCost reported_by(const Json& event) {
  const auto figure = [&](const char* key) {
    const double value = number_of(event, key, -1.0);
    return value >= 0.0 ? std::optional(value) : std::nullopt;
  };
  return {.process_ms = figure("process_ms"), .host_ms = figure("host_ms"), .job_ms = figure("job_ms")};
}

}  // namespace

void WorkLossReader::read(const Json& event) {
  const std::string name = text_of(event, "event");
  const std::int64_t time_us = time_of(event);
  if (name.empty() || time_us == 0) return;
  if (name == "failure_cost") reported_ = reported_by(event);
  if (name == "step") read_step(event, time_us);
  if (name == "fault") {
    const std::string what = text_of(event, "what");
    const bool lost_ranks = what != "save" && what != "replica" && what != "upload" && what != "spare";
    const std::int64_t noticed_us = time_of(event, "noticed_us");
    if (lost_ranks) open(noticed_us > 0 ? std::min(noticed_us, time_us) : time_us, count_of(event, "step"));
  }
  if (name == "start") {
    if (begun_ && !stopped_) open(last_us_, 0);  // nobody may have written how the one before ended
    begun_ = true;
    stopped_ = false;
    reported_.reset();
    begin_epoch();
  }
  if (name == "recovery" && text_of(event, "reason") == "growth") begin_epoch();
  if (name == "finish" && text_of(event, "state") != "failed") {
    open_.reset();
    stopped_ = true;
  }
  last_us_ = std::max(last_us_, time_us);
}

void WorkLossReader::read_step(const Json& event, std::int64_t time_us) {
  const std::uint64_t step = count_of(event, "step");
  // The next leader wrote this event after the fault, though the event is older (missing_steps.h).
  if (open_.has_value() && count_of(event, "restored_us") > 0) {
    open_step_ = std::max(open_step_, step);
    return;
  }
  if (open_.has_value()) {
    open_->resumed_us = time_us;
    open_->steps = open_step_ >= step ? open_step_ - step + 1 : 0;
    losses_.push_back(*open_);
    open_.reset();
    begin_epoch();
  }
  step_ = step;
  step_us_ = time_us;
  if (++steps_of_epoch_ <= slow_steps) return;
  durations_ms_[static_cast<std::size_t>(steps_of_epoch_ - slow_steps - 1) % kept] =
      number_of(event, "step_duration_ms", 0.0);
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

}  // namespace holdfast::inline chaos
