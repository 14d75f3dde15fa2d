// One epoch of a run on one rank: the ranks that are there, which of them compute, and what those without a
// coordinate do.
#pragma once

#include <memory>
#include <optional>

#include "parallel/comm/collectives.h"
#include "parallel/comm/group_communicator.h"
#include "parallel/group/rank_assignment.h"
#include "runtime/rank/train_inputs.h"

namespace holdfast::inline rank {

// `inputs` with another communicator.
TrainInputs with_communicator(const TrainInputs& inputs, Communicator& communicator);

struct EpochEnd {
  ExitCode code = ExitCode::done;  // of the run
  bool grows = false;              // the run does not end: all pause for new ranks to come
  bool shrinks = false;            // nor here: fewer ranks compute, because the hosts have too little memory
};

class MembershipEpoch {
 public:
  // `inputs.communicator`: of all ranks that are there; it outlives this object.
  MembershipEpoch(const TrainInputs& inputs, RankAssignment assignment);
  MembershipEpoch(const MembershipEpoch&) = delete;
  MembershipEpoch& operator=(const MembershipEpoch&) = delete;

  const RankAssignment& assignment() const { return assignment_; }
  bool is_active() const { return group_.has_value(); }
  bool leads() const { return is_active() && group_->rank() == 0; }
  // What an active rank works with: its communicator is of the active ranks, in the order of their
  // coordinates.
  const TrainInputs& active() const { return *active_; }

  // A spare waits here for the end of the epoch, which the leader tells with tell_spares(). It
  // looks at its peers meanwhile, so it hears of deaths as they do. Errors: communication, or how the run
  // ended.
  Result<EpochEnd> wait_for_end(const Waiter& waiter);
  // Of the leader; no-op on others.
  Result<void> tell_spares(const Waiter& waiter, const Result<EpochEnd>& end);

 private:
  TrainInputs world_;
  RankAssignment assignment_;
  std::optional<GroupCommunicator> group_;
  std::optional<TrainInputs> active_;
};

}  // namespace holdfast::inline rank
