// Says who computed wrong numbers when the two ranks of a lane audit do not have the same bits. Pure.
//
// The step is computed again, with another auditor where there are three replicas or more. The rank whose bits
// are not those of its own first time is to blame, or the one that two others contradict. Where two replicas
// differ for good, nobody can tell which one is right.
#pragma once

#include <cstdint>
#include <string_view>

#include "runtime/core/digest.h"
#include "runtime/integrity/audit_plan.h"

namespace holdfast::integrity {

// AuditTrial is an audit as one pair of ranks made it: their digests of the lane's gradients. The ranks of a
// pair are at the same stage and slice of their copies of the model.
struct AuditTrial {
  LaneAudit audit = {};
  Digest owner = {}, auditor = {};
  bool agrees() const { return owner == auditor; }
};

struct AuditBlame {
  enum class Who : std::uint8_t { nobody, owner, auditor, unknown };
  Who who = Who::nobody;  // as of the first trial
  bool lasts = false;     // the second trial was wrong, too: the same must be expected of the next steps
};

// Returns who is to blame after two trials at one step.
AuditBlame blame_after(const AuditTrial& first, const AuditTrial& second);

}  // namespace holdfast::integrity
