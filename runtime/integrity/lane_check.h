// The lane audit: at some steps one lane of each replica is computed by another replica, too, and the bits of its
// gradients are compared. All do so at the same time, so an audit takes the time of one lane, and proves all replicas.
// The lanes of a replica and its auditors come up in turn. Where bits differ the step is computed again, with other
// auditors where there are three replicas or more: the replica whose bits are not those of its own first time is the
// suspect, or the one that two others contradict. Where two replicas differ for good, nobody can tell which one is right.
//
// The plan and the attribution are pure.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/digest.h"
#include "parallel/data/buckets.h"
#include "parallel/pipeline/schedule.h"
#include "runtime/core/digest.h"
#include "runtime/core/memory_plan.h"
#include "runtime/core/result.h"
#include "runtime/device/device.h"
#include "runtime/integrity/check_record.h"

namespace holdfast::integrity {

// Returns the audit of a step, or none. `every_steps`: interval between audits; 0: there are none. `retry`:
// number of the attempt at the step, from 0 on; with three replicas or more each has other auditors.
std::optional<LaneAudit> audit_at(std::uint64_t step, std::int64_t every_steps, int lanes, int replicas,
                                  int retry = 0);

// Returns the newest step of an audit after `since`, the step at which the ranks began, up to `step`; 0: there was none.
std::uint64_t proved_step(std::uint64_t since, std::uint64_t step, std::int64_t every_steps);

// Returns the interval at which audits take at most 0.15 % of the time of steps with so many waves of lanes:
// the lane and the known products of an audit (product_check.h) take the time of up to two lanes, and
// the digests of parameters a few hundredths of one. `shape`: of what the pipeline of a rank runs without draining; a
// lane alone fills and drains it, too.
std::int64_t affordable_audit_interval(int waves, const ScheduleShape& shape = {});

// LaneDigests holds the digests of one lane's gradients, by bucket: as the rank that runs the lane in any case
// computed them, and as a rank did that computed the lane once more. The device makes them where each bucket is
// complete, before it is sent or overwritten.
class LaneDigests {
 public:
  enum class Of { owner, auditor };
  // Reserves its memory in `plan`. `buckets` and `device` outlive this object.
  LaneDigests(const BucketPlan& buckets, Device& device, MemoryPlan& plan);
  // Binds the memory, once; `gradients` is the flat gradient buffer of this rank's lanes.
  void bind(const MemoryArena& arena, const float* gradients);

  // Launches the digest of a bucket whose gradients of the lane are complete in the queue.
  void launch(Of of, int bucket);
  // Returns the digest of all buckets. The device has run what was launched for them.
  Digest total(Of of) const;

 private:
  std::span<DigestWords> words(Of of) const;

  const BucketPlan* buckets_;
  Device* device_;
  MemoryPlan::Slot slot_;
  const float* gradients_ = nullptr;
  DigestWords* words_ = nullptr;
};

// Returns what a rank adds to CheckVotes::audit. Each lane at each stage and slice has an odd weight of its own that
// looks random, so that what differs in one does not make up for what differs in another.
Digest audit_term(const AuditDigests& digests, const LaneAudit& audit, const MeshCoordinate& of);

// AuditTrial is the audit of one lane as a pair of ranks made it: their digests of the lane's gradients. The ranks of a
// pair are at the same stage and slice of their copies of the model.
struct AuditTrial {
  int auditor = 0;  // replica
  Digest by_owner = {}, by_auditor = {};
  bool agrees() const { return by_owner == by_auditor; }
};

// AuditAttribution says who computed wrong numbers.
struct AuditAttribution {
  enum class Who : std::uint8_t { nobody, owner, auditor, unknown };
  Who who = Who::nobody;  // as of the first trial
  bool lasts = false;     // the second trial was wrong, too: the same must be expected of the next steps
};

// Returns whose numbers were wrong after two trials of one lane at a step.
AuditAttribution attribute(const AuditTrial& first, const AuditTrial& second);

// LaneTrials holds what one rank computed in the trials.
struct LaneTrials {
  std::array<std::string, 2> as_owner = {}, as_auditor = {};
  bool restored_parameters = false;  // Attempt::restored_parameters

  static void visit_fields(auto& self, auto&& visit) {
    visit("as_owner", self.as_owner);
    visit("as_auditor", self.as_auditor);
    visit("restored_parameters", self.restored_parameters);
  }
};

using LaneRecords = CheckRecords<LaneTrials>;

// LaneSuspects says whose numbers were wrong.
struct LaneSuspects {
  std::vector<int> ranks = {};  // of the communicator, ascending; empty: it is not known
  bool by_parameters = false;   // they computed with parameters that were not those of the owners
  // A lane that was not computed alike in the first trial, one of a suspect where there is one, and who computed it.
  int lane = 0, owner = 0, auditor = 0;
  std::vector<int> replicas = {};  // those that may have computed wrong, ascending
};

// Returns whose numbers were wrong: the ranks that compute products with known results wrong, which is proof, while two
// replicas that are wrong alike accuse a right one; else the ranks whose parameters were restored between the trials,
// which explains all that differed in the first one alone; else all ranks of the copy of the model that computed wrong,
// because what one of them computes goes to the others, so its own gradients may be right and theirs wrong. It is known
// where one replica explains all lanes that were not computed alike. `audits`: of the trials, of which the first one
// failed; `lasts`: the second one failed, too.
LaneSuspects attribute(const LaneRecords& records, const std::array<LaneAudit, 2>& audits, bool lasts,
                       std::span<const Suspect> with_wrong_products = {});

// Checks a step whose audit failed. All ranks call it together, before the update. Errors: those of
// StepAccess::attempt_again().
Result<CheckedStep> check_lane(const StepAccess& step, const Attempt& first);

}  // namespace holdfast::integrity
