#include "parallel/data/lane_exchange.h"

#include <algorithm>
#include <functional>
#include <utility>

namespace holdfast::parallel {

LaneExchange::LaneExchange(const BucketPlan& buckets, const LaneSchedule& schedule, int rank,
                           std::vector<int> hosts)
    : schedule_(schedule),
      rank_(rank),
      ranks_(schedule.ranks()),
      bucket_count_(buckets.local_count()),
      hosts_(std::move(hosts)),
      on_several_hosts_(std::ranges::adjacent_find(hosts_, std::ranges::not_equal_to()) != hosts_.end()) {
  HF_CHECK(buckets.ranks() == ranks_ && 0 <= rank && rank < ranks_);
  HF_CHECK(hosts_.empty() || std::ssize(hosts_) == ranks_);
  for (int each = 0; each < ranks_; ++each) {
    owners_.push_back(buckets.rank_at(each));
    positions_.push_back(buckets.position_of(each));
    for (int bucket = 0; bucket < bucket_count_; ++bucket)
      ranges_.push_back(buckets.gradient_range(bucket, each));
  }
  std::vector<LanePart> of_wave;
  for (int wave = 0; wave < schedule_.waves(); ++wave) {
    parts(wave, of_wave);
    orders_.push_back(order_of(of_wave));
    sums_blocks_ = sums_blocks_ || order(wave) != Order::flat;
  }
}

bool LaneExchange::on_one_host(int first, int count) const {
  const auto begin = hosts_.begin() + first;
  return std::all_of(begin, begin + count, [&](int host) { return host == *begin; });
}

bool LaneExchange::has_blocks_on_hosts() const {
  const int block = schedule_.block();
  if (block == 1 || !on_several_hosts_ || ranks_ % block != 0) return false;
  for (int first = 0; first < ranks_; first += block)
    if (!on_one_host(first, block)) return false;
  return true;
}

LanePart LaneExchange::part_of(int wave, int rank) const {
  const LanePart alone{.first = rank};
  const int block = schedule_.block(), first = schedule_.lane_of(wave, rank) / block * block - wave * ranks_;
  if (block == 1 || !on_several_hosts_ || first < 0 || first + block > ranks_) return alone;
  return on_one_host(first, block) ? LanePart{.first = first, .count = block} : alone;
}

void LaneExchange::parts(int wave, std::vector<LanePart>& parts) const {
  parts.clear();
  for (int rank = 0; rank < schedule_.lanes_in_wave(wave); rank = parts.back().end())
    parts.push_back(part_of(wave, rank));
}

LaneExchange::Order LaneExchange::order_of(const std::vector<LanePart>& parts) const {
  Order order = Order::flat;
  for (const LanePart& part : parts) {
    if (!part.is_block()) continue;
    if (order == Order::flat) order = Order::together;
    for (int rank = part.first; rank < part.end(); ++rank)
      if (source_of(part, rank) != rank) order = Order::apart;
  }
  return order;
}

// Returns the position of the first owner to whom a rank of a part sends it; those of the next rank follow.
int LaneExchange::first_owner(const LanePart& part, int rank) const {
  return ((rank - part.first) * ranks_ + part.count - 1) / part.count;
}

ElementRange LaneExchange::summed_range(int bucket, const LanePart& block, int rank) const {
  ElementRange all;
  for (int position = first_owner(block, rank); position < first_owner(block, rank + 1); ++position) {
    const ElementRange& range = owned(owners_[index_of(position)], bucket);
    if (range.size() == 0) continue;
    all = {.begin = all.size() == 0 ? range.begin : all.begin, .end = range.end};
  }
  return all;
}

int LaneExchange::count(int wave) const {
  if (order(wave) == Order::flat || bucket_count_ == 0) return bucket_count_;
  return order(wave) == Order::together ? bucket_count_ + 1 : 2 * bucket_count_;
}

int LaneExchange::first_position(int wave, int bucket) const {
  return order(wave) == Order::apart ? std::max(0, 2 * bucket - 1) : bucket;
}

int LaneExchange::last_position(int wave, int bucket) const {
  if (order(wave) == Order::flat) return bucket;
  return order(wave) == Order::together ? bucket + 1 : std::min(2 * bucket + 2, 2 * bucket_count_ - 1);
}

LaneExchange::Exchange LaneExchange::at(int wave, int position) const {
  if (order(wave) == Order::flat) return {.to_owners = position};
  const bool is_last = position + 1 == count(wave);
  if (order(wave) == Order::together) return {.inside = is_last ? -1 : position, .to_owners = position - 1};
  if (is_last) return {.to_owners = bucket_count_ - 1};
  if (position == 0 || position % 2 == 1) return {.inside = (position + 1) / 2};
  return {.to_owners = position / 2 - 1};
}

void LaneExchange::incoming(int wave, Stage stage, int bucket, std::vector<Message>& messages) const {
  if (stage == Stage::inside) {
    if (schedule_.lane_of(wave, rank_) < 0) return;
    const LanePart block = part_of(wave, rank_);
    if (!block.is_block()) return;
    const ElementRange summed = summed_range(bucket, block, rank_);
    for (int member = block.first; member < block.end() && summed.size() > 0; ++member)
      if (member != rank_) messages.push_back({.peer = member, .range = summed});
    return;
  }
  const ElementRange& mine = owned(rank_, bucket);
  if (mine.size() == 0) return;
  for (int rank = 0; rank < schedule_.lanes_in_wave(wave);) {
    const LanePart part = part_of(wave, rank);
    if (const int source = source_of(part, rank_); source != rank_)
      messages.push_back({.peer = source, .range = mine});
    rank = part.end();
  }
}

void LaneExchange::outgoing(int wave, Stage stage, int bucket, std::vector<Message>& messages) const {
  if (schedule_.lane_of(wave, rank_) < 0) return;
  const LanePart part = part_of(wave, rank_);
  const bool inside = stage == Stage::inside;
  if (inside && !part.is_block()) return;
  const int first = inside ? part.first : first_owner(part, rank_);
  const int count = inside ? part.count : first_owner(part, rank_ + 1) - first;
  for (int step = 0; step < count; ++step) {
    const int next = first + (rank_ + 1 + step) % count;
    const int peer = inside ? next : owners_[index_of(next)];
    const ElementRange range = inside ? summed_range(bucket, part, peer) : owned(peer, bucket);
    if (peer != rank_ && range.size() > 0) messages.push_back({.peer = peer, .range = range});
  }
}

void LaneExchange::incoming(int wave, const Exchange& exchange, std::vector<Message>& messages) const {
  for (const Stage stage : {Stage::inside, Stage::to_owners})
    if (exchange.of(stage) >= 0) incoming(wave, stage, exchange.of(stage), messages);
}

void LaneExchange::outgoing(int wave, const Exchange& exchange, std::vector<Message>& messages) const {
  for (const Stage stage : {Stage::inside, Stage::to_owners})
    if (exchange.of(stage) >= 0) outgoing(wave, stage, exchange.of(stage), messages);
}

}  // namespace holdfast::parallel
