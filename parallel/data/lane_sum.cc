#include "parallel/data/lane_sum.h"

#include <algorithm>
#include <utility>

#include "kernels/elementwise.h"
#include "kernels/optimizer.h"
#include "parallel/comm/transport.h"

namespace holdfast::parallel {
namespace {

constexpr std::uint64_t staging_alignment = 16;

// Returns the term to be added at `sum`. A sum that is to be at `place` begins where its first term lies, and moves
// there when the term that is there, which has this rank's own lane in it, has its turn: a + b and b + a are the same
// bits.
float* take_term(float*& sum, float* term, const float* place) {
  if (term == place) std::swap(sum, term);
  return term;
}

}  // namespace

int staging_places(const BucketPlan& buckets, std::uint64_t bytes) {
  constexpr int fewest = 4;
  int places = buckets.gradient_slots();
  if (buckets.ranks() == 1 || buckets.shares_gradient_memory()) return places;
  std::vector<std::uint64_t> elements;  // by bucket
  for (int bucket = 0; bucket < buckets.local_count(); ++bucket) {
    elements.push_back(0);
    for (const BucketTensor& tensor : buckets.buckets()[index(bucket)].tensors)
      elements.back() += tensor.elements();
  }
  const auto fit = [&] {
    std::uint64_t all = 0;
    for (std::size_t place = 0; place < index(places); ++place) {
      std::uint64_t largest = 0;
      for (std::size_t bucket = place; bucket < elements.size(); bucket += index(places))
        largest = std::max(largest, elements[bucket]);
      all += largest;
    }
    return all * sizeof(float) <= bytes;
  };
  while (places > fewest && !fit()) --places;
  return places;
}

LaneSum::LaneSum(const BucketPlan& buckets, const LaneExchange& exchange, Device& device, MemoryPlan& plan,
                 bool makes_digests, int places)
    : buckets_(&buckets),
      exchange_(&exchange),
      schedule_(exchange.schedule()),
      rank_(exchange.rank()),
      device_(&device),
      bucket_count_(static_cast<int>(buckets.buckets().size())),
      in_place_(schedule_.waves() == 1 && !buckets.shares_gradient_memory() && !exchange.sums_blocks()),
      first_source_(exchange.source_of(exchange.part_of(0, 0), rank_)),
      sums_(buckets.buckets().size()),
      block_sums_(buckets.buckets().size()),
      sums_for_others_(buckets.buckets().size()) {
  index_segments();
  reserve_memory(plan, makes_digests, places);
}

void LaneSum::index_segments() {
  first_segment_.resize(index(bucket_count_) + 1);
  std::size_t sum = 0, first_of_bucket = 0;
  for (const Segment& segment : buckets_->segments(rank_)) {
    if (++first_segment_[index(segment.bucket) + 1] == 1) first_of_bucket = sum;
    const std::uint64_t begin = buckets_->gradient_range(segment.bucket, rank_).begin;
    places_.push_back({.first = static_cast<std::int64_t>(segment.gradient_offset - begin),
                       .count = static_cast<std::int64_t>(segment.elements),
                       .first_block = static_cast<std::int64_t>(sum - first_of_bucket)});
    first_sum_.push_back(sum);
    sum += segment.block_count;
  }
  first_sum_.push_back(sum);
  tied_.assign(index(bucket_count_), -1);
  for (int bucket = 0; bucket < bucket_count_; ++bucket) {
    first_segment_[index(bucket) + 1] += first_segment_[index(bucket)];
    const int real = buckets_->buckets()[index(bucket)].tied_to;
    if (real >= 0 && !buckets_->is_frozen(real)) tied_[index(real)] = bucket;
  }
}

// Reserves the places of buckets for each rank that sends to this one, as an owner and for its blocks.
void LaneSum::reserve_staging(MemoryPlan& plan, int places) {
  std::uint64_t elements = 0;
  const auto reserve = [&](std::size_t sender, std::vector<std::uint64_t>& offsets, const auto& size_of) {
    for (int place = 0; place < places; ++place) {
      std::uint64_t largest = 0;
      for (int bucket = place; bucket < buckets_->local_count(); bucket += places) {
        offsets[sender * index(bucket_count_) + index(bucket)] = elements;
        largest = std::max(largest, size_of(bucket));
      }
      elements += (largest + staging_alignment - 1) / staging_alignment * staging_alignment;
    }
  };
  std::vector<bool> sends(index(buckets_->ranks()));
  int others = 0;  // the most ranks of a block of this one
  std::vector<std::uint64_t> summed(index(bucket_count_));
  std::vector<LanePart> parts;
  for (int wave = 0; wave < schedule_.waves(); ++wave) {
    exchange_->parts(wave, parts);
    for (const LanePart& part : parts) {
      sends[index(exchange_->source_of(part, rank_))] = true;
      if (!part.is_block() || !part.has(rank_)) continue;
      others = part.count - 1;
      for (int bucket = 0; bucket < buckets_->local_count(); ++bucket)
        summed[index(bucket)] =
            std::max(summed[index(bucket)], exchange_->summed_range(bucket, part, rank_).size());
    }
  }
  staging_offsets_.resize(index(buckets_->ranks() * bucket_count_));
  for (std::size_t source = 0; source < sends.size(); ++source)
    if (sends[source] && source != index(rank_))
      reserve(source, staging_offsets_,
              [&](int bucket) { return buckets_->gradient_range(bucket, rank_).size(); });
  block_offsets_.resize(index(others * bucket_count_));
  for (int other = 0; other < others; ++other)
    reserve(index(other), block_offsets_, [&](int bucket) { return summed[index(bucket)]; });
  staging_slot_ =
      plan.reserve("lane_reduction.staging", MemoryClass::communication, elements * sizeof(float));
}

void LaneSum::reserve_memory(MemoryPlan& plan, bool makes_digests, int places) {
  reserve_staging(plan, places);
  accumulator_slot_ = plan.reserve("lane_reduction.accumulator", MemoryClass::gradients,
                                   in_place_ ? 0 : buckets_->accumulator_elements(rank_) * sizeof(float));
  if (schedule_.carries_blocks()) {
    block_accumulator_slot_ = plan.reserve("lane_reduction.block_accumulator", MemoryClass::gradients,
                                           buckets_->accumulator_elements(rank_) * sizeof(float));
  }
  square_sums_slot_ = plan.reserve("lane_reduction.square_sums", MemoryClass::workspace,
                                   first_sum_.back() * sizeof(double), MemoryKind::host_visible);
  if (makes_digests) {
    digests_slot_ = plan.reserve("lane_reduction.digests", MemoryClass::workspace,
                                 first_sum_.back() * sizeof(std::uint64_t));
  }
}

void LaneSum::bind(const MemoryArena& arena, float* gradients) {
  gradients_ = gradients;
  staging_ = arena.at<float>(staging_slot_);
  accumulator_ = arena.at<float>(accumulator_slot_);
  if (block_accumulator_slot_.has_value()) block_accumulator_ = arena.at<float>(*block_accumulator_slot_);
  square_sums_ = {arena.at<double>(square_sums_slot_), first_sum_.back()};
  if (digests_slot_.has_value()) digests_ = arena.at<std::uint64_t>(*digests_slot_);
}

float* LaneSum::part(int wave, int source, int bucket) const {
  if (source == rank_) return gradients_ + buckets_->gradient_range(bucket, rank_).begin;
  if (wave == 0 && source == first_source_ && !in_place_) return result(bucket);
  return staging_ + staging_offsets_[index(source * bucket_count_ + bucket)];
}

float* LaneSum::lane_of_block(int wave, int member, int bucket) const {
  const LanePart block = exchange_->part_of(wave, rank_);
  if (member == rank_) return gradients_ + exchange_->summed_range(bucket, block, rank_).begin;
  const int other = member - block.first - (member > rank_ ? 1 : 0);
  return staging_ + block_offsets_[index(other * bucket_count_ + bucket)];
}

float* LaneSum::result(int bucket) const {
  if (in_place_) return gradients_ + buckets_->gradient_range(bucket, rank_).begin;
  return accumulator_ + buckets_->shard_offset(bucket, rank_);
}

std::span<float> LaneSum::sum_of(int bucket) const {
  return {result(bucket), buckets_->gradient_range(bucket, rank_).size()};
}

ReducedGradients LaneSum::reduced() const {
  return {.values = in_place_ ? gradients_ : accumulator_, .in_place = in_place_, .digests = digests_};
}

// Returns where the sum of a block that goes on in the next wave is kept.
float* LaneSum::block_result(int bucket) const {
  return block_accumulator_ + buckets_->shard_offset(bucket, rank_);
}

// Returns the location of a sum that begins with a lane. 0 + x is not x for every x (-0), so a lane that does not
// stay where it is is copied.
float* LaneSum::begin_sum(int lane, float* from, int bucket) {
  float* sum = from;
  if (lane == 0 && !in_place_) {
    sum = result(bucket);
  } else if (lane > 0 && !schedule_.block_ends_in_wave_of(lane)) {
    sum = block_result(bucket);
  }
  if (sum != from) {
    const auto bytes = buckets_->gradient_range(bucket, rank_).size() * sizeof(float);
    device_->launch(Copy{.source = from, .target = sum, .bytes = static_cast<std::int64_t>(bytes)});
  }
  return sum;
}

void LaneSum::launch_add(float* sum, const float* term, std::uint64_t count) {
  device_->launch(Accumulate{.target = sum, .source = term, .count = static_cast<std::int64_t>(count)});
}

void LaneSum::add(int wave, const LanePart& part, int bucket) {
  const OpScopeGuard of_no_microbatch(device_->scope(),
                                      {});  // it may be one of those that are being launched
  const int first = schedule_.lane_of(wave, part.first), end = first + part.count;
  const bool of_first_block = first < schedule_.block();
  const std::uint64_t count = buckets_->gradient_range(bucket, rank_).size();
  float* const from = this->part(wave, exchange_->source_of(part, rank_), bucket);
  float*& sum = sums_[index(bucket)];
  float*& of_block = of_first_block ? sum : block_sums_[index(bucket)];
  const float* term = nullptr;  // remaining term to be added to the sum
  if (first % schedule_.block() == 0) {
    of_block = begin_sum(first, from, bucket);
  } else {
    term = take_term(of_block, from, result(bucket));
  }
  if (!of_first_block) {
    if (term != nullptr) launch_add(of_block, term, count);
    if (end % schedule_.block() != 0) return;
    term = take_term(sum, of_block, result(bucket));
  }
  const Bucket& kind = buckets_->buckets()[index(bucket)];
  const bool whole = tied_[index(bucket)] < 0 && kind.tied_to < 0 && !kind.is_exported;
  if (end == schedule_.lanes() && whole) {
    finish(bucket, term);
  } else if (term != nullptr) {
    launch_add(sum, term, count);
  }
}

void LaneSum::add_to_block(int wave, int member, int bucket) {
  const OpScopeGuard of_no_microbatch(device_->scope(), {});
  const LanePart block = exchange_->part_of(wave, rank_);
  float*& sum = sums_for_others_[index(bucket)];
  float* const from = lane_of_block(wave, member, bucket);
  if (member == block.first) {
    sum = from;
    return;
  }
  const float* const term = take_term(sum, from, lane_of_block(wave, rank_, bucket));
  launch_add(sum, term, exchange_->summed_range(bucket, block, rank_).size());
}

void LaneSum::add_tied() {
  const OpScopeGuard of_no_microbatch(device_->scope(), {});
  for (int bucket = 0; bucket < bucket_count_; ++bucket) {
    if (tied_[index(bucket)] >= 0) finish(bucket, result(tied_[index(bucket)]));
  }
}

// Launches the last add of a bucket. Where last_term is null all is added, and only the sums of squares are taken.
void LaneSum::finish(int bucket, const float* last_term) {
  const std::size_t first = first_segment_[index(bucket)], end = first_segment_[index(bucket) + 1];
  if (first == end) return;
  float* const target = result(bucket);
  const auto count = static_cast<std::int64_t>(buckets_->gradient_range(bucket, rank_).size());
  double* const square_sums = square_sums_.data() + first_sum_[first];
  std::uint64_t* const digests = digests_ != nullptr ? digests_ + first_sum_[first] : nullptr;
  const auto segment_count = static_cast<std::int64_t>(end - first);
  if (last_term == nullptr) {
    device_->launch(SquareSum{.values = target,
                              .count = count,
                              .sums = square_sums,
                              .digests = digests,
                              .segments = &places_[first],
                              .segment_count = segment_count});
  } else {
    device_->launch(Accumulate{.target = target,
                               .source = last_term,
                               .count = count,
                               .square_sums = square_sums,
                               .digests = digests,
                               .segments = &places_[first],
                               .segment_count = segment_count});
  }
}

}  // namespace holdfast::parallel
