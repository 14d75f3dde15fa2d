// The launcher writes its own events: between two starts, when no rank writes the log, and once the next
// start trains.
#include <string>
#include <utility>

#include "runtime/launch/launcher.h"
#include "runtime/launch/run_progress.h"
#include "runtime/run/event_reading.h"

namespace holdfast::launch {

void Launcher::log_fault(const StartEnd& end) {
  if (log_bytes(*env_, paths_) == 0) return;
  log_->others_have_written();
  log_->write(FaultEvent{.time_us = env_->wall_time_us(),
                         .level = FaultEvent::by_launcher,
                         .step = end.step,
                         .reason = end.fault});
}

void Launcher::log_drains(std::uint64_t step) {
  if (drains_.leaving().empty()) return;
  log_->others_have_written();
  for (const std::string& host : drains_.leaving())
    log_->write(DrainEvent{.time_us = env_->wall_time_us(), .step = step, .host = host});
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
