#include "runtime/integrity/step_check.h"

#include "runtime/integrity/link_check.h"
#include "runtime/integrity/numbers_check.h"
#include "runtime/integrity/state_check.h"

namespace holdfast::integrity {
namespace {

// Adds what was reported of the same step before.
void put_before(std::optional<VerdictEvent> earlier, CheckedStep& checked) {
  if (!earlier.has_value() || !checked.report.has_value()) {
    if (earlier.has_value()) checked.report = std::move(earlier);
    return;
  }
  VerdictEvent& report = *checked.report;
  report.reason = earlier->reason + "; then " + report.reason;
  report.attempts += earlier->attempts;
  if (!report.rank.has_value()) {
    report.rank = earlier->rank;
    report.host = earlier->host;
    report.device = earlier->device;
  }
}

// Checks the state before others are accused of what a change in it explains. The state of the run was right before the
// update of the step before.
Result<CheckedStep> check_held_state(const StepAccess& step, const Attempt& attempt) {
  if (attempt.votes.corrupted > 0) return check_found_state(step, attempt, 0);
  if (attempt.run_states_differ()) return check_found_state(step, attempt, 1);
  return CheckedStep{.attempt = attempt};
}

Result<CheckedStep> check_state_of_copies(const StepAccess& step, const Attempt& attempt) {
  if (!attempt.audit_failed() && !attempt.parameters_differ()) return CheckedStep{.attempt = attempt};
  HF_TRY(std::optional<CheckedStep> corrupted, check_state(step, attempt));
  return std::move(corrupted).value_or(CheckedStep{.attempt = attempt});
}

}  // namespace

// Runs the checks in order. A step that came out right at the second time is checked further: the step may have a bad sample besides. Links come before
// the numbers that are computed from what they changed, which are not the ranks' fault.
Result<CheckedStep> check_step(const StepAccess& step, const Attempt& first) {
  CheckedStep checked{.attempt = first};
  for (const auto check : {check_held_state, check_products, check_links, check_state_of_copies,
                           check_parameters, check_lane, check_numbers}) {
    HF_TRY(CheckedStep next, check(step, checked.attempt));
    put_before(std::move(checked.report), next);
    checked = std::move(next);
    if (checked.action != VerdictAction::none) break;
  }
  return checked;
}

}  // namespace holdfast::integrity
