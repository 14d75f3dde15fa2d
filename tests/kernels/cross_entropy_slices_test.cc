// Cross-entropy whose columns are cut into slices.
#include <gtest/gtest.h>

#include "kernels/cross_entropy.h"
#include "tests/kernels/op_test.h"

namespace holdfast::test {

namespace {

struct Slice {
  std::int64_t rows, columns, row_stride, first_token, vocabulary;
};

// Of one slice, the vocabulary and others.
constexpr Slice slices[] = {{1, 1, 1, 0, 1},
                            {5, 7, 7, 7, 28},
                            {7, 16, 24, 32, 50},
                            {40, 255, 256, 0, 255},
                            {5, 2501, 2528, 2528, 5029},
                            {2, 20000, 20032, 0, 20000}};

// Tensors: logits, targets (some in other slices), statistics. Where `uncounted`, every fifth target is
// negative, from the fourth on.
Tensors tensors_of(const Slice& slice, DType dtype, double scale, bool uncounted) {
  Tensors tensors = {random_values(slice.rows * slice.row_stride, dtype, 1, scale),
                     random_tokens(slice.rows, slice.vocabulary, 2),
                     random_values(3 * slice.rows, DType::fp32, 3)};
  tensors[1].set(0, static_cast<double>(slice.first_token + slice.columns / 2));
  for (std::int64_t row = 3; uncounted && row < slice.rows; row += 5) tensors[1].set(row, -1);
  return tensors;
}

CrossEntropySlice slice_op(Tensors& t, const Slice& slice) {
  return {.logits = t[0].data(),
          .targets = t[1].as<std::int32_t>(),
          .statistics = t[2].as<SoftmaxStatistics>(),
          .rows = slice.rows,
          .row_stride = slice.row_stride,
          .columns = slice.columns,
          .first_token = slice.first_token,
          .dtype = t[0].dtype()};
}

CrossEntropyGradient gradient_op(Tensors& t, const Slice& slice, float scale) {
  return {.logits = t[0].data(),
          .targets = t[1].as<std::int32_t>(),
          .statistics = t[2].as<SoftmaxStatistics>(),
          .rows = slice.rows,
          .row_stride = slice.row_stride,
          .columns = slice.columns,
          .first_token = slice.first_token,
          .gradient_scale = scale,
          .dtype = t[0].dtype()};
}

KERNEL_CASES(CrossEntropySliceStatistics, OpId::cross_entropy_slice) {
  for (const Slice& slice : slices) {
    SCOPED_TRACE(slice.columns);
    for (const DType dtype : {DType::fp32, DType::bf16}) {
      for (const double scale : {1.0, 30.0}) {
        const Tensors tensors = tensors_of(slice, dtype, scale, false);
        const auto bind = [&](Tensors& t) { return slice_op(t, slice); };
        expect_op(tensors, bind);
        const auto result = run_under_test(tensors, bind);
        if (!result) continue;
        const Values expected = run_reference(tensors, bind)[2];
        for (std::int64_t i = 0; i < slice.rows; ++i) {
          EXPECT_EQ((*result)[2][3 * i], expected[3 * i]) << "largest of row " << i;
          EXPECT_EQ((*result)[2][3 * i + 2], expected[3 * i + 2]) << "target of row " << i;
        }
      }
    }
  }
}

KERNEL_CASES(CrossEntropySliceHasTheSameBitsAnywhere, OpId::cross_entropy_slice) {
  for (const DType dtype : {DType::fp32, DType::bf16}) {
    expect_same_bits_anywhere(tensors_of(slices[2], dtype, 4.0, true),
                              [&](Tensors& t) { return slice_op(t, slices[2]); });
  }
}

// Nothing but padding; and rows without a target, whatever is in them.
KERNEL_CASES(CrossEntropySliceOfNothing, OpId::cross_entropy_slice) {
  for (Slice slice : {Slice{9, 0, 16, 112, 100}, Slice{9, 70, 80, 0, 70}}) {
    Tensors tensors = tensors_of(slice, DType::fp32, 1.0, true);
    for (std::int64_t row = 0; row < slice.rows; ++row) tensors[1].set(row, slice.columns > 0 ? -1.0 : 50.0);
    for (std::int64_t i = 0; i < slice.row_stride; ++i) tensors[0].set(i, NAN);
    const auto result = run_under_test(tensors, [&](Tensors& t) { return slice_op(t, slice); });
    if (!result) continue;
    for (std::int64_t row = 0; row < slice.rows; ++row) {
      EXPECT_EQ((*result)[2][3 * row], -INFINITY);
      EXPECT_EQ((*result)[2][3 * row + 1], 0.0);
      EXPECT_EQ((*result)[2][3 * row + 2], 0.0);
    }
  }
}

// Tensors: slices, targets, losses, statistics. Every third slice has a sum of 0 and `nothing` for its
// largest logit, and every fifth row has no target.
Tensors join_tensors(std::int64_t rows, std::int64_t slice_count, double nothing = -1e30) {
  const std::int64_t count = slice_count * rows;
  Tensors tensors = {random_values(3 * count, DType::fp32, 1, 20.0), Values(rows, DType::int32),
                     random_values(rows, DType::fp32, 2), random_values(3 * rows, DType::fp32, 3)};
  for (std::int64_t row = 0; row < rows; ++row) {
    tensors[1].set(row, row % 5 == 3 ? -1 : 1);
    for (std::int64_t slice = 0; slice < slice_count; ++slice) {
      const std::int64_t i = slice * rows + row;
      const bool padding = slice % 3 == 2;
      if (padding) tensors[0].set(3 * i, nothing);
      tensors[0].set(3 * i + 1, padding ? 0.0 : 2.0 + random_at(4, i));
      if (slice != row % slice_count) tensors[0].set(3 * i + 2, 0.0);
    }
  }
  return tensors;
}

CrossEntropyJoin join_op(Tensors& t, std::int64_t slice_count) {
  return {.slices = t[0].as<SoftmaxStatistics>(),
          .targets = t[1].as<std::int32_t>(),
          .losses = t[2].as<float>(),
          .statistics = t[3].as<SoftmaxStatistics>(),
          .rows = t[1].count(),
          .slice_count = slice_count};
}

KERNEL_CASES(CrossEntropyJoinMatchesReference, OpId::cross_entropy_join) {
  for (const std::int64_t slice_count : {1, 2, 4, 8, 16}) {
    SCOPED_TRACE(slice_count);
    for (const std::int64_t rows : {1, 7, 150}) {
      const auto bind = [&](Tensors& t) { return join_op(t, slice_count); };
      expect_op(join_tensors(rows, slice_count), bind);
      expect_same_bits_anywhere(join_tensors(rows, slice_count), bind);
    }
  }
}

KERNEL_CASES(CrossEntropyJoinTakesNothingFromPadding, OpId::cross_entropy_join) {
  const auto bind = [](Tensors& t) { return join_op(t, 16); };
  const auto expected = run_under_test(join_tensors(20, 16), bind);
  const auto actual = run_under_test(join_tensors(20, 16, -INFINITY), bind);
  if (!expected) return;
  EXPECT_TRUE((*actual)[2].same_bits((*expected)[2]));
  EXPECT_TRUE((*actual)[3].same_bits((*expected)[3]));
}

KERNEL_CASES(CrossEntropyJoinOfRowsThatNoSliceLookedAt, OpId::cross_entropy_join) {
  Tensors tensors = join_tensors(4, 2);
  for (std::int64_t row = 0; row < 4; ++row) tensors[1].set(row, -1);
  for (std::int64_t i = 0; i < 8; ++i) {
    tensors[0].set(3 * i, -INFINITY);
    tensors[0].set(3 * i + 1, 0.0), tensors[0].set(3 * i + 2, 0.0);
  }
  const auto bind = [&](Tensors& t) { return join_op(t, 2); };
  const auto result = run_under_test(tensors, bind);
  if (!result) return;
  const Tensors expected = run_reference(tensors, bind);
  EXPECT_TRUE((*result)[2].same_bits(expected[2]));
  EXPECT_TRUE((*result)[3].same_bits(expected[3]));
  EXPECT_EQ((*result)[2][0], 0.0);
  EXPECT_EQ((*result)[3][0], -INFINITY);
}

KERNEL_CASES(CrossEntropyGradientMatchesReference, OpId::cross_entropy_gradient) {
  for (const Slice& slice : slices) {
    SCOPED_TRACE(slice.columns);
    for (const DType dtype : {DType::fp32, DType::bf16}) {
      Tensors tensors = tensors_of(slice, dtype, 4.0, true);
      for (std::int64_t row = 0; row < slice.rows; ++row) {
        tensors[2].set(3 * row, 4.0 + random_at(5, row));
        tensors[2].set(3 * row + 1, 10.0 + random_at(6, row));
      }
      const auto bind = [&](Tensors& t) { return gradient_op(t, slice, 0.125F); };
      expect_op(tensors, bind);
      expect_same_bits_anywhere(tensors, bind);
    }
  }
}

// A slice without columns: zeros, and nothing of its neighbours' targets.
KERNEL_CASES(CrossEntropyGradientOfPaddingIsZero, OpId::cross_entropy_gradient) {
  const Slice slice{9, 0, 16, 96, 100};
  const auto result = run_under_test(tensors_of(slice, DType::bf16, 1.0, true),
                                     [&](Tensors& t) { return gradient_op(t, slice, 1.0F); });
  for (std::int64_t i = 0; result && i < slice.rows * slice.row_stride; ++i) EXPECT_EQ((*result)[0][i], 0.0);
}

struct Head {
  std::int64_t rows, vocabulary, padded;
};

// Tensors as CrossEntropy has them: logits, targets, losses.
Tensors head_tensors(const Head& head, DType dtype) {
  Tensors tensors = {random_values(head.rows * head.padded, dtype, 1, 4.0),
                     random_tokens(head.rows, head.vocabulary, 2), Values(head.rows, DType::fp32)};
  for (std::int64_t row = 3; row < head.rows; row += 5) tensors[1].set(row, -1);
  return tensors;
}

CrossEntropy whole_op(Tensors& t, const Head& head) {
  return {.logits = t[0].data(),
          .targets = t[1].as<std::int32_t>(),
          .losses = t[2].as<float>(),
          .rows = head.rows,
          .row_stride = head.padded,
          .vocabulary = head.vocabulary,
          .gradient_scale = 0.5F,
          .dtype = t[0].dtype()};
}

// Logits and losses of all slices together, by the three ops of slices.
Tensors in_slices(const Tensors& whole, const Head& head, std::int64_t slice_count, CpuIsa isa) {
  const std::int64_t width = head.padded / slice_count;
  std::vector<Tensors> parts;
  std::vector<Slice> shapes;
  Tensors joined = {Values(3 * slice_count * head.rows, DType::fp32), whole[1], whole[2],
                    Values(3 * head.rows, DType::fp32)};
  const auto each_logit = [&](const auto& body) {
    for (std::int64_t row = 0; row < head.rows; ++row) {
      for (std::int64_t column = 0; column < head.padded; ++column)
        body(static_cast<std::size_t>(column / width), row * width + column % width,
             row * head.padded + column);
    }
  };
  for (std::int64_t s = 0; s < slice_count; ++s) {
    const std::int64_t columns = std::clamp<std::int64_t>(head.vocabulary - s * width, 0, width);
    shapes.push_back({head.rows, columns, width, s * width, head.vocabulary});
    parts.push_back({Values(head.rows * width, whole[0].dtype()), whole[1], joined[3]});
  }
  each_logit([&](std::size_t s, std::int64_t to, std::int64_t from) { parts[s][0].set(to, whole[0][from]); });
  for (std::size_t s = 0; s < parts.size(); ++s) {
    parts[s] = run_op(
        parts[s], [&](Tensors& t) { return slice_op(t, shapes[s]); }, 2, isa);
    const auto first = 3 * static_cast<std::int64_t>(s) * head.rows;
    for (std::int64_t i = 0; i < 3 * head.rows; ++i) joined[0].set(first + i, parts[s][2][i]);
  }
  joined = run_op(
      joined, [&](Tensors& t) { return join_op(t, slice_count); }, 2, isa);
  for (std::size_t s = 0; s < parts.size(); ++s) {
    parts[s][2] = joined[3];
    parts[s] = run_op(
        parts[s], [&](Tensors& t) { return gradient_op(t, shapes[s], 0.5F); }, 2, isa);
  }
  Tensors result = {whole[0], whole[1], joined[2]};
  each_logit(
      [&](std::size_t s, std::int64_t from, std::int64_t to) { result[0].set(to, parts[s][0][from]); });
  return result;
}

// In sixteen slices the second head has nine of nothing but padding.
constexpr Head heads[] = {{9, 250, 256}, {9, 100, 256}, {6, 5000, 5056}};

TEST(CrossEntropySlices, TogetherDoWhatOneOpDoes) {
  for (const DType dtype : {DType::fp32, DType::bf16}) {
    for (const Head& head : heads) {
      const Tensors tensors = head_tensors(head, dtype);
      const Tensors expected = run_reference(tensors, [&](Tensors& t) { return whole_op(t, head); });
      for (const std::int64_t slice_count : {1, 2, 4, 16}) {
        SCOPED_TRACE(slice_count);
        const Tensors actual = in_slices(tensors, head, slice_count, best_cpu_isa());
        expect_close(actual[0], expected[0], {}, "gradient");
        expect_close(actual[2], expected[2], {}, "losses");
      }
    }
  }
}

TEST(CrossEntropySlices, OneSliceHasTheBitsOfTheOneOp) {
  for (const CpuIsa isa : available_isas()) {
    for (const DType dtype : {DType::fp32, DType::bf16}) {
      for (const Head& head : heads) {
        const Tensors tensors = head_tensors(head, dtype);
        const Tensors expected = run_op(
            tensors, [&](Tensors& t) { return whole_op(t, head); }, 2, isa);
        const Tensors actual = in_slices(tensors, head, 1, isa);
        EXPECT_TRUE(actual[0].same_bits(expected[0]));
        EXPECT_TRUE(actual[2].same_bits(expected[2]));
      }
    }
  }
}

}  // namespace

}  // namespace holdfast::test
