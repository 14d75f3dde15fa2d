#include "runtime/integrity/verdict_policy.h"

#include <algorithm>

#include "runtime/core/check.h"

namespace holdfast::integrity {
namespace {

// Returns the action of a key that is "rollback", "save_and_stop" or "stop"; `otherwise` if it is another one, or if no
// roll-back is left.
VerdictAction drastic_action(const std::string& wanted, std::int64_t rollbacks_left,
                             VerdictAction otherwise) {
  if (wanted == "rollback" && rollbacks_left > 0) return VerdictAction::rollback;
  if (wanted == "save_and_stop") return VerdictAction::save_and_stop;
  return wanted == "stop" ? VerdictAction::stop : otherwise;
}

// Returns what becomes of numbers that are what data and weights say.
VerdictAction action_on_confirmed(const NumbersHistory& history, const Verdict& verdict,
                                  const VerdictConfig& config, std::int64_t rollbacks_left) {
  const bool may_skip = skips_left(history, verdict.step, config) > 0;
  const VerdictAction on_spike =
      drastic_action(config.on_spike, rollbacks_left,
                     config.on_spike == "clip"               ? VerdictAction::clip
                     : config.on_spike == "skip" && may_skip ? VerdictAction::skip
                                                             : VerdictAction::none);
  switch (verdict.kind) {
    case VerdictKind::spike:
      return on_spike;
    case VerdictKind::drift:
      return drastic_action(config.on_drift, rollbacks_left, VerdictAction::none);
    case VerdictKind::exploded:
      if (ends_steps(on_spike)) return on_spike;
      [[fallthrough]];
    case VerdictKind::nonfinite:
      return may_skip ? VerdictAction::skip
                      : drastic_action(config.on_nonfinite, rollbacks_left, VerdictAction::stop);
    case VerdictKind::fine:
    case VerdictKind::dead:
    case VerdictKind::corruption:
      break;
  }
  return VerdictAction::none;
}

// Returns the first step from which skipped ones count at `step`.
std::uint64_t window_begin(std::uint64_t step, const VerdictConfig& config) {
  const auto window = static_cast<std::uint64_t>(config.window_steps);
  return step > window ? step - window : 0;
}

// Returns the oldest skipped step that counts at `step`, or `step`.
std::uint64_t first_skipped(const NumbersHistory& history, std::uint64_t step, const VerdictConfig& config) {
  const std::vector<std::uint64_t>& skipped = history.skipped();
  const auto first = std::ranges::lower_bound(skipped, window_begin(step, config));
  return first == skipped.end() ? step : *first;
}

std::uint64_t first_of_drift(std::uint64_t step, const VerdictConfig& config) {
  const auto steps = static_cast<std::uint64_t>(config.drift_steps);
  return step > steps ? step - steps + 1 : 1;
}

}  // namespace

bool is_unrepeatable(const AttemptRecord& record) {
  return record.attempts >= largest_attempts && record.differing_ranks_last > 0 &&
         record.differing_ranks_first > 0;
}

std::int64_t skips_left(const NumbersHistory& history, std::uint64_t step, const VerdictConfig& config) {
  const std::uint64_t since = window_begin(step, config);
  return std::max<std::int64_t>(0, config.skips_max - history.skipped_since(since));
}

VerdictAction next_action(const NumbersHistory& history, const Verdict& of_last_attempt,
                          const AttemptRecord& record, const VerdictConfig& config,
                          std::int64_t rollbacks_left) {
  const VerdictKind kind = of_last_attempt.kind;
  if (config.preset != "guard") {
    return kind == VerdictKind::nonfinite ? drastic_action(config.on_nonfinite, 0, VerdictAction::stop)
                                          : VerdictAction::none;
  }
  if (record.attempts == 1) {
    const bool is_suspicious = kind != VerdictKind::fine && kind != VerdictKind::drift;
    if (is_suspicious) return VerdictAction::redo;
    return action_on_confirmed(history, of_last_attempt, config, rollbacks_left);
  }
  if (record.attempts == 2 && record.differing_ranks_last > 0) return VerdictAction::redo;
  if (is_unrepeatable(record)) return VerdictAction::stop;
  return action_on_confirmed(history, of_last_attempt, config, rollbacks_left);
}

VerdictAction action_on_hardware(VerdictAction otherwise, const HardwareFault& fault) {
  const bool may_stay =
      fault.state == HardwareState::recovered && (!fault.is_repeated || ends_run(otherwise));
  if (fault.can_leave && !may_stay) return VerdictAction::evict;
  if (fault.state == HardwareState::corrupted) return VerdictAction::rollback;
  return fault.state == HardwareState::lasts ? VerdictAction::stop : otherwise;
}

std::uint64_t rollback_window(const VerdictConfig& config) {
  constexpr std::int64_t intervals = 10;
  return static_cast<std::uint64_t>(intervals * config.rollback_steps);
}

std::uint64_t rollback_target(const NumbersHistory& history, const Verdict& verdict,
                              const VerdictConfig& config) {
  std::uint64_t first = verdict.step;
  if (verdict.kind == VerdictKind::drift) first = first_of_drift(verdict.step, config);
  if (verdict.kind == VerdictKind::nonfinite || verdict.kind == VerdictKind::exploded)
    first = first_skipped(history, verdict.step, config);
  return rollback_target(first, config.rollback_steps);
}

std::uint64_t needed_step(const NumbersHistory& history, std::uint64_t step, const VerdictConfig& config) {
  if (config.preset != "guard") return step;
  std::uint64_t needed = step;
  const auto need = [&](VerdictKind kind) {
    needed = std::min(needed, rollback_target(history, {.kind = kind, .step = step}, config));
  };
  if (config.on_spike == "rollback") need(VerdictKind::spike);
  if (config.on_drift == "rollback") need(VerdictKind::drift);
  if (config.on_nonfinite == "rollback" && first_skipped(history, step, config) < step)
    need(VerdictKind::nonfinite);
  return needed;
}

std::uint64_t rollback_target(std::uint64_t step, std::int64_t rollback_steps) {
  HF_CHECK(step > 0 && rollback_steps > 0);
  const auto interval = static_cast<std::uint64_t>(rollback_steps);
  const std::uint64_t last = (step - 1) / interval * interval;
  return last >= interval ? last - interval : 0;
}

}  // namespace holdfast::integrity
