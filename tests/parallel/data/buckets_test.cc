#include "parallel/data/buckets.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <set>

#include "tests/parallel/lane_reduction_harness.h"

namespace holdfast::test {
namespace {

Bucket bucket_of(std::vector<std::uint64_t> sizes) {
  Bucket bucket;
  for (const std::uint64_t size : sizes) {
    bucket.tensors.push_back({.name = fmt::format("t{}", bucket.tensors.size()), .shape = {size}});
  }
  return bucket;
}

TEST(Buckets, OwnershipByBlocks) {
  struct Case {
    std::vector<std::uint64_t> tensors;
    int ranks;
    std::vector<std::pair<std::uint64_t, std::uint64_t>> ranges;  // of parameters, by rank; {0, 0}: none
  };
  const std::vector<Case> cases = {
      {{1}, 1, {{0, 1}}},
      {{1}, 2, {{0, 0}, {0, 1}}},
      {{4096}, 2, {{0, 0}, {0, 4096}}},
      {{4097}, 2, {{0, 4096}, {4096, 4097}}},
      {{8192}, 2, {{0, 4096}, {4096, 8192}}},
      {{5 * 4096}, 3, {{0, 4096}, {4096, 3 * 4096}, {3 * 4096, 5 * 4096}}},
      {{1, 4097, 7}, 2, {{0, 16 + 4096}, {16 + 4096, 16 + 4112 + 7}}},  // tensors start at 0, 16 and 4128
  };
  for (const Case& c : cases) {
    const BucketPlan plan({bucket_of(c.tensors)}, c.ranks);
    for (int rank = 0; rank < c.ranks; ++rank) {
      const ElementRange range = plan.parameter_range(0, rank);
      const auto& expected = c.ranges[static_cast<std::size_t>(rank)];
      EXPECT_EQ(std::pair(range.begin, range.end), expected) << "rank " << rank << " of " << c.ranks;
    }
  }
}

// The first rank of every lane block, then the second ones: each has the same number of neighbours.
TEST(Buckets, OwnersStandByTheirPlaceInLaneBlocks) {
  const auto owners = [](int ranks, int block) {
    const BucketPlan plan({bucket_of({static_cast<std::uint64_t>(ranks) * block_elements})}, ranks, 0, block);
    std::vector<int> by_place(static_cast<std::size_t>(ranks), -1);
    for (int rank = 0; rank < ranks; ++rank) {
      const std::uint64_t place = plan.parameter_range(0, rank).begin / block_elements;
      by_place[place] = rank;
      EXPECT_EQ(plan.position_of(rank), static_cast<int>(place));
      EXPECT_EQ(plan.rank_at(static_cast<int>(place)), rank);
    }
    return by_place;
  };
  EXPECT_EQ(owners(5, 1), (std::vector<int>{0, 1, 2, 3, 4}));
  EXPECT_EQ(owners(6, 2), (std::vector<int>{0, 2, 4, 1, 3, 5}));
  EXPECT_EQ(owners(5, 2), (std::vector<int>{0, 2, 4, 1, 3}));
  EXPECT_EQ(owners(3, 8), (std::vector<int>{0, 1, 2}));
}

TEST(Buckets, ParametersLieInForwardOrderAndShadowGradientsLast) {
  std::vector<Bucket> buckets = {bucket_of({20}), bucket_of({16, 1}), bucket_of({20})};
  buckets[2].tied_to = 0;
  const BucketPlan plan(buckets, 1);
  EXPECT_EQ(plan.buckets()[1].tensors[0].parameter_offset, 0U);
  EXPECT_EQ(plan.buckets()[1].tensors[1].parameter_offset, 16U);
  EXPECT_EQ(plan.buckets()[0].tensors[0].parameter_offset, 32U);
  EXPECT_EQ(plan.parameter_elements(), 64U);
  EXPECT_EQ(plan.buckets()[2].tensors[0].parameter_offset, 32U);
  EXPECT_EQ(plan.buckets()[2].tensors[0].gradient_offset, 64U);
  EXPECT_EQ(plan.gradient_elements(), 96U);
}

TEST(Buckets, GradientsTakeTurnsInTheirPlaces) {
  const BucketPlan plan({bucket_of({40}), bucket_of({16, 1}), bucket_of({20}), bucket_of({100})}, 2, 2);
  EXPECT_TRUE(plan.shares_gradient_memory());
  EXPECT_EQ(plan.buckets()[0].tensors[0].gradient_offset, 0U);
  EXPECT_EQ(plan.buckets()[2].tensors[0].gradient_offset, 0U);
  EXPECT_EQ(plan.buckets()[1].tensors[0].gradient_offset, 48U);
  EXPECT_EQ(plan.buckets()[1].tensors[1].gradient_offset, 64U);
  EXPECT_EQ(plan.buckets()[3].tensors[0].gradient_offset, 48U);
  EXPECT_EQ(plan.gradient_elements(), 48U + 112U);
  const BucketPlan whole({bucket_of({40}), bucket_of({16, 1}), bucket_of({20}), bucket_of({100})}, 2, 4);
  EXPECT_FALSE(whole.shares_gradient_memory());
  EXPECT_EQ(whole.gradient_elements(), whole.parameter_elements());
}

// Frozen buckets have parameters and an owner, and nothing else.
TEST(Buckets, FrozenOnesHaveNoGradientsAndNoMoments) {
  std::vector<Bucket> buckets = {bucket_of({5000}), bucket_of({40}), bucket_of({9000, 3}), bucket_of({100})};
  for (const std::size_t frozen : {2U, 3U}) {
    for (BucketTensor& tensor : buckets[frozen].tensors) tensor.is_frozen = true;
  }
  const BucketPlan plan(buckets, 2), trained({buckets[0], buckets[1]}, 2);
  EXPECT_EQ(plan.local_count(), 2);
  EXPECT_EQ(plan.gradient_elements(), trained.gradient_elements());
  std::uint64_t frozen_elements = 0;
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(plan.shard_elements(rank), trained.shard_elements(rank));
    EXPECT_EQ(plan.accumulator_elements(rank), trained.accumulator_elements(rank));
    EXPECT_EQ(plan.gradient_range(2, rank).size(), 0U);
    for (const Segment& segment : plan.segments(rank)) EXPECT_LT(segment.bucket, 2);
    std::uint64_t end = plan.shard_elements(rank);  // of the master weights so far
    for (const Segment& segment : plan.frozen_segments(rank)) {
      EXPECT_GE(segment.bucket, 2);
      EXPECT_GE(segment.shard_offset, end);
      end = segment.shard_offset + segment.elements;
      frozen_elements += segment.elements;
    }
    EXPECT_LE(end, plan.master_elements(rank));
    EXPECT_EQ(plan.shard_specs(rank, "moment1").size(), plan.segments(rank).size());
    EXPECT_EQ(plan.shard_specs(rank, "weight").size(),
              plan.segments(rank).size() + plan.frozen_segments(rank).size());
  }
  EXPECT_EQ(frozen_elements, 9000U + 3U + 100U);
}

class BucketProperties : public testing::TestWithParam<int> {};

TEST_P(BucketProperties, EveryBlockHasOneOwner) {
  const BucketPlan plan(test::uneven_buckets(), GetParam());
  std::set<std::tuple<int, int, std::uint64_t>> owned;  // bucket, tensor, block
  std::uint64_t elements = 0;
  for (int rank = 0; rank < plan.ranks(); ++rank) {
    for (const Segment& segment : plan.segments(rank)) {
      for (std::uint64_t block = 0; block < segment.block_count; ++block) {
        EXPECT_TRUE(owned.emplace(segment.bucket, segment.tensor, segment.first_block + block).second);
      }
      elements += segment.elements;
    }
  }
  std::size_t blocks = 0;
  std::uint64_t all_elements = 0;
  for (const Bucket& bucket : plan.buckets()) {
    if (bucket.tied_to >= 0) continue;
    for (const BucketTensor& tensor : bucket.tensors) {
      blocks += (tensor.elements() + block_elements - 1) / block_elements;
      all_elements += tensor.elements();
    }
  }
  EXPECT_EQ(owned.size(), blocks);
  EXPECT_EQ(elements, all_elements);
}

TEST_P(BucketProperties, RangesShardsAndSegmentsAreConsistent) {
  const BucketPlan plan(test::uneven_buckets(), GetParam());
  const int count = static_cast<int>(plan.buckets().size());
  for (int rank = 0; rank < plan.ranks(); ++rank) {
    std::vector<int> uses(plan.accumulator_elements(rank));  // shard buffers: ranges never overlap
    for (int b = 0; b < count; ++b) {
      const ElementRange parameters = plan.parameter_range(b, rank), gradients = plan.gradient_range(b, rank);
      EXPECT_EQ(parameters.size(), gradients.size());
      EXPECT_EQ(parameters.begin % 16, 0U);
      EXPECT_EQ(gradients.begin % 16, 0U);
      EXPECT_EQ(plan.shard_offset(b, rank) % 16, 0U);
      const bool shadow = plan.buckets()[static_cast<std::size_t>(b)].tied_to >= 0;
      if (shadow) {
        const ElementRange real =
            plan.parameter_range(plan.buckets()[static_cast<std::size_t>(b)].tied_to, rank);
        EXPECT_EQ(parameters.begin, real.begin);
        EXPECT_EQ(parameters.end, real.end);
        EXPECT_GE(plan.shard_offset(b, rank), plan.shard_elements(rank));
      } else {
        EXPECT_LE(plan.shard_offset(b, rank) + gradients.size(), plan.shard_elements(rank));
      }
      for (std::uint64_t i = 0; i < gradients.size(); ++i) ++uses[plan.shard_offset(b, rank) + i];
    }
    EXPECT_EQ(std::count_if(uses.begin(), uses.end(), [](int n) { return n > 1; }), 0);
    for (const Segment& segment : plan.segments(rank)) {
      const ElementRange range = plan.gradient_range(segment.bucket, rank);
      EXPECT_GE(segment.gradient_offset, range.begin);
      EXPECT_LE(segment.gradient_offset + segment.elements, range.end);
      EXPECT_EQ(segment.shard_offset - plan.shard_offset(segment.bucket, rank),
                segment.gradient_offset - range.begin);
      EXPECT_EQ(segment.parameter_offset - plan.parameter_range(segment.bucket, rank).begin,
                segment.gradient_offset - range.begin);
    }
  }
}

TEST_P(BucketProperties, ShardSpecsOfAllRanksMakeAWholeState) {
  const BucketPlan plan(test::uneven_buckets(), GetParam()), alone(test::uneven_buckets(), 1);
  std::vector<ShardSpec> existing;
  for (int rank = 0; rank < plan.ranks(); ++rank) {
    const std::vector<ShardSpec> specs = plan.shard_specs(rank, "moment1");
    const std::vector<Segment> segments = plan.segments(rank);
    ASSERT_EQ(specs.size(), segments.size());
    for (std::size_t i = 0; i < specs.size(); ++i) {
      EXPECT_EQ(specs[i].element_count(), segments[i].elements);
      EXPECT_EQ(specs[i].first_block, segments[i].first_block);
      EXPECT_EQ(specs[i].kind, "moment1");
    }
    existing.insert(existing.end(), specs.begin(), specs.end());
  }
  const Result<std::vector<ShardCopy>> copies = plan_copies(existing, alone.shard_specs(0, "moment1"));
  EXPECT_TRUE(copies.ok()) << copies.error().message;
  existing.pop_back();
  EXPECT_FALSE(plan_copies(existing, alone.shard_specs(0, "moment1")).ok());
}

INSTANTIATE_TEST_SUITE_P(Ranks, BucketProperties, testing::Range(1, 10));

}  // namespace
}  // namespace holdfast::test
