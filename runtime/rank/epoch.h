// One epoch of a run on one rank: the ranks that are there, which of them compute, and what those without a
// seat do.
#pragma once

#include <memory>
#include <optional>

#include "parallel/comm/collectives.h"
#include "parallel/comm/group_communicator.h"
#include "parallel/group/seating.h"
#include "runtime/rank/train_inputs.h"

namespace holdfast {

// `inputs` with another communicator.
TrainInputs with_communicator(const TrainInputs& inputs, Communicator& communicator);

struct EpochEnd {
  ExitCode code = ExitCode::done;  // of the run
  bool grows = false;              // the run does not end: all stand still for new ranks to come
  bool shrinks = false;            // nor here: fewer ranks compute, because the hosts have too little memory
};

class Epoch {
 public:
  // `inputs.communicator`: of all ranks that are there; it outlives this object.
  Epoch(const TrainInputs& inputs, Seating seating);
  Epoch(const Epoch&) = delete;
  Epoch& operator=(const Epoch&) = delete;

  const Seating& seating() const { return seating_; }
  bool seated() const { return group_.has_value(); }
  bool leads() const { return seated() && group_->rank() == 0; }
  // What a rank with a seat works with: its communicator is of those that have one, in the order of seats.
  const TrainInputs& seats() const { return *seats_; }

  // A rank without a seat waits here for the end of the epoch, which the leader tells with tell_spares(). It
  // looks at its peers meanwhile, so it hears of deaths as they do. Errors: communication, or how the run
  // ended.
  Result<EpochEnd> wait_for_end(const Waiter& waiter);
  // Of the leader; no-op on others.
  Result<void> tell_spares(const Waiter& waiter, const Result<EpochEnd>& end);

 private:
  TrainInputs world_;
  Seating seating_;
  std::optional<GroupCommunicator> group_;
  std::optional<TrainInputs> seats_;
};

}  // namespace holdfast
