#include "runtime/verdict/verdict_policy.h"

#include <algorithm>
#include <array>

namespace holdfast::inline verdict {
namespace {

// Returns what becomes of numbers that are what data and weights say.
VerdictAction action_on_confirmed(const NumbersHistory& history, const Verdict& verdict,
                                  const VerdictConfig& config) {
  const bool may_skip = skips_left(history, verdict.step, config) > 0;
  if (verdict.kind == VerdictKind::nonfinite) return may_skip ? VerdictAction::skip : VerdictAction::stop;
  if (verdict.kind != VerdictKind::spike) return VerdictAction::commit;
  if (config.on_spike == "clip") return VerdictAction::clip;
  return config.on_spike == "skip" && may_skip ? VerdictAction::skip : VerdictAction::commit;
}

}  // namespace

std::string_view name_of(VerdictAction action) {
  constexpr std::array<std::string_view, 5> names = {"commit", "redo", "clip", "skip", "stop"};
  return names[static_cast<std::size_t>(action)];
}

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
                          const AttemptRecord& record, const VerdictConfig& config) {
  const VerdictKind kind = of_last_attempt.kind;
  if (config.preset != "guard") {
    return kind == VerdictKind::nonfinite ? VerdictAction::stop : VerdictAction::commit;
  }
  if (record.attempts == 1) {
    const bool in_doubt = kind != VerdictKind::fine && kind != VerdictKind::drift;
    return in_doubt ? VerdictAction::redo : VerdictAction::commit;
  }
  if (record.attempts == 2 && record.differing_ranks_last > 0) return VerdictAction::redo;
  if (is_unrepeatable(record)) return VerdictAction::stop;
  return action_on_confirmed(history, of_last_attempt, config);
}

}  // namespace holdfast::inline verdict
