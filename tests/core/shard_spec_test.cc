#include "runtime/core/shard_spec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "runtime/core/random.h"

namespace holdfast::test {
namespace {

using testing::HasSubstr;

ShardSpec piece(std::string tensor, std::uint64_t elements, std::uint64_t first_block,
                std::uint64_t block_count) {
  return {.tensor = std::move(tensor),
          .kind = "weight",
          .dtype = DType::fp32,
          .global_shape = {elements},
          .first_block = first_block,
          .block_count = block_count};
}

TEST(ShardSpec, CountsWithAShortLastBlock) {
  const ShardSpec whole = piece("t", 10'000, 0, 3);
  EXPECT_EQ(whole.slice_blocks(), 3u);
  EXPECT_EQ(whole.element_count(), 10'000u);
  EXPECT_EQ(whole.byte_count(), 40'000u);
  EXPECT_EQ(piece("t", 10'000, 2, 1).element_count(), 10'000u - 8192u);
  EXPECT_EQ(piece("t", 10'000, 1, 1).element_count(), 4096u);
  EXPECT_EQ(piece("t", 10'000, 3, 0).element_count(), 0u);
  EXPECT_EQ(piece("t", 8192, 1, 1).element_count(), 4096u);
}

TEST(ShardSpec, ScalarsEmptyAndAbsurdShapes) {
  ShardSpec spec = piece("t", 1, 0, 1);
  spec.global_shape = {};
  EXPECT_EQ(spec.element_count(), 1u);
  spec.global_shape = {5, 0};
  EXPECT_EQ(spec.slice_blocks(), 0u);
  EXPECT_EQ(spec.element_count(), 0u);
  spec.global_shape = {std::uint64_t{1} << 40, std::uint64_t{1} << 40};
  EXPECT_EQ(spec.tensor_elements(), ~std::uint64_t{0});
}

TEST(PlanCopies, OneToManyAndBack) {
  const std::vector<ShardSpec> whole = {piece("t", 10'000, 0, 3)};
  const std::vector<ShardSpec> split = {piece("t", 10'000, 0, 1), piece("t", 10'000, 1, 2)};
  const auto down = plan_copies(whole, split).value();
  ASSERT_EQ(down.size(), 2u);
  EXPECT_EQ(down[1].wanted_index, 1u);
  EXPECT_EQ(down[1].existing_offset, 4096u);
  EXPECT_EQ(down[1].wanted_offset, 0u);
  EXPECT_EQ(down[1].element_count, 10'000u - 4096u);
  const auto up = plan_copies(split, whole).value();
  ASSERT_EQ(up.size(), 2u);
  EXPECT_EQ(up[1].existing_index, 1u);
  EXPECT_EQ(up[1].wanted_offset, 4096u);
}

ShardSpec slice_of(std::string tensor, std::uint32_t slice, std::uint32_t slices) {
  ShardSpec spec = piece(std::move(tensor), 10'000, 0, 0);
  spec.slice = slice;
  spec.slices = slices;
  spec.block_count = spec.slice_blocks();
  return spec;
}

TEST(ShardSpec, SlicesHaveBlocksOfTheirOwn) {
  EXPECT_EQ(slice_of("t", 1, 2).slice_blocks(), 2u);
  EXPECT_EQ(slice_of("t", 1, 2).element_count(), 5000u);
  EXPECT_EQ(slice_of("t", 3, 4).element_count(), 2500u);
}

TEST(PlanCopies, OfSlicesEachFromItsOwn) {
  const std::vector<ShardSpec> both = {slice_of("t", 0, 2), slice_of("t", 1, 2)};
  const auto copies = plan_copies(both, {both[1], both[0]}).value();
  ASSERT_EQ(copies.size(), 2u);
  EXPECT_EQ(copies[0].existing_index, 1u);
  EXPECT_EQ(copies[1].existing_index, 0u);
  EXPECT_EQ(copies[0].element_count, 5000u);
}

TEST(PlanCopies, OtherSlicesAreRefused) {
  const auto fewer = plan_copies({slice_of("t", 0, 2), slice_of("t", 1, 2)}, {slice_of("t", 3, 4)});
  EXPECT_EQ(fewer.error().code, ExitCode::checkpoint);
  EXPECT_THAT(fewer.error().message, HasSubstr("'t' (weight) exists in 2 slices, but 4 are wanted"));
  EXPECT_THAT(plan_copies({slice_of("t", 0, 2)}, {slice_of("t", 0, 1)}).error().message,
              HasSubstr("exists in 2 slices, but 1 are wanted"));
}

TEST(WholeSlices, AsksForThoseOfWhichNothingIsThere) {
  std::vector<ShardSpec> pieces = {slice_of("t", 1, 2), piece("u", 10'000, 1, 1), piece("u", 10'000, 0, 1)};
  pieces[0].block_count = 1;
  const std::vector<ShardSpec> whole = whole_slices(pieces);
  EXPECT_EQ(whole,
            (std::vector<ShardSpec>{slice_of("t", 0, 2), slice_of("t", 1, 2), piece("u", 10'000, 0, 3)}));
  const auto missing = plan_copies({slice_of("t", 1, 2)}, whole_slices({slice_of("t", 1, 2)}));
  EXPECT_THAT(missing.error().message, HasSubstr("'t' (slice 0 of 2)"));
}

TEST(PlanCopies, EmptyWantsNothing) {
  EXPECT_TRUE(plan_copies({}, {}).value().empty());
  EXPECT_TRUE(plan_copies({}, {piece("t", 100, 0, 0)}).value().empty());
}

TEST(PlanCopies, ErrorsNameTheTensor) {
  const auto missing = plan_copies({piece("t", 9000, 0, 1)}, {piece("t", 9000, 0, 3)});
  EXPECT_EQ(missing.error().code, ExitCode::checkpoint);
  EXPECT_THAT(missing.error().message, HasSubstr("'t' (weight)"));
  EXPECT_THAT(missing.error().message, HasSubstr("no piece holds element 4096"));

  const auto hole = plan_copies({piece("t", 9000, 0, 1), piece("t", 9000, 2, 1)}, {piece("t", 9000, 0, 3)});
  EXPECT_THAT(hole.error().message, HasSubstr("no piece holds element 4096"));

  EXPECT_THAT(plan_copies({}, {piece("u", 5, 0, 1)}).error().message, HasSubstr("'u'"));

  ShardSpec moment = piece("t", 5, 0, 1);
  moment.kind = "moment1";
  EXPECT_FALSE(plan_copies({moment}, {piece("t", 5, 0, 1)}).ok()) << "another kind is another tensor";

  ShardSpec other = piece("t", 5, 0, 1);
  other.dtype = DType::bf16;
  EXPECT_THAT(plan_copies({other}, {piece("t", 5, 0, 1)}).error().message,
              HasSubstr("exists as bf16 of shape [5]"));
  EXPECT_THAT(plan_copies({piece("t", 6, 0, 1)}, {piece("t", 5, 0, 1)}).error().message,
              HasSubstr("shape [6]"));

  EXPECT_THAT(plan_copies({piece("t", 5, 0, 2)}, {}).error().message, HasSubstr("damaged"));
  EXPECT_THAT(plan_copies({piece("t", 5, ~std::uint64_t{0}, 2)}, {}).error().message, HasSubstr("damaged"));
}

// Random pieces with overlaps: every wanted element is written exactly once, from the same global element.
TEST(PlanCopies, EveryWantedElementComesOnceFromItself) {
  const RandomStream stream(2, 3);
  std::uint64_t element = 0;
  const auto below = [&](std::uint64_t bound) { return stream.bits(element++) % bound; };
  for (int trial = 0; trial < 300; ++trial) {
    const std::uint64_t blocks = 1 + below(12);
    const std::uint64_t elements = (blocks - 1) * block_elements + 1 + below(block_elements);
    const auto random_pieces = [&](bool cover) {
      std::vector<ShardSpec> pieces;
      for (std::uint64_t block = 0; block < blocks;) {
        const std::uint64_t count = 1 + below(blocks - block);
        const std::uint64_t start = cover ? block - below(block + 1) : block;
        pieces.push_back(piece("t", elements, start, block + count - start));
        block += count;
      }
      if (below(2) == 0) std::ranges::reverse(pieces);
      return pieces;
    };
    const std::vector<ShardSpec> existing = random_pieces(true);
    const std::vector<ShardSpec> wanted = random_pieces(false);
    const auto plan = plan_copies(existing, wanted);
    ASSERT_TRUE(plan.ok()) << plan.error().message;
    std::vector<int> written(elements);
    for (const ShardCopy& copy : *plan) {
      const ShardSpec& source = existing[copy.existing_index];
      const ShardSpec& target = wanted[copy.wanted_index];
      ASSERT_EQ(source.first_element() + copy.existing_offset, target.first_element() + copy.wanted_offset);
      ASSERT_LE(copy.existing_offset + copy.element_count, source.element_count());
      ASSERT_LE(copy.wanted_offset + copy.element_count, target.element_count());
      for (std::uint64_t i = 0; i < copy.element_count; ++i)
        ++written[target.first_element() + copy.wanted_offset + i];
    }
    ASSERT_TRUE(std::ranges::all_of(written, [](int times) { return times == 1; }));
  }
}

// An inventory: two tensors, whole or in slices, of which pieces exist and are wanted; empty ones, too.
class RandomPieces {
 public:
  explicit RandomPieces(unsigned seed) : random_(seed) {}
  std::uint64_t below(std::uint64_t limit) { return random_() % limit; }
  void begin_inventory() {
    for (Tensor& tensor : tensors_) {
      tensor.slices = 1 + static_cast<std::uint32_t>(below(2));
      tensor.slice_elements = below(4) == 0 ? 0 : below(3 * block_elements) + 1;
    }
  }
  std::vector<ShardSpec> pieces(std::uint64_t most) {
    std::vector<ShardSpec> pieces(below(most + 1));
    std::ranges::generate(pieces, [this] { return one(); });
    return pieces;
  }

 private:
  struct Tensor {
    std::uint32_t slices = 1;
    std::uint64_t slice_elements = 0;
  };
  ShardSpec one() {
    const std::size_t which = below(tensors_.size());
    const Tensor& tensor = tensors_[which];
    ShardSpec spec = piece(which == 0 ? "t" : "u", tensor.slice_elements * tensor.slices, 0, 0);
    spec.kind = below(4) == 0 ? "moment1" : "weight";
    spec.slices = tensor.slices;
    spec.slice = static_cast<std::uint32_t>(below(tensor.slices));
    spec.first_block = below(spec.slice_blocks() + 1);
    spec.block_count = below(spec.slice_blocks() - spec.first_block + 1);
    return spec;
  }
  std::mt19937 random_;
  std::array<Tensor, 2> tensors_;
};

bool exists(const std::vector<ShardSpec>& existing, const ShardSpec& wanted, std::uint64_t block) {
  return std::ranges::any_of(existing, [&](const ShardSpec& piece) {
    return piece.tensor == wanted.tensor && piece.kind == wanted.kind && piece.slice == wanted.slice &&
           piece.first_block <= block && block < piece.first_block + piece.block_count;
  });
}

bool all_exists(const std::vector<ShardSpec>& existing, const std::vector<ShardSpec>& wanted) {
  return std::ranges::all_of(wanted, [&](const ShardSpec& spec) {
    for (std::uint64_t block = spec.first_block; block < spec.first_block + spec.block_count; ++block)
      if (!exists(existing, spec, block)) return false;
    return true;
  });
}

// Checks that the copies of each wanted piece follow each other from its begin to its end, each from where
// the same elements of the same tensor are.
void expect_each_once(const std::vector<ShardCopy>& copies, const std::vector<ShardSpec>& existing,
                      const std::vector<ShardSpec>& wanted) {
  std::vector<std::uint64_t> written(wanted.size());
  for (const ShardCopy& copy : copies) {
    const ShardSpec& source = existing[copy.existing_index];
    const ShardSpec& target = wanted[copy.wanted_index];
    ASSERT_EQ(source.tensor + source.kind, target.tensor + target.kind);
    ASSERT_EQ(source.slice, target.slice);
    ASSERT_GT(copy.element_count, 0u);
    ASSERT_EQ(copy.wanted_offset, written[copy.wanted_index]);
    ASSERT_EQ(source.first_element() + copy.existing_offset, target.first_element() + copy.wanted_offset);
    ASSERT_LE(copy.existing_offset + copy.element_count, source.element_count());
    written[copy.wanted_index] += copy.element_count;
  }
  for (std::size_t i = 0; i < wanted.size(); ++i) ASSERT_EQ(written[i], wanted[i].element_count());
}

TEST(PlanCopies, SucceedsExactlyWhereEverythingWantedExists) {
  constexpr int inventories = 100'000;
  RandomPieces random(20261124);
  int planned = 0;
  for (int i = 0; i < inventories; ++i) {
    random.begin_inventory();
    const std::vector<ShardSpec> existing = random.pieces(8), wanted = random.pieces(3);
    const auto plan = plan_copies(existing, wanted);
    ASSERT_EQ(plan.ok(), all_exists(existing, wanted)) << "inventory " << i;
    if (!plan.ok()) {
      ASSERT_EQ(plan.error().code, ExitCode::checkpoint);
      continue;
    }
    ++planned;
    expect_each_once(*plan, existing, wanted);
    if (testing::Test::HasFatalFailure()) FAIL() << "inventory " << i;
  }
  EXPECT_GT(planned, inventories / 5);
  EXPECT_LT(planned, inventories - inventories / 5);
}

}  // namespace
}  // namespace holdfast::test
