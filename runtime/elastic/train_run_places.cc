// TrainRun's part for run directories that are local to each host.
#include "runtime/elastic/train_run_internal.h"
#include "runtime/rank/watch.h"
#include "runtime/save/run_places.h"
#include "runtime/save/shard_copies.h"

namespace holdfast::inline elastic {

// The places of a group of ranks; none where there is one directory.
Result<std::optional<RunPlaces>> TrainRun::places_of(const TrainInputs& group) {
  if (!place_.has_value()) return std::optional<RunPlaces>();
  HF_TRY(RunPlaces places, gather_places(group.communicator, waiter(), *place_));
  return std::optional(std::move(places));
}

// The rank with the lowest coordinate of its place writes there.
Result<bool> TrainRun::writes_with(const RankAssignment& assignment) {
  HF_TRY(const std::optional<RunPlaces> places, places_of(world()));
  if (!places.has_value()) return first_;
  for (const int rank : assignment.active_ranks) {
    if (places->of(rank).number == place_->number) return rank == world().communicator.rank();
  }
  return places->leads(world().communicator.rank());
}

// A copy that arrives may have to wait for the disk.
void TrainRun::drop_copies() {
  if (copies_ == nullptr) return;
  tier_.reset();
  const StorageWait storage(launched_.watch, "a copy that is given up");
  copies_.reset();
}

// Which checkpoints the store has, and who keeps copies of them, in the epoch that begins.
Result<void> TrainRun::make_tier() {
  tier_.reset();
  HF_TRY(std::optional<RunPlaces> places, places_of(active()));
  if (!places.has_value()) return {};
  const int rank = active().communicator.rank();
  if (places->count() > 1) {
    store_->holds_part_of(place_->host);
    if (!start_.content.empty())
      store_->all_hosts_have({.generation = start_.generation, .step = start_.step});
    if (config_.checkpoint.replicas != "off") {
      HF_TRY(copies_, ShardCopies::create(worker_->state_view(), *store_, *places, start_.writer));
    }
  }
  tier_.emplace(rank, std::move(*places), copies_.get());
  return {};
}

}  // namespace holdfast::inline elastic
