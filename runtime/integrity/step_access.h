// StepAccess is what the checks of hardware see of the step in hand, CheckedStep what they answer. run_step() hands a StepAccess to
// check_step() (step_check.h), so that the checks need neither the worker nor what it trains with.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "parallel/comm/rank_sum.h"
#include "parallel/data/lane_reduction.h"
#include "runtime/core/digest.h"
#include "runtime/core/exact_sum.h"
#include "runtime/core/result.h"
#include "runtime/integrity/numbers_history.h"
#include "runtime/integrity/verdict_policy.h"
#include "runtime/rank/rank_context.h"
#include "runtime/run/event.h"

namespace holdfast::integrity {

class ParameterDigests;
class ProductTest;
class StepChecks;
struct HeldState;

// LaneAudit says which lanes of a step are computed twice: one of each replica, its owner, and by which other replica,
// its auditor. So every replica is owner of one audited lane and auditor of another. One that is alone computes its
// lane twice itself.
struct LaneAudit {
  int lanes = 1, replicas = 1;  // of the run; lane i is of replica i % replicas
  int wave = 0;                 // number of the audited lane among those of its owner
  int distance = 0;             // from owner to auditor

  bool is_of_itself() const { return distance == 0; }
  int auditor_of(int owner) const { return (owner + distance) % replicas; }
  int owner_for(int auditor) const { return (auditor + replicas - distance) % replicas; }
  // Replicas that have no lane in the last wave are audited by their last one.
  int lane_of(int owner) const {
    const int lane = wave * replicas + owner;
    return lane < lanes ? lane : lane - replicas;
  }
  bool operator==(const LaneAudit&) const = default;
};

// AuditDigests are digests of the gradients of the two audited lanes that this rank computed: its own, and the one of
// another replica.
struct AuditDigests {
  Digest as_owner = {}, as_auditor = {};
};

// AttemptBits are digests of what this rank computed in an attempt: the losses of its microbatches, and the
// sums of squares of the gradients that it owns, which are summed over all lanes.
struct AttemptBits {
  Digest losses = {};
  Digest gradients = {};
  bool operator==(const AttemptBits&) const = default;
};

// CheckVotes are the part of a step's vote that the checks decide by. A check that all ranks take part in has a
// member here, and a line of visit_words().
struct CheckVotes {
  // Set by a rank whose bits of this attempt at the step differ from those of its last and its first one.
  std::int64_t differs_from_last = 0, differs_from_first = 0;
  // Set by a rank whose last update found corruption of its state at rest, or was wrong (finds_corruption()).
  std::int64_t corrupted = 0;
  // Set by a rank whose device computed a product with a known result wrong (product_check.h).
  std::int64_t wrong_products = 0;
  // Digests of the audited lanes' gradients, each times a weight of its lane (audit_term()), added by the ranks that
  // run a lane in any case, taken off by those that compute it once more: 0 where they are the same.
  Digest audit = {};
  // LinkDigests::balance(): 0 where every link between replicas delivered the gradients that were sent.
  Digest links = {};
  // Terms of ParameterDigests at the steps of audits: 0 where all ranks hold the parameters that they must.
  Digest parameters = {};
  // Terms of run_state_term(): 0 where all ranks hold the same state of the run, as far as it is no tensor.
  Digest run_state = {};

  static constexpr void visit_words(auto& self, auto&& visit) {
    visit(self.differs_from_last);
    visit(self.differs_from_first);
    visit(self.corrupted);
    visit(self.wrong_products);
    visit(self.audit);
    visit(self.links);
    visit(self.parameters);
    visit(self.run_state);
  }
};

// Attempt is the outcome of an attempt at a step, equal on all ranks except for `losses`, `digests` and
// `restored_parameters`.
struct Attempt {
  StepNumbers numbers = {};
  CheckVotes votes = {};      // sums over all ranks
  ExactSum square_norm = {};  // of the sum of all gradients
  Digest data = {};           // of the samples of all ranks
  // Turns gradients of sum / tokens_per_step into those of the mean over the targets that count.
  double gradient_factor = 0.0;
  std::size_t losses = 0;  // number of entries of StepAccess::loss_sums that this rank has written
  std::optional<LaneAudit> audit = {};  // of this attempt
  AuditDigests digests = {};
  // The parameters in this rank's memory were not those of their owners before this attempt; they are now.
  bool restored_parameters = false;

  bool audit_failed() const { return votes.audit != Digest{}; }
  bool links_failed() const { return votes.links != Digest{}; }
  bool parameters_differ() const { return votes.parameters != Digest{}; }
  bool run_states_differ() const { return votes.run_state != Digest{}; }
};

// Rollback says how far the run goes back.
struct Rollback {
  std::uint64_t trusted_step = 0;  // newest step whose state counts
  // Position in the data from which the step after it reads, where batches are left out; none: the same data are
  // read again.
  std::optional<std::uint64_t> data_cursor = {};
};

// CheckedStep is what follows from the checks of a step, equal on all ranks.
struct CheckedStep {
  Attempt attempt = {};  // the one that counts; its gradients are those in memory
  VerdictAction action = VerdictAction::none;
  // Largest gradient norm of the update, where the verdict asks for a smaller one than the config; 0: none.
  double norm_limit = 0.0;
  std::optional<VerdictEvent> report = {};  // absent where the first attempt was fine; without time_us
  // Ranks of the communicator, ascending, that compute wrong numbers, or whose memory does not keep them, and have
  // to leave: the others make the step without them. Where it is one of a copy of the model, and it is not known
  // which, all of that copy. Only with VerdictAction::evict.
  std::vector<int> leaving_ranks = {};
  // Set where no state since some step counts. Only with an action that ends the steps.
  std::optional<Rollback> rollback = {};
};

// StepAccess is what a rank lets the checks see and do at a step. What it refers to outlives it.
struct StepAccess {
  const RankContext& rank;
  ParameterDigests& parameters;
  ProductTest& products;
  NumbersHistory& history;
  const LaneReduction& reduction;
  std::span<const Segment> segments;  // those that this rank owns and trains
  std::span<std::byte> gradients;     // memory of the gradients
  std::span<const double> loss_sums;  // of this rank's microbatches, by slot
  std::span<const int> rank_lanes;
  std::size_t microbatches_per_lane;
  std::int64_t audit_every_steps;  // 0: there are no audits
  std::uint64_t step;              // the newest one that was made
  std::uint64_t first_step;        // whose state this worker began with
  // Newest step up to which this rank has not computed wrong, as far as audits say.
  std::uint64_t verified_step;
  std::uint64_t next_data_cursor;  // position in the data after the step in hand
  std::uint64_t rollbacks;         // that were made within rollback_window()

  // Makes the step's lanes again from the same samples, with parameters that are gathered from their owners once
  // more. `earlier`: this rank's bits of the attempts before, the oldest first; CheckVotes::differs_from_last and
  // differs_from_first of the result compare with them. `audit_retry`: of audit_at(). Errors: trouble or a loader
  // error of some rank (agreed), communication.
  std::function<Result<Attempt>(std::span<const AttemptBits> earlier, int audit_retry)> attempt_again;
  std::function<HeldState()> state;  // what the last update, or check_state(), found
  // Compare with the digests of the last update: frozen tensors alone, unless there is a finding; and the whole state.
  std::function<void()> check_frozen, check_state;
  // Returns what inspects ops; null where there is no memory for it.
  std::function<StepChecks*()> op_checks;
  // Describes the samples of a microbatch of the step in hand.
  std::function<std::string(int lane, int microbatch)> describe_samples;

  // Returns the bits of the attempt that was made last.
  AttemptBits bits_of(const Attempt& attempt) const {
    return {.losses = digest_of(std::as_bytes(loss_sums.first(attempt.losses))),
            .gradients = digest_of(std::as_bytes(reduction.square_sums()))};
  }
};

}  // namespace holdfast::integrity
