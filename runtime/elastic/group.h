// Group holds the ranks that this one is together with now, and its part among them: all that take part, those of them
// that have coordinates (the membership epoch), who writes, and how the ranks agree. A rank that has lost its device
// sends nothing more to the others: the agreement that finds this out returns the device's error, with which the rank
// goes to the end of its session and leaves.
#pragma once

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "parallel/comm/collectives.h"
#include "parallel/comm/group_communicator.h"
#include "parallel/group/rank_assignment.h"
#include "runtime/elastic/prepare.h"
#include "runtime/elastic/session_phase.h"
#include "runtime/elastic/source.h"
#include "runtime/rank/device_loss.h"

namespace holdfast::elastic {

// Returns `inputs` with another communicator.
TrainInputs with_communicator(const TrainInputs& inputs, Communicator& communicator);

// EpochEnd says how an epoch has ended on all of its ranks.
struct EpochEnd {
  PhaseOutcome how = PhaseOutcome::finished;
  ExitCode code = ExitCode::done;  // of a run that is finished
};

// LeaderFacts holds what the leader knows at the end of an epoch, and spares do not.
struct LeaderFacts {
  bool log_opened = false;
  std::uint64_t step = 0;  // newest
};

// MembershipEpoch is one epoch of a run on one rank: the ranks that take part, which of them compute, and what those
// without a coordinate do.
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
  // run ended; `leader` is set once that has come.
  Result<EpochEnd> wait_for_end(const Waiter& waiter, LeaderFacts& leader);
  // Sends the end of the epoch to the spares that live. Only the leader does so; it is a no-op on other ranks.
  Result<void> inform_spares(const Waiter& waiter, const Result<EpochEnd>& end, const LeaderFacts& leader);
  // Returns what was sent, which a send to a spare that has died meanwhile may still refer to; null: nothing was.
  std::shared_ptr<void> end_message() const { return end_message_; }

 private:
  Result<void> send_end(const Waiter& waiter);

  TrainInputs world_;
  RankAssignment assignment_;
  std::optional<GroupCommunicator> group_;
  std::optional<TrainInputs> active_;
  std::shared_ptr<std::vector<std::byte>> end_message_;
};

class Group {
 public:
  // `setup`: what the ranks have agreed on so far; outlives this object.
  Group(const TrainInputs& launched, const RunSetup& setup) : launched_(launched), setup_(setup) {
    world_.emplace(launched);
  }

  // Return the inputs of this process, those for all ranks that take part, and those for the ranks with coordinates.
  const TrainInputs& launched() const { return launched_; }
  const TrainInputs& world() const { return *world_; }
  const TrainInputs& active() const { return epoch_->active(); }
  MembershipEpoch* epoch() const { return epoch_.get(); }  // null: between two epochs
  const RankAssignment& assignment() const { return epoch_->assignment(); }
  bool leads() const { return leads_; }  // this rank logs for all
  // Returns whether this rank writes to the run directory: the leader, or one rank of each storage domain.
  bool writes() const { return writes_; }
  bool is_joiner() const { return launched_.membership != nullptr && launched_.membership->is_joiner(); }
  // Return the storage domains of all ranks, and of the active ones, if run.directory is local to each host.
  const std::optional<StorageDomains>& domains() const { return domains_; }
  const std::optional<StorageDomains>& active_domains() const { return active_domains_; }
  // Returns the members; none without a membership that can change.
  MembershipView view() const;

  // Returns what finds a state. `ranks`: world() or active(). `check`: of this rank's claim.
  SourceFinder source_of(const TrainInputs& ranks, const ClaimCheck& check) const;

  // Takes the newest communicator of the membership for all that follows.
  void connect();
  // Gives this rank, which is new, its place among the devices of the host, and connects it.
  void take_place(const DevicePlace& place, int ranks_on_host);
  // Waits are shorter once the run has begun to recover or to grow.
  void begin_recovery() { recovers_ = true; }
  bool recovers() const { return recovers_; }
  // Settles who leads and who writes in the epoch that follows. `assignment`: an error if there are too few ranks for
  // one; even then one rank has to record why the run ends.
  Result<void> choose_writers(const Result<RankAssignment>& assignment);
  void begin_epoch(RankAssignment assignment);
  void end_epoch();

  Waiter waiter() const;
  Result<void> agree(const Result<void>& mine, const std::optional<Waiter>& patience = {}) {
    return agree_among(active(), mine, patience.has_value() ? *patience : waiter());
  }
  Result<void> agree_among_all(const Result<void>& mine, const Waiter& patience) {
    return agree_among(world(), mine, patience);
  }
  // Returns the facts for the end of a rank whose device an agreement has found lost; their step is not set.
  const std::optional<LeavingRank>& leaving() const { return leaving_; }
  // Keeps an object on the way to that end whose destructor would call the driver of the lost device, which may never
  // return.
  template <typename Object>
  void keep_from_driver(Result<Object>& object) {
    if (leaving_.has_value() && object.ok())
      kept_.push_back(std::make_shared<Object>(std::move(object).value()));
  }

 private:
  Result<void> agree_among(const TrainInputs& ranks, const Result<void>& mine, const Waiter& patience);
  Result<bool> writes_with(const RankAssignment& assignment);
  void tell_watch();

  TrainInputs launched_;
  const RunSetup& setup_;
  std::optional<TrainInputs> world_;
  std::unique_ptr<MembershipEpoch> epoch_;
  bool leads_ = false, writes_ = false, recovers_ = false;
  std::optional<StorageDomains> domains_, active_domains_;
  int reported_active_ = 0;  // active ranks, as reported to the watchdog
  std::optional<LeavingRank> leaving_;
  std::vector<std::shared_ptr<void>> kept_;
};

}  // namespace holdfast::elastic
