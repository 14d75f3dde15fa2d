// The checks of `holdfast kernel check` find nothing wrong with Holdfast's own kernels, whatever they are tried on.
#include "tools/kernel_kit/kernel_check.h"

#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "kernels/activation.h"
#include "kernels/cross_entropy.h"
#include "kernels/norm.h"
#include "kernels/number_errors.h"
#include "kernels/registry.h"
#include "kernels/visit_op.h"
#include "runtime/measure/call_key.h"
#include "runtime/os/env.h"
#include "tools/kernel_kit/call_cut.h"
#include "tools/kernel_kit/call_states.h"
#include "tools/kernel_kit/check_shapes.h"
#include "tools/kernel_kit/checked_memory.h"
#include "tools/kernel_kit/kernel_folder.h"

namespace holdfast::test {
namespace {

namespace kit = bench::kernel_kit;

// Ops of which no call is cut in two: sums over what would be cut, tables, and bytes.
constexpr OpId whole_ops[] = {OpId::matmul,
                              OpId::bias_gradient,
                              OpId::embedding_backward,
                              OpId::layernorm_backward,
                              OpId::rmsnorm_backward,
                              OpId::cross_entropy_join,
                              OpId::loss_sum,
                              OpId::adamw,
                              OpId::lion,
                              OpId::fill_zero,
                              OpId::copy,
                              OpId::digest,
                              OpId::optimizer_digest};

class EveryOp : public testing::TestWithParam<std::size_t> {};

TEST_P(EveryOp, HasAKernelThatPasses) {
  const auto op = static_cast<OpId>(GetParam());
  const Implementation* const kernel = kernel_registry().find(op, "portable", CpuIsa::portable);
  ASSERT_NE(kernel, nullptr);
  std::string last;
  const Result<kit::KernelVerdict> verdict =
      kit::check_kernel(posix_env(), *kernel, [&](const std::string& what) { last = what; });
  ASSERT_TRUE(verdict.ok()) << verdict.error().message;
  EXPECT_TRUE(verdict->passed()) << fmt::format("{}", fmt::join(verdict->problems, "\n"));
  EXPECT_GT(verdict->computed, 0);
  EXPECT_EQ(verdict->computed, verdict->calls);
  EXPECT_TRUE(verdict->layout_free) << fmt::format("{}", fmt::join(verdict->notes, "\n"));
  EXPECT_FALSE(last.empty());
  EXPECT_EQ(verdict->cut == 0, std::ranges::find(whole_ops, op) != std::end(whole_ops)) << verdict->cut;
  // The kernel under test has the bits of the default of most ops, so what is allowed for the default's sake would excuse
  // anything: here it does not count.
  for (const kit::CallVerdict& each : verdict->numbers) {
    EXPECT_LE(each.errors.relative(), each.limits.own) << each.call << ", " << each.array;
    EXPECT_EQ(each.errors.wrong_kind, 0) << each.call << ", " << each.array;
  }
}

TEST(CheckShapes, HaveTargetsOfTheirVocabularyAndRowsWithoutOne) {
  const Result<std::vector<kit::CheckShape>> shapes = kit::check_shapes(posix_env(), OpId::cross_entropy);
  ASSERT_TRUE(shapes.ok()) << shapes.error().message;
  std::set<std::int64_t> vocabularies;
  int without = 0;
  for (const kit::CheckShape& each : *shapes) {
    CrossEntropy op;
    std::memcpy(&op, each.call.arguments(), sizeof(op));
    kit::CheckedMemory memory({.seed = 1, .contents = each.contents});
    op = memory.bind(op);
    vocabularies.insert(op.vocabulary);
    for (std::int64_t row = 0; row < op.rows; ++row) {
      EXPECT_LT(op.targets[row], op.vocabulary);
      without += op.targets[row] < 0 ? 1 : 0;
    }
  }
  EXPECT_TRUE(vocabularies.contains(1) && vocabularies.contains(33));
  EXPECT_GT(without, 0);
}

// Models call ops in few of the states that contracts allow.
template <typename Op>
std::set<std::string> states_of() {
  const Result<std::vector<kit::CheckShape>> shapes = kit::check_shapes(posix_env(), Op::id);
  HF_CHECK(shapes.ok(), "{}", shapes.error().message);
  std::set<std::string> states;
  for (const kit::CheckShape& each : *shapes) {
    if (each.use == "odd") states.insert(measure::call_key(Op::id, each.call.arguments()).state);
  }
  return states;
}

TEST(CheckShapes, HaveEveryStateThatAContractAllows) {
  EXPECT_EQ(states_of<Rotary>().size(), 2U * 2U) << "back and forth, in two types";
  EXPECT_EQ(states_of<Accumulate>().size(), 3U + 2U) << "sums, digests of them, both with segments";
  EXPECT_EQ(states_of<SquareSum>().size(), 2U + 2U);
  EXPECT_EQ(states_of<CrossEntropyJoin>().size(), 1U);
  EXPECT_EQ(states_of<CrossEntropy>().size(), 2U * 2U);
  EXPECT_EQ(states_of<AdamW>().size(), 5U * 2U * 2U)
      << "digests: none, written, compared, of gradients, both; kept or not";
  for (const char* const part : {"accumulate=1", "dresidual=own", "dresidual=null"}) {
    EXPECT_TRUE(std::ranges::any_of(states_of<RmsNormBackward>(), [&](const std::string& state) {
      return state.find(part) != std::string::npos;
    })) << part;
  }
}

// What an alias leaves of the arrays behind it: the same numbers.
TEST(CheckedMemory, HasNumbersThatDoNotDependOnAliases) {
  const std::byte places[2] = {};
  const auto weights = [&](const void* dx) {
    kit::CheckedMemory memory({.seed = 1});
    RmsNormBackward op{.dresidual = places, .dx = const_cast<void*>(dx), .rows = 2, .width = 3};
    op.accumulate = true;
    op = memory.bind(op);
    return std::vector<float>(op.weight_gradient, op.weight_gradient + 3);
  };
  EXPECT_EQ(weights(places), weights(places + 1));
}

// Of the digests that an update compares, one of each kind is wrong.
TEST(CheckedMemory, HasDamageInOneBlock) {
  const std::shared_ptr<const kit::CallLists> lists = kit::make_lists(9000, false);
  const std::byte places[4] = {};
  const auto at = [&](int i) { return const_cast<std::byte*>(places + i); };
  AdamW op{.tensors = lists->tensors.data(), .tensor_count = 3, .block_count = lists->blocks};
  op.block_digests = reinterpret_cast<std::uint64_t*>(at(0));
  op.checks_digests = true;
  op.damage = reinterpret_cast<StateDamage*>(at(1));
  op.gradient_digests = reinterpret_cast<std::uint64_t*>(at(2));
  op.gradient_damage = reinterpret_cast<StateDamage*>(at(3));
  kit::CheckedMemory memory({.seed = 1});
  op = memory.bind(op);
  reference(op);
  EXPECT_EQ(op.damage->block_count, 1U);
  EXPECT_EQ(op.damage->first_block, static_cast<std::uint64_t>(lists->blocks / 2));
  EXPECT_EQ(op.gradient_damage->block_count, 1U);
  EXPECT_EQ(op.gradient_damage->first_block, static_cast<std::uint64_t>(lists->blocks - 1));
}

std::string name_of_op(const testing::TestParamInfo<std::size_t>& tested) {
  return op_names[tested.param];
}

INSTANTIATE_TEST_SUITE_P(Checks, EveryOp, testing::Range<std::size_t>(0, op_count), name_of_op);

TEST(Contracts, AreInTheHeaderForEveryOp) {
  for (std::size_t index = 0; index < op_count; ++index) {
    const std::string contract = kit::contract_of(static_cast<OpId>(index));
    EXPECT_THAT(contract, testing::HasSubstr(fmt::format("typedef struct hf_{} {{\n", op_names[index])));
    EXPECT_THAT(contract, testing::Not(testing::HasSubstr("=== op"))) << "that of one op alone";
  }
}

std::vector<std::byte> bytes_of_floats(const std::vector<float>& values) {
  std::vector<std::byte> bytes(values.size() * sizeof(float));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

TEST(NumberErrors, CountsUnitsInTheLastPlace) {
  const auto actual = bytes_of_floats({1.0F, 1.0F + 0x1p-23F, 2.0F, -4.0F, 0.0F});
  const auto expected = bytes_of_floats({1.0F, 1.0F, 2.0F + 0x1p-20F, -4.0F, -0.0F});
  const NumberErrors errors = compare_numbers(actual, expected, DType::fp32, false);
  EXPECT_EQ(errors.count, 5);
  EXPECT_EQ(errors.ulp_max, 4.0) << "2^-20 beside 2 is 4 times 2^-22";
  EXPECT_EQ(errors.worst, 2);
  EXPECT_EQ(errors.ulp_mean(), 1.0);
  EXPECT_EQ(errors.histogram[0], 3);
  EXPECT_EQ(errors.histogram[1], 1);
  EXPECT_EQ(errors.histogram[3], 1);
  EXPECT_EQ(errors.relative(), 0x1p-20 / 4.0);
}

TEST(NumberErrors, TellsNumbersThatAreNotFinite) {
  const float infinity = std::numeric_limits<float>::infinity(),
              nan = std::numeric_limits<float>::quiet_NaN();
  const auto same = bytes_of_floats({infinity, nan, 1.0F});
  EXPECT_EQ(compare_numbers(same, same, DType::fp32, false).wrong_kind, 0);
  const auto expected = bytes_of_floats({-infinity, 0.0F, nan});
  const NumberErrors errors = compare_numbers(same, expected, DType::fp32, false);
  EXPECT_EQ(errors.wrong_kind, 3);
  EXPECT_EQ(errors.first_wrong_kind, 0);
}

TEST(ErrorLimits, AllowTheNeighbourOfABf16Number) {
  const std::uint16_t actual[] = {0xBFA9}, expected[] = {0xBFA8};  // -1.3203125 for -1.3125
  NumberErrors errors = compare_numbers(std::as_bytes(std::span(actual)), std::as_bytes(std::span(expected)),
                                        DType::bf16, false);
  EXPECT_EQ(errors.ulp_max, 1.0);
  errors.largest_expected = 1.75;
  EXPECT_LE(errors.relative(), error_limits(DType::bf16, false, {}).relative)
      << "a sum near the middle of both may be rounded to either";
  errors.largest_error *= 2.0;
  EXPECT_GT(errors.relative(), error_limits(DType::bf16, false, {}).relative);
}

TEST(ErrorLimits, AllowSomeTimesTheErrorOfADefaultThatIsNotFarOff) {
  const auto limits = [](double error) {
    return error_limits(DType::fp32, false, {.largest_error = error, .largest_expected = 1.0});
  };
  EXPECT_EQ(limits(0.0).relative, 4e-6);
  EXPECT_EQ(limits(1e-3).relative, 4e-3);
  EXPECT_EQ(limits(1e-3).own, 4e-6);
  for (const double error : {0.5, 1e30, std::numeric_limits<double>::infinity()})
    EXPECT_EQ(limits(error).relative, 4e-6) << "a default that is wrong excuses nothing: " << error;
  EXPECT_EQ(error_limits(DType::fp32, false, {.wrong_kind = 2}).wrong_kind, 2)
      << "no more numbers of the wrong kind than the default has";
  EXPECT_EQ(error_limits(DType::int32, true, {.largest_error = 1.0}).relative, 0.0);
}

TEST(CutInTwo, MovesWhatBelongsToTheSecondPart) {
  const float x[12] = {};
  const float weight[3] = {};
  float y[12], rstd[4];
  const RmsNormForward op{.x = x, .weight = weight, .y = y, .rstd = rstd, .rows = 4, .width = 3};
  const auto parts = kit::cut_in_two(op);
  ASSERT_TRUE(parts.has_value());
  EXPECT_EQ(parts->first.rows, 1);
  EXPECT_EQ(parts->second.rows, 3);
  EXPECT_EQ(parts->first.y, y);
  EXPECT_EQ(parts->second.x, x + 3);
  EXPECT_EQ(parts->second.y, y + 3);
  EXPECT_EQ(parts->second.rstd, rstd + 1);
  EXPECT_EQ(parts->second.weight, weight) << "which both parts read";
  EXPECT_FALSE(kit::cut_in_two(RmsNormForward{.rows = 1, .width = 3}).has_value());
}

TEST(CheckedMemory, NamesWhatIsWrittenWhereNothingMayBe) {
  const auto damage_of = [](std::int64_t index, bool in_input) {
    kit::CheckedMemory memory({.seed = 1});
    const GeluForward op = memory.bind(GeluForward{.count = 10});
    auto* const target = in_input ? static_cast<float*>(const_cast<void*>(op.x)) : static_cast<float*>(op.y);
    for (std::int64_t i = 0; i < 10; ++i) static_cast<float*>(op.y)[i] = 1.0F;
    target[index] = 2.0F;
    return memory.damage();
  };
  EXPECT_EQ(damage_of(9, false), "");
  EXPECT_THAT(damage_of(10, false), testing::HasSubstr(" after the last element of y"));
  EXPECT_THAT(damage_of(-1, false), testing::HasSubstr("before the first element of y"));
  EXPECT_EQ(damage_of(3, true), "it writes element 3 of x, which the op only reads");
}

}  // namespace
}  // namespace holdfast::test
