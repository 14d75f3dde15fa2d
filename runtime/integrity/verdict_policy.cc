#include "runtime/integrity/verdict_policy.h"

#include <algorithm>

#include "runtime/core/check.h"

namespace holdfast::integrity {
namespace {

// Returns what becomes of numbers that are what data and weights say.
VerdictAction action_on_confirmed(const NumbersHistory& history, const Verdict& verdict,
                                  const VerdictConfig& config, std::int64_t rollbacks_left) {
  const bool may_skip = skips_left(history, verdict.step, config) > 0;
  if (verdict.kind == VerdictKind::nonfinite) return may_skip ? VerdictAction::skip : VerdictAction::stop;
  if (verdict.kind != VerdictKind::spike) return VerdictAction::none;
  if (config.on_spike == "clip") return VerdictAction::clip;
  if (config.on_spike == "rollback")
    return rollbacks_left > 0 ? VerdictAction::rollback : VerdictAction::none;
  return config.on_spike == "skip" && may_skip ? VerdictAction::skip : VerdictAction::none;
}

}  // namespace

bool is_unrepeatable(const AttemptRecord& record) {
  return record.attempts >= largest_attempts && record.differing_ranks_last > 0 &&
         record.differing_ranks_first > 0;
}

std::int64_t skips_left(const NumbersHistory& history, std::uint64_t step, const VerdictConfig& config) {
  const auto window = static_cast<std::uint64_t>(config.window_steps);
  const std::uint64_t since = step > window ? step - window : 0;
  return std::max<std::int64_t>(0, config.skips_max - history.skipped_since(since));
}

VerdictAction next_action(const NumbersHistory& history, const Verdict& of_last_attempt,
                          const AttemptRecord& record, const VerdictConfig& config,
                          std::int64_t rollbacks_left) {
  const VerdictKind kind = of_last_attempt.kind;
  if (config.preset != "guard") {
    return kind == VerdictKind::nonfinite ? VerdictAction::stop : VerdictAction::none;
  }
  if (record.attempts == 1) {
    const bool is_suspicious = kind != VerdictKind::fine && kind != VerdictKind::drift;
    return is_suspicious ? VerdictAction::redo : VerdictAction::none;
  }
  if (record.attempts == 2 && record.differing_ranks_last > 0) return VerdictAction::redo;
  if (is_unrepeatable(record)) return VerdictAction::stop;
  return action_on_confirmed(history, of_last_attempt, config, rollbacks_left);
}

VerdictAction action_on_hardware(VerdictAction otherwise, const HardwareFault& fault) {
  const bool may_stay =
      fault.state == HardwareState::recovered && (!fault.is_repeated || otherwise == VerdictAction::stop);
  if (fault.can_leave && !may_stay) return VerdictAction::evict;
  if (fault.state == HardwareState::corrupted) return VerdictAction::rollback;
  return fault.state == HardwareState::lasts ? VerdictAction::stop : otherwise;
}

std::uint64_t rollback_window(const VerdictConfig& config) {
  constexpr std::int64_t intervals = 10;
  return static_cast<std::uint64_t>(intervals * config.rollback_steps);
}

std::uint64_t rollback_target(std::uint64_t step, std::int64_t rollback_steps) {
  HF_CHECK(step > 0 && rollback_steps > 0);
  const auto interval = static_cast<std::uint64_t>(rollback_steps);
  const std::uint64_t last = (step - 1) / interval * interval;
  return last >= interval ? last - interval : 0;
}

}  // namespace holdfast::integrity
