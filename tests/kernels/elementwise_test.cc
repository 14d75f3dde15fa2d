#include "kernels/elementwise.h"

#include <cmath>

#include "kernels/optimizer.h"
#include "tests/kernels/op_test.h"
#include "tests/kernels/segmented_op.h"

namespace holdfast::test {
namespace {

constexpr std::int64_t counts[] = {0, 1, 15, 16, 17, 1000, 70003};

KERNEL_CASES(AddMatchesReference, OpId::add) {
  for (const DType dtype : {DType::fp32, DType::bf16}) {
    for (const std::int64_t count : counts) {
      SCOPED_TRACE(count);
      const Tensors tensors = {random_values(count, dtype, 1), random_values(count, dtype, 2),
                               Values(count, dtype)};
      expect_op(tensors, [&](Tensors& t) {
        return Add{.a = t[0].data(), .b = t[1].data(), .y = t[2].data(), .count = count, .dtype = dtype};
      });
    }
  }
}

KERNEL_CASES(AddWorksInPlace, OpId::add) {
  const std::int64_t count = 40001;
  const Tensors tensors = {random_values(count, DType::bf16, 1), random_values(count, DType::bf16, 2)};
  for (const std::size_t target : {0U, 1U}) {
    expect_op(tensors, [&](Tensors& t) {
      return Add{
          .a = t[0].data(), .b = t[1].data(), .y = t[target].data(), .count = count, .dtype = DType::bf16};
    });
  }
}

KERNEL_CASES(AccumulateMatchesReference, OpId::accumulate) {
  for (const std::int64_t count : counts) {
    SCOPED_TRACE(count);
    const Tensors tensors = {random_values(count, DType::fp32, 1), random_values(count, DType::fp32, 2)};
    expect_op(tensors, [&](Tensors& t) {
      return Accumulate{.target = t[0].as<float>(), .source = t[1].as<float>(), .count = count};
    });
  }
}

constexpr std::int64_t block_counts[] = {1, 31, 32, 4095, 4096, 4097, 200'003};

// Tensors: target, source, block sums.
Tensors square_sum_tensors(std::int64_t count) {
  return {random_values(count, DType::fp32, 1), random_values(count, DType::fp32, 2),
          Values((count + 4095) / 4096, DType::fp64)};
}
Accumulate accumulate_with_squares(Tensors& t) {
  return {.target = t[0].as<float>(),
          .source = t[1].as<float>(),
          .count = t[0].count(),
          .square_sums = t[2].as<double>()};
}

KERNEL_CASES(AccumulateWithBlockSumsMatchesReference, OpId::accumulate) {
  for (const std::int64_t count : block_counts) {
    SCOPED_TRACE(count);
    expect_op(square_sum_tensors(count), accumulate_with_squares);
  }
}

// Target and sums have the same bits with digests as without.
KERNEL_CASES(AccumulateTakesTheDigestsOfTheResult, OpId::accumulate) {
  for (const std::int64_t count : block_counts) {
    SCOPED_TRACE(count);
    Tensors tensors = square_sum_tensors(count);
    tensors.emplace_back(tensors[2].count(), DType::fp64);
    for (const int threads : under_test()->thread_counts()) {
      const auto made = run_under_test(
          tensors,
          [](Tensors& t) {
            Accumulate op = accumulate_with_squares(t);
            op.digests = t[3].as<std::uint64_t>();
            return op;
          },
          threads);
      if (!made) return;
      const Tensors plain = *run_under_test(tensors, accumulate_with_squares, threads);
      for (const std::size_t t : {0U, 2U}) EXPECT_TRUE((*made)[t].same_bits(plain[t])) << t;
      Tensors expected = plain;
      reference(SquareSum{.values = expected[0].as<float>(),
                          .count = count,
                          .sums = expected[2].as<double>(),
                          .digests = expected[3].as<std::uint64_t>()});
      EXPECT_TRUE((*made)[3].same_bits(expected[3]));
      EXPECT_TRUE((*made)[3].guard_intact());
    }
  }
}

KERNEL_CASES(AccumulateOfSegmentsIsThatOfEach, OpId::accumulate) {
  expect_like_each_segment(2, [](Tensors& t, const BlockSegment& segment) {
    return Accumulate{.target = t[0].as<float>() + segment.first,
                      .source = t[1].as<float>() + segment.first,
                      .count = segment.count,
                      .square_sums = t[2].as<double>() + segment.first_block,
                      .digests = t[3].as<std::uint64_t>() + segment.first_block};
  });
}

// Those of SquareSum of the result, bit for bit.
TEST(Elementwise, AccumulateTakesTheBlockSumsOfSquaresOfTheResult) {
  for (const std::int64_t count : block_counts) {
    SCOPED_TRACE(count);
    const Tensors result = run_op(square_sum_tensors(count), accumulate_with_squares, 2, best_cpu_isa());
    const Tensors squares = run_op(
        result,
        [&](Tensors& t) {
          return SquareSum{.values = t[0].as<float>(), .count = count, .sums = t[2].as<double>()};
        },
        2, best_cpu_isa());
    EXPECT_TRUE(result[2].same_bits(squares[2]));
  }
}

KERNEL_CASES(CastIsExactlyTheScalarConversion, OpId::cast) {
  for (const std::int64_t count : counts) {
    SCOPED_TRACE(count);
    const Tensors tensors = {random_values(count, DType::fp32, 1, 1e3), Values(count, DType::bf16)};
    const auto bind = [&](Tensors& t) {
      return Cast{.source = t[0].as<float>(), .target = t[1].as<BFloat16>(), .count = count};
    };
    expect_op(tensors, bind);
    const auto result = run_under_test(tensors, bind, 2);
    EXPECT_TRUE(!result || (*result)[1].same_bits(run_reference(tensors, bind)[1]));
  }
}

KERNEL_CASES(CastKeepsInfinitiesAndNans, OpId::cast) {
  const double special[] = {INFINITY, -INFINITY, NAN, 3.4e38, -3.4e38, 1e-40, -0.0, 1.00390625};
  const std::int64_t count = 24;  // a whole vector and a tail
  Tensors tensors = {Values(count, DType::fp32), Values(count, DType::bf16)};
  for (std::int64_t i = 0; i < count; ++i) tensors[0].set(i, special[i % 8]);
  const auto bind = [&](Tensors& t) {
    return Cast{.source = t[0].as<float>(), .target = t[1].as<BFloat16>(), .count = count};
  };
  const auto result = run_under_test(tensors, bind);
  if (!result) return;
  Values got = (*result)[1], expected = run_reference(tensors, bind)[1];
  if (!under_test()->on_processor()) {  // a GPU has one NaN for all
    for (std::int64_t i = 2; i < count; i += 8) {
      EXPECT_TRUE(std::isnan(got[i])) << i;
      got.set(i, 0);
      expected.set(i, 0);
    }
  }
  EXPECT_TRUE(got.same_bits(expected));
}

KERNEL_CASES(FillZeroAndCopyTouchExactlyTheirBytes, OpId::fill_zero, OpId::copy) {
  const std::int64_t count = 50000;
  for (const std::int64_t bytes : {0, 1, 63, 65536, 65537, 199999}) {
    SCOPED_TRACE(bytes);
    const Tensors tensors = {random_values(count, DType::fp32, 1), random_values(count, DType::fp32, 2)};
    expect_op(tensors, [&](Tensors& t) { return FillZero{.target = t[0].data(), .bytes = bytes}; });
    const auto copy = [&](Tensors& t) {
      return Copy{.source = t[0].data(), .target = t[1].data(), .bytes = bytes};
    };
    expect_op(tensors, copy);
    const auto copied = run_under_test(tensors, copy, 3);
    if (!copied) continue;
    EXPECT_EQ(std::memcmp((*copied)[1].data(), tensors[0].data(), static_cast<std::size_t>(bytes)), 0);
  }
}

KERNEL_CASES(CopyRowsLeavesWhatIsBetweenRows, OpId::copy_rows) {
  struct Shape {
    std::int64_t rows, columns, source_stride, target_stride;
  };
  for (const DType dtype : {DType::fp32, DType::bf16}) {
    for (const Shape& s : {Shape{5, 8, 24, 8}, Shape{5, 8, 8, 24}, Shape{3, 7, 9, 11},
                           Shape{257, 192, 320, 192}, Shape{1, 1, 1, 1}, Shape{0, 4, 4, 4}}) {
      SCOPED_TRACE(fmt::format("{} x {} of {} to {}", s.rows, s.columns, s.source_stride, s.target_stride));
      const Tensors tensors = {random_values(s.rows * s.source_stride + 1, dtype, 1),
                               random_values(s.rows * s.target_stride + 1, dtype, 2)};
      const auto copy = [&](Tensors& t) {
        return CopyRows{.source = t[0].data(),
                        .target = t[1].data(),
                        .rows = s.rows,
                        .columns = s.columns,
                        .source_stride = s.source_stride,
                        .target_stride = s.target_stride,
                        .dtype = dtype};
      };
      const auto copied = run_under_test(tensors, copy, 3);
      EXPECT_TRUE(!copied || (*copied)[1].same_bits(run_reference(tensors, copy)[1]));
    }
  }
}

// What is large and starts on a cache line is streamed.
KERNEL_CASES(LargeFillsAndCopiesTouchExactlyTheirBytes, OpId::fill_zero, OpId::copy) {
  const std::int64_t count = 2'000'000, bytes = 4 * count - 777;
  Tensors tensors = {random_values(count, DType::fp32, 1), random_values(count, DType::fp32, 2)};
  for (Values& tensor : tensors) tensor.move_to_cache_line();
  const auto expect_exact = [&](const auto& bind) {
    const auto result = run_under_test(tensors, bind, 2);
    EXPECT_TRUE(!result || (*result)[1].same_bits(run_reference(tensors, bind)[1]));
  };
  expect_exact([&](Tensors& t) { return FillZero{.target = t[1].data(), .bytes = bytes}; });
  expect_exact(
      [&](Tensors& t) { return Copy{.source = t[0].data(), .target = t[1].data(), .bytes = bytes}; });
}

}  // namespace
}  // namespace holdfast::test
