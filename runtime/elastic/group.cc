#include "runtime/elastic/group.h"

#include "parallel/comm/agreement.h"

namespace holdfast::elastic {

MembershipView Group::view() const {
  return launched_.membership != nullptr ? launched_.membership->view() : MembershipView();
}

void Group::connect() {
  world_.emplace(with_communicator(launched_, launched_.membership->communicator()));
}

void Group::take_place(const DevicePlace& place, int ranks_on_host) {
  launched_.place = place;
  launched_.ranks_on_host = ranks_on_host;
  connect();
}

Result<void> Group::choose_writers(const Result<RankAssignment>& assignment) {
  const int rank = world().communicator.rank();
  leads_ = assignment.ok() ? assignment->coordinate_of(rank) == 0 : rank == 0;
  writes_ = leads_;
  if (assignment.ok()) {
    HF_TRY(writes_, writes_with(*assignment));
  }
  return {};
}

// Gathers the storage domains of the epoch that begins, and returns whether this rank writes: in each storage domain it
// is the rank with the lowest coordinate, or the leader of the storage domain if no rank there has a coordinate.
Result<bool> Group::writes_with(const RankAssignment& assignment) {
  if (!setup_.domain.has_value()) return leads_;
  HF_TRY(domains_, gather_storage_domains(world().communicator, waiter(), *setup_.domain));
  active_domains_ = domains_->of_group(assignment.active_ranks);
  for (const int rank : assignment.active_ranks) {
    if (domains_->of(rank).number == setup_.domain->number) return rank == world().communicator.rank();
  }
  return domains_->leads(world().communicator.rank());
}

void Group::begin_epoch(RankAssignment assignment) {
  epoch_ = std::make_unique<MembershipEpoch>(world(), std::move(assignment));
  tell_watch();
}

// Reports the epoch to the watchdog. Phases take longer with fewer ranks, because each has more work.
void Group::tell_watch() {
  const int active = assignment().shape.active();
  const int before = std::exchange(reported_active_, active);
  if (launched_.watch == nullptr || launched_.membership == nullptr) return;
  const MembershipView& view = launched_.membership->view();
  launched_.watch->begin_epoch({.number = view.epoch,
                                .work_times = before == 0 ? 1.0 : static_cast<double>(before) / active,
                                .members = static_cast<std::uint32_t>(view.members.size())});
}

Waiter Group::waiter() const {
  return waiter_for(launched_, setup_.config, recovers_);
}

Result<void> Group::agree_among(const TrainInputs& ranks, const Result<void>& mine, const Waiter& patience) {
  if (setup_.device != nullptr && setup_.device->lost()) {
    leaving_.emplace(LeavingRank{ranks.env, ranks.communicator, setup_.config.run.directory});
    return setup_.device->status().error();
  }
  return agree_on_outcome(ranks.communicator, patience, mine, ranks.env.host_name());
}

}  // namespace holdfast::elastic
