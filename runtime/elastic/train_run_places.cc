// TrainRun's part for run directories that are local to each host.
#include "runtime/elastic/train_run_internal.h"
#include "runtime/rank/watch.h"
#include "runtime/save/run_places.h"
#include "runtime/save/shard_copies.h"

namespace holdfast::inline elastic {

// Returns the places of a group of ranks; none if there is one directory for all.
Result<std::optional<RunPlaces>> TrainRun::places_of(const TrainInputs& group) {
  if (!place_.has_value()) return std::optional<RunPlaces>();
  HF_TRY(RunPlaces places, gather_places(group.communicator, waiter(), *place_));
  return std::optional(std::move(places));
}

// Returns whether this rank writes: in each place it is the rank with the lowest coordinate, or the leader of
// the place if no rank there has a coordinate.
Result<bool> TrainRun::writes_with(const RankAssignment& assignment) {
  HF_TRY(const std::optional<RunPlaces> places, places_of(world()));
  if (!places.has_value()) return first_;
  for (const int rank : assignment.active_ranks) {
    if (places->of(rank).number == place_->number) return rank == world().communicator.rank();
  }
  return places->leads(world().communicator.rank());
}

// Drops the copies of shards; this may wait for the disk, because a copy may be arriving.
void TrainRun::drop_copies() {
  if (copies_ == nullptr) return;
  tier_.reset();
  const StorageWait storage(launched_.watch, "a copy that is given up");
  copies_.reset();
}

// Makes the disk tier of the epoch that begins: which checkpoints the store has, and which ranks store copies
// of them.
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
