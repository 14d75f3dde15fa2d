// Judges a step whose lane audit failed: two ranks do not have the same bits of one lane's gradients
// (verdict/audit_plan.h). The step is computed again, and whose bits changed, or are contradicted, is to blame
// (verdict/audit_blame.h). All ranks call it together, before the update, and come to the same result.
//
// The second attempt has another auditor where there are three replicas or more. If the first one is to blame,
// it audits once more in a third attempt: nobody else has looked at what it computes now.
#pragma once

#include <vector>

#include "runtime/core/result.h"
#include "runtime/run/event.h"
#include "runtime/train/step_attempt.h"
#include "runtime/train/worker.h"
#include "runtime/verdict/audit_blame.h"

namespace holdfast::inline train {

struct AuditedStep {
  Attempt attempt = {};  // the last one, whose gradients are those in memory
  // The wrong numbers last: no attempt of this step can be trusted while that rank takes part.
  bool lasts = false;
  // Newest step whose state no wrong numbers of that rank can be in, as far as audits say; 0: they say nothing.
  std::uint64_t sound_step = 0;
  std::vector<int> to_blame = {};  // ranks of the communicator, ascending; empty: it is not known
  // The one rank to blame has computed wrong numbers before, within verdict.findings_window.
  bool is_repeated = false;
  VerdictEvent report = {};  // without time_us and action
};

// Errors: those of attempt_again().
Result<AuditedStep> judge_audit(Worker& worker, const Attempt& first);

}  // namespace holdfast::inline train
