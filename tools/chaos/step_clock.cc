#include "tools/chaos/step_clock.h"

#include <algorithm>

#include "runtime/run/event_reading.h"
#include "runtime/run/numbers_log.h"

namespace holdfast::chaos {

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
  // That of a growth is written after the first step with the new ranks.
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

}  // namespace holdfast::chaos
