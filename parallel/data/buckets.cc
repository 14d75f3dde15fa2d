#include "parallel/data/buckets.h"

#include <algorithm>
#include <numeric>

#include "runtime/core/check.h"

namespace holdfast::parallel {
namespace {

constexpr std::uint64_t alignment_elements = 16;

std::uint64_t align(std::uint64_t elements) {
  return (elements + alignment_elements - 1) / alignment_elements * alignment_elements;
}

std::uint64_t blocks_of(const BucketTensor& tensor) {
  return (tensor.elements() + block_elements - 1) / block_elements;
}

std::uint64_t blocks_of(const Bucket& bucket) {
  std::uint64_t blocks = 0;
  for (const BucketTensor& tensor : bucket.tensors) blocks += blocks_of(tensor);
  return blocks;
}

bool has_state(const Bucket& bucket) {
  return bucket.tied_to < 0 && !bucket.is_exported;
}

struct BlockRange {
  std::uint64_t begin = 0, end = 0;
};

BlockRange owned_blocks(std::uint64_t blocks, int position, int ranks) {
  const auto p = static_cast<std::uint64_t>(position);
  const auto d = static_cast<std::uint64_t>(ranks);
  return {.begin = blocks * p / d, .end = blocks * (p + 1) / d};
}

// Calls visit(tensor index, its first owned block, blocks, elements) for each tensor of which `owned` holds a
// part.
template <typename Visit>
void for_owned_parts(const Bucket& bucket, BlockRange owned, const Visit& visit) {
  std::uint64_t before = 0;  // number of blocks of the tensors before this one
  for (std::size_t t = 0; t < bucket.tensors.size(); ++t) {
    const std::uint64_t blocks = blocks_of(bucket.tensors[t]);
    const std::uint64_t begin = std::max(owned.begin, before), end = std::min(owned.end, before + blocks);
    if (begin < end) {
      const std::uint64_t last = std::min((end - before) * block_elements, bucket.tensors[t].elements());
      visit(t, begin - before, end - begin, last - (begin - before) * block_elements);
    }
    before += blocks;
  }
}

}  // namespace

ShardSpec shard_spec_of(const BucketTensor& tensor, const std::string& kind, DType dtype) {
  ShardSpec spec{.tensor = tensor.name,
                 .kind = kind,
                 .dtype = dtype,
                 .global_shape = tensor.global_shape.empty() ? tensor.shape : tensor.global_shape,
                 .slice = static_cast<std::uint32_t>(tensor.slice),
                 .slices = static_cast<std::uint32_t>(tensor.slices)};
  spec.block_count = spec.slice_blocks();
  return spec;
}

std::uint64_t BucketTensor::elements() const {
  std::uint64_t product = 1;
  for (const std::uint64_t extent : shape) product *= extent;
  return product;
}

BucketPlan::BucketPlan(std::vector<Bucket> buckets, int ranks, int gradient_slots, int lane_block)
    : buckets_(std::move(buckets)), ranks_(ranks) {
  HF_CHECK(ranks >= 1);
  ranks_by_position_.resize(static_cast<std::size_t>(ranks));
  std::iota(ranks_by_position_.begin(), ranks_by_position_.end(), 0);
  std::ranges::stable_sort(ranks_by_position_, {}, [lane_block](int rank) { return rank % lane_block; });
  positions_.resize(ranks_by_position_.size());
  for (std::size_t position = 0; position < positions_.size(); ++position)
    positions_[static_cast<std::size_t>(ranks_by_position_[position])] = static_cast<int>(position);
  for (const Bucket& bucket : buckets_) {
    const int index = static_cast<int>(&bucket - buckets_.data());
    HF_CHECK(std::ranges::all_of(
                 bucket.tensors,
                 [&](const BucketTensor& tensor) { return tensor.is_frozen == bucket.is_frozen(); }),
             "the bucket of {} is frozen in part", bucket.tensors.front().name);
    if (bucket.is_exported) exported_ = index;
    if (bucket.is_imported) {
      HF_CHECK(imported_ < 0, "more than one bucket is imported");
      imported_ = index;
    }
    if (bucket.is_imported || bucket.is_frozen()) continue;
    HF_CHECK(index == local_count_, "an imported or frozen bucket stands before {}",
             bucket.tensors.front().name);
    ++local_count_;
  }
  const bool shared = 0 < gradient_slots && gradient_slots < local_count_;
  gradient_slots_ = shared ? gradient_slots : local_count_;
  assign_parameter_offsets();
  shared ? share_gradient_memory() : assign_gradient_offsets();
  shard_ranges_.resize(buckets_.size() * static_cast<std::size_t>(ranks_));
  for (int rank = 0; rank < ranks_; ++rank) assign_shard_ranges(rank);
}

void BucketPlan::assign_parameter_offsets() {
  for (auto bucket = buckets_.rbegin(); bucket != buckets_.rend(); ++bucket) {
    if (bucket->tied_to >= 0) continue;
    for (BucketTensor& tensor : bucket->tensors) {
      HF_CHECK(tensor.elements() > 0, "tensor {} is empty", tensor.name);
      tensor.parameter_offset = parameter_elements_;
      parameter_elements_ += align(tensor.elements());
    }
  }
  for (Bucket& bucket : buckets_) {
    if (bucket.tied_to < 0) continue;
    HF_CHECK(static_cast<std::size_t>(bucket.tied_to) < buckets_.size());
    const Bucket& real = buckets_[static_cast<std::size_t>(bucket.tied_to)];
    HF_CHECK(real.tied_to < 0 && real.tensors.size() == bucket.tensors.size());
    for (std::size_t t = 0; t < bucket.tensors.size(); ++t) {
      HF_CHECK(bucket.tensors[t].shape == real.tensors[t].shape &&
                   bucket.tensors[t].slice == real.tensors[t].slice,
               "{} shadows {}", bucket.tensors[t].name, real.tensors[t].name);
      bucket.tensors[t].parameter_offset = real.tensors[t].parameter_offset;
    }
  }
}

void BucketPlan::assign_gradient_offsets() {
  for (const bool tied : {false, true}) {
    for (auto bucket = buckets_.rbegin(); bucket != buckets_.rend(); ++bucket) {
      if ((bucket->tied_to >= 0) != tied || bucket->is_frozen()) continue;
      for (BucketTensor& tensor : bucket->tensors) {
        tensor.gradient_offset = gradient_elements_;
        gradient_elements_ += align(tensor.elements());
      }
    }
  }
}

// Lets buckets share gradient memory. No lane of this stage fills an imported bucket, so that bucket needs
// no memory, whatever its offset.
void BucketPlan::share_gradient_memory() {
  const auto slots = static_cast<std::size_t>(gradient_slots_);
  for (std::size_t slot = 0; slot < slots; ++slot) {
    std::uint64_t largest = 0;
    for (std::size_t b = slot; b < buckets_.size() && !buckets_[b].is_frozen(); b += slots) {
      std::uint64_t elements = 0;
      for (BucketTensor& tensor : buckets_[b].tensors) {
        tensor.gradient_offset = gradient_elements_ + elements;
        elements += align(tensor.elements());
      }
      if (!buckets_[b].is_imported) largest = std::max(largest, elements);
    }
    gradient_elements_ += largest;
  }
}

void BucketPlan::assign_shard_ranges(int rank) {
  // Gives the buckets of one kind ranges of the shard buffers, one after another; returns their end.
  const auto assign = [&](bool frozen, bool stateful, std::uint64_t shard) {
    for (std::size_t b = 0; b < buckets_.size(); ++b) {
      const Bucket& bucket = buckets_[b];
      if (bucket.is_frozen() != frozen || has_state(bucket) != stateful) continue;
      ShardRange& shard_range = shard_ranges_[static_cast<std::size_t>(rank) * buckets_.size() + b];
      shard_range.shard_offset = shard;
      bool first = true;
      for_owned_parts(bucket, owned_blocks(blocks_of(bucket), position_of(rank), ranks_),
                      [&](std::size_t t, std::uint64_t first_block, std::uint64_t, std::uint64_t elements) {
                        const std::uint64_t begin = bucket.tensors[t].parameter_offset -
                                                    bucket.tensors.front().parameter_offset +
                                                    first_block * block_elements;
                        if (first) shard_range.range.begin = begin;
                        first = false;
                        shard_range.range.end = begin + elements;
                      });
      shard += align(shard_range.range.size());
    }
    return shard;
  };
  const std::uint64_t trained = assign(/*frozen=*/false, /*stateful=*/true, 0);
  shard_elements_.push_back(trained);
  accumulator_elements_.push_back(assign(/*frozen=*/false, /*stateful=*/false, trained));
  master_elements_.push_back(assign(/*frozen=*/true, /*stateful=*/true, trained));
  assign(/*frozen=*/true, /*stateful=*/false, 0);  // the state is on another stage
}

const BucketPlan::ShardRange& BucketPlan::shard_range(int bucket, int rank) const {
  HF_CHECK(0 <= bucket && static_cast<std::size_t>(bucket) < buckets_.size() && 0 <= rank && rank < ranks_);
  return shard_ranges_[static_cast<std::size_t>(rank) * buckets_.size() + static_cast<std::size_t>(bucket)];
}

ElementRange BucketPlan::parameter_range(int bucket, int rank) const {
  const ElementRange range = shard_range(bucket, rank).range;
  if (range.size() == 0) return {};
  const std::uint64_t start = buckets_[static_cast<std::size_t>(bucket)].tensors.front().parameter_offset;
  return {.begin = start + range.begin, .end = start + range.end};
}

ElementRange BucketPlan::gradient_range(int bucket, int rank) const {
  const ElementRange range = shard_range(bucket, rank).range;
  if (range.size() == 0 || is_frozen(bucket)) return {};
  const std::uint64_t start = buckets_[static_cast<std::size_t>(bucket)].tensors.front().gradient_offset;
  return {.begin = start + range.begin, .end = start + range.end};
}

std::uint64_t BucketPlan::shard_offset(int bucket, int rank) const {
  return shard_range(bucket, rank).shard_offset;
}

std::uint64_t BucketPlan::shard_elements(int rank) const {
  return shard_elements_[static_cast<std::size_t>(rank)];
}

std::uint64_t BucketPlan::master_elements(int rank) const {
  return master_elements_[static_cast<std::size_t>(rank)];
}

std::uint64_t BucketPlan::accumulator_elements(int rank) const {
  return accumulator_elements_[static_cast<std::size_t>(rank)];
}

std::vector<Segment> BucketPlan::segments_of(int rank, bool frozen) const {
  std::vector<Segment> result;
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    const Bucket& bucket = buckets_[b];
    if (!has_state(bucket) || bucket.is_frozen() != frozen) continue;
    const int index = static_cast<int>(b);
    const std::uint64_t range_begin = parameter_range(index, rank).begin;
    for_owned_parts(
        bucket, owned_blocks(blocks_of(bucket), position_of(rank), ranks_),
        [&](std::size_t t, std::uint64_t first_block, std::uint64_t blocks, std::uint64_t elements) {
          const BucketTensor& tensor = bucket.tensors[t];
          const std::uint64_t skipped = first_block * block_elements;
          const std::uint64_t parameter_offset = tensor.parameter_offset + skipped;
          result.push_back({.bucket = index,
                            .tensor = static_cast<int>(t),
                            .first_block = first_block,
                            .block_count = blocks,
                            .elements = elements,
                            .parameter_offset = parameter_offset,
                            .gradient_offset = tensor.gradient_offset + skipped,
                            .shard_offset = shard_offset(index, rank) + parameter_offset - range_begin});
        });
  }
  return result;
}

std::vector<ShardSpec> BucketPlan::shard_specs(int rank, const std::string& kind, DType dtype) const {
  std::vector<ShardSpec> result;
  const auto add = [&](const std::vector<Segment>& segments) {
    for (const Segment& segment : segments) {
      ShardSpec& spec = result.emplace_back(shard_spec_of(tensor(segment), kind, dtype));
      spec.first_block = segment.first_block;
      spec.block_count = segment.block_count;
    }
  };
  add(segments(rank));
  if (kind == "weight") add(frozen_segments(rank));
  return result;
}

}  // namespace holdfast::parallel
