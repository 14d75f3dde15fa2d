// The launcher writes its own events: between two starts, when no rank writes the log, and once the next
// start trains.
#include <string>
#include <utility>

#include "runtime/launch/launcher.h"
#include "runtime/run/log_reader.h"

namespace holdfast::inline launch {

void Launcher::log_fault(const StartEnd& end) {
  if (log_bytes(*env_, paths_) == 0) return;
  log_->others_have_written();
  EventLine& line = log_->line().begin("fault", env_->wall_time_us());
  log_->write(line.field("level", 2).field("step", end.step).field("reason", end.fault));
}

void Launcher::log_drains(std::uint64_t step) {
  if (drains_.leaving().empty()) return;
  log_->others_have_written();
  for (const std::string& host : drains_.leaving()) {
    EventLine& line = log_->line().begin("drain", env_->wall_time_us());
    log_->write(line.field("step", step).field("host", host));
  }
}

void Launcher::log_recovery(int ranks, std::uint64_t step) {
  const std::uint64_t reached = starts_.back().step;
  const std::int64_t duration_ms = (env_->monotonic_ns() - failed_ns_) / 1'000'000;
  log_->others_have_written();
  EventLine& line = log_->line().begin("recovery", env_->wall_time_us());
  const bool ended_as_asked = std::exchange(ended_as_asked_, false);
  if (!drains_.leaving().empty()) {
    line.field("reason", "drain");
  } else if (ended_as_asked) {
    line.field("reason", "growth");
  }
  line.field("level", 2).field("ranks_before", ranks_before_);
  line.field("ranks_after", ranks).field("lost_steps", reached > step ? reached - step : std::uint64_t{0});
  log_->write(line.field("duration_ms", duration_ms));
  failed_ns_ = env_->monotonic_ns();
}

}  // namespace holdfast::inline launch
