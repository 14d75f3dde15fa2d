// MembershipEpoch is one epoch of a run on one rank: the ranks that take part, which of them compute, and
// what those without a coordinate do.
#pragma once

#include <memory>
#include <optional>

#include "parallel/comm/collectives.h"
#include "parallel/comm/group_communicator.h"
#include "parallel/group/rank_assignment.h"
#include "runtime/rank/train_inputs.h"

namespace holdfast::elastic {

// Returns `inputs` with another communicator.
TrainInputs with_communicator(const TrainInputs& inputs, Communicator& communicator);

struct EpochEnd {
  ExitCode code = ExitCode::done;  // exit code of the run
  bool grows = false;              // the run goes on: all ranks pause until new ranks join
  bool shrinks = false;            // the run goes on: fewer ranks compute, because memory is lacking
  bool rolls_back = false;         // the run goes on: all ranks go back to an older state
};

class MembershipEpoch {
 public:
  // Makes the epoch. `inputs.communicator` has all ranks that take part, and outlives this object.
  MembershipEpoch(const TrainInputs& inputs, RankAssignment assignment);
  MembershipEpoch(const MembershipEpoch&) = delete;
  MembershipEpoch& operator=(const MembershipEpoch&) = delete;

  const RankAssignment& assignment() const { return assignment_; }
  bool is_active() const { return group_.has_value(); }
  bool leads() const { return is_active() && group_->rank() == 0; }
  // Returns the inputs of an active rank: its communicator has the active ranks, in the order of their
  // coordinates.
  const TrainInputs& active() const { return *active_; }

  // Waits on a spare for the end of the epoch, which the leader sends with inform_spares(). It checks its
  // peers meanwhile, so it learns of deaths as they do. Errors: communication, or the error with which the
  // run ended.
  Result<EpochEnd> wait_for_end(const Waiter& waiter);
  // Sends the end of the epoch to the spares. Only the leader does so; it is a no-op on other ranks.
  Result<void> inform_spares(const Waiter& waiter, const Result<EpochEnd>& end);

 private:
  TrainInputs world_;
  RankAssignment assignment_;
  std::optional<GroupCommunicator> group_;
  std::optional<TrainInputs> active_;
};

}  // namespace holdfast::elastic
