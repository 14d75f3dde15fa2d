#include "parallel/data/gather_exchange.h"

namespace holdfast::parallel {

GatherExchange::GatherExchange(const BucketPlan& buckets, const LaneExchange& lanes)
    : buckets_(&buckets),
      rank_(lanes.rank()),
      block_(lanes.has_blocks_on_hosts() ? lanes.schedule().block() : 1) {
  const int ranks = buckets.ranks();
  for (int step = 1; step < ranks; ++step) {  // every rank starts with a different peer
    const int peer = (rank_ + step) % ranks;
    if (peer % block_ == rank_ % block_) peers_between_.push_back(peer);
    if (has_two_stages() && peer / block_ == rank_ / block_) peers_inside_.push_back(peer);
  }
}

ElementRange GatherExchange::range_of_place(int bucket, int rank) const {
  ElementRange all;
  const int count = buckets_->ranks() / block_, first = rank % block_ * count;
  for (int position = first; position < first + count; ++position) {
    const ElementRange range = buckets_->parameter_range(bucket, buckets_->rank_at(position));
    if (range.size() == 0) continue;
    all = {.begin = all.size() == 0 ? range.begin : all.begin, .end = range.end};
  }
  return all;
}

void GatherExchange::incoming(Stage stage, int bucket, std::vector<Message>& messages) const {
  for (const int peer : peers(stage)) {
    const ElementRange range =
        stage == Stage::between ? buckets_->parameter_range(bucket, peer) : range_of_place(bucket, peer);
    if (range.size() > 0) messages.push_back({.peer = peer, .range = range});
  }
}

void GatherExchange::outgoing(Stage stage, int bucket, std::vector<Message>& messages) const {
  const ElementRange range =
      stage == Stage::between ? buckets_->parameter_range(bucket, rank_) : range_of_place(bucket, rank_);
  if (range.size() == 0) return;
  for (const int peer : peers(stage)) messages.push_back({.peer = peer, .range = range});
}

}  // namespace holdfast::parallel
