// Judges a step whose lane audit failed: two ranks do not have the same bits of one lane's gradients
// (verdict/audit_plan.h). The step is computed again, and whose bits changed, or are contradicted, is to blame
// (verdict/audit_blame.h). All ranks call it together, before the update, and come to the same result.
//
// The second attempt has another auditor where there are three replicas or more. If the first one is to blame,
// it audits once more in a third attempt: nobody else has looked at what it computes now.
#pragma once

#include "runtime/core/result.h"
#include "runtime/train/audited_step.h"
#include "runtime/train/worker.h"

namespace holdfast::train {

// Errors: those of attempt_again().
Result<AuditedStep> judge_audit(Worker& worker, const Attempt& first);

}  // namespace holdfast::train
