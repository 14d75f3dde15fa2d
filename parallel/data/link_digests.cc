#include "parallel/data/link_digests.h"

#include <algorithm>

#include "runtime/core/random.h"

namespace holdfast::parallel {
namespace {

std::vector<int> global_ranks_of(const Transport& transport) {
  std::vector<int> ranks;
  for (int rank = 0; rank < transport.size(); ++rank) ranks.push_back(transport.global_rank(rank));
  return ranks;
}

// A rank alone sends nothing.
std::uint64_t word_count(int ranks) {
  return ranks == 1 ? 0 : 2 * static_cast<std::uint64_t>(ranks);
}

}  // namespace

std::uint64_t link_weight(int source, int target) {
  return mix64(static_cast<std::uint64_t>(source), static_cast<std::uint64_t>(target)) | 1;
}

LinkDigests::LinkDigests(const Transport& transport, Device& device, MemoryPlan& plan)
    : rank_(transport.rank()),
      global_ranks_(global_ranks_of(transport)),
      device_(&device),
      slot_(plan.reserve("lane_reduction.link_digests", MemoryClass::workspace,
                         word_count(transport.size()) * sizeof(DigestWords), MemoryKind::host_visible)) {}

void LinkDigests::bind(const MemoryArena& arena) {
  words_ = {arena.at<DigestWords>(slot_), word_count(ranks())};
}

void LinkDigests::plan(std::uint64_t values_max) {
  if (!words_.empty()) launch(words_[0], nullptr, values_max, 0);
}

void LinkDigests::begin_step(bool wanted) {
  wanted_ = wanted && !words_.empty();
  if (wanted_) std::ranges::fill(words_, DigestWords{});
}

void LinkDigests::launch_sent(int peer, std::span<const float> values, std::uint64_t first_index) {
  if (wanted_) launch(words_[2 * static_cast<std::size_t>(peer)], values.data(), values.size(), first_index);
}

void LinkDigests::launch_received(int peer, std::span<const float> values, std::uint64_t first_index) {
  if (wanted_)
    launch(words_[2 * static_cast<std::size_t>(peer) + 1], values.data(), values.size(), first_index);
}

void LinkDigests::launch(DigestWords& words, const float* values, std::uint64_t count,
                         std::uint64_t first_index) {
  const OpScopeGuard of_no_microbatch(device_->scope(), {});
  device_->launch(TensorDigest{.values = values,
                               .dtype = DType::fp32,
                               .count = static_cast<std::int64_t>(count),
                               .result = &words,
                               .first_index = static_cast<std::int64_t>(first_index),
                               .accumulate = true});
}

Digest LinkDigests::balance() const {
  Digest balance;
  if (!wanted_) return balance;
  const int self = global_rank(rank_);
  for (int rank = 0; rank < ranks(); ++rank) {
    if (rank == rank_) continue;
    const std::uint64_t out = link_weight(self, global_rank(rank)), in = link_weight(global_rank(rank), self);
    balance += {.high = out * sent(rank).sum - in * received(rank).sum,
                .low = out * sent(rank).weighted - in * received(rank).weighted};
  }
  return balance;
}

}  // namespace holdfast::parallel
