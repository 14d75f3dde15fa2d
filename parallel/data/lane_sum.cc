#include "parallel/data/lane_sum.h"

#include <algorithm>
#include <utility>

#include "kernels/elementwise.h"
#include "kernels/optimizer.h"
#include "parallel/comm/transport.h"

namespace holdfast::parallel {
namespace {

constexpr std::uint64_t staging_alignment = 16;

}  // namespace

LaneSum::LaneSum(const BucketPlan& buckets, LaneSchedule schedule, int rank, Device& device, MemoryPlan& plan,
                 bool makes_digests)
    : buckets_(&buckets),
      schedule_(schedule),
      rank_(rank),
      device_(&device),
      bucket_count_(static_cast<int>(buckets.buckets().size())),
      in_place_(schedule.waves() == 1 && !buckets.shares_gradient_memory()),
      sums_(buckets.buckets().size()),
      block_sums_(buckets.buckets().size()) {
  index_segments();
  reserve_memory(plan, makes_digests);
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

void LaneSum::reserve_memory(MemoryPlan& plan, bool makes_digests) {
  const int slots = buckets_->gradient_slots();
  std::uint64_t staging_elements = 0;
  staging_offsets_.resize(index(buckets_->ranks() * bucket_count_));
  for (int source = 0; source < buckets_->ranks(); ++source) {
    if (source == rank_) continue;
    for (int slot = 0; slot < slots; ++slot) {
      std::uint64_t largest = 0;
      for (int bucket = slot; bucket < buckets_->local_count(); bucket += slots) {
        staging_offsets_[index(source * bucket_count_ + bucket)] = staging_elements;
        largest = std::max(largest, buckets_->gradient_range(bucket, rank_).size());
      }
      staging_elements += (largest + staging_alignment - 1) / staging_alignment * staging_alignment;
    }
  }
  staging_slot_ =
      plan.reserve("lane_reduction.staging", MemoryClass::communication, staging_elements * sizeof(float));
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

float* LaneSum::lane(int wave, int source, int bucket) const {
  if (source == rank_) return gradients_ + buckets_->gradient_range(bucket, rank_).begin;
  if (wave == 0 && source == 0 && !in_place_) return result(bucket);
  return staging_ + staging_offsets_[index(source * bucket_count_ + bucket)];
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

// Returns the term to be added at `sum`. A sum in place begins in the staging of its first lane and moves to its place
// when the term that is there, which has this rank's own lane in it, has its turn: a + b and b + a are the same bits.
float* LaneSum::take_term(float*& sum, float* term, int bucket) const {
  if (term == result(bucket)) std::swap(sum, term);
  return term;
}

void LaneSum::launch_add(float* sum, const float* term, int bucket) {
  const auto count = static_cast<std::int64_t>(buckets_->gradient_range(bucket, rank_).size());
  device_->launch(Accumulate{.target = sum, .source = term, .count = count});
}

void LaneSum::add(int wave, int source, int bucket) {
  const OpScopeGuard of_no_microbatch(device_->scope(),
                                      {});  // it may be one of those that are being launched
  const int lane = schedule_.lane_of(wave, source);
  const bool of_first_block = lane < schedule_.block();
  float* const from = this->lane(wave, source, bucket);
  float*& sum = sums_[index(bucket)];
  float*& of_block = of_first_block ? sum : block_sums_[index(bucket)];
  const float* term = nullptr;  // remaining term to be added to the sum
  if (lane % schedule_.block() == 0) {
    of_block = begin_sum(lane, from, bucket);
  } else {
    term = take_term(of_block, from, bucket);
  }
  if (!of_first_block) {
    if (term != nullptr) launch_add(of_block, term, bucket);
    if ((lane + 1) % schedule_.block() != 0) return;
    term = take_term(sum, of_block, bucket);
  }
  const Bucket& kind = buckets_->buckets()[index(bucket)];
  const bool whole = tied_[index(bucket)] < 0 && kind.tied_to < 0 && !kind.is_exported;
  if (lane + 1 == schedule_.lanes() && whole) {
    finish(bucket, term);
  } else if (term != nullptr) {
    launch_add(sum, term, bucket);
  }
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
