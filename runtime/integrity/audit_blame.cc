#include "runtime/integrity/audit_blame.h"

namespace holdfast::integrity {

AuditBlame blame_after(const AuditTrial& first, const AuditTrial& second) {
  using enum AuditBlame::Who;
  const bool same_auditor = first.audit.auditor == second.audit.auditor;
  if (first.agrees() && second.agrees()) return {};
  const bool owner_differs = first.owner != second.owner;
  if (second.agrees()) return {.who = owner_differs ? owner : auditor, .lasts = false};
  if (first.agrees())
    return {.who = owner_differs ? owner : same_auditor ? auditor : unknown, .lasts = false};
  if (owner_differs) return {.who = owner, .lasts = true};
  const bool auditors_agree = first.auditor == second.auditor;
  if (same_auditor) return {.who = auditors_agree ? unknown : auditor, .lasts = true};
  return {.who = auditors_agree ? owner : unknown, .lasts = true};
}

}  // namespace holdfast::integrity
