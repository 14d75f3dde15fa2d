#include "kernels/embedding.h"

#include "tests/kernels/op_test.h"

namespace holdfast::test {
namespace {

struct Shape {
  std::int64_t rows, width, sequence_length, vocabulary;
};
constexpr Shape shapes[] = {
    {1, 1, 1, 1}, {6, 15, 3, 5}, {35, 64, 7, 11}, {130, 201, 65, 17}, {300, 130, 300, 40}};

// Tensors: tokens, table, positions, x.
Tensors forward_tensors(const Shape& shape, DType dtype) {
  return {
      random_tokens(shape.rows, shape.vocabulary, 1), random_values(shape.vocabulary * shape.width, dtype, 2),
      random_values(shape.sequence_length * shape.width, dtype, 3), Values(shape.rows * shape.width, dtype)};
}
EmbeddingForward forward_op(Tensors& t, const Shape& shape, DType dtype, bool positions) {
  return {.tokens = t[0].as<std::int32_t>(),
          .table = t[1].data(),
          .positions = positions ? t[2].data() : nullptr,
          .x = t[3].data(),
          .rows = shape.rows,
          .width = shape.width,
          .sequence_length = shape.sequence_length,
          .dtype = dtype};
}

// Tensors: tokens, dx, gradient of the table, gradient of the positions (both with something in them).
Tensors backward_tensors(const Shape& shape, DType dtype, double gradient_before) {
  return {random_tokens(shape.rows, shape.vocabulary, 1), random_values(shape.rows * shape.width, dtype, 4),
          random_values(shape.vocabulary * shape.width, DType::fp32, 5, gradient_before),
          random_values(shape.sequence_length * shape.width, DType::fp32, 6, gradient_before)};
}
EmbeddingBackward backward_op(Tensors& t, const Shape& shape, DType dtype, bool positions) {
  return {.tokens = t[0].as<std::int32_t>(),
          .dx = t[1].data(),
          .table_gradient = t[2].as<float>(),
          .positions_gradient = positions ? t[3].as<float>() : nullptr,
          .rows = shape.rows,
          .width = shape.width,
          .sequence_length = shape.sequence_length,
          .dtype = dtype};
}

KERNEL_CASES(EmbeddingMatchesReference, OpId::embedding_forward, OpId::embedding_backward) {
  for (const DType dtype : {DType::fp32, DType::bf16}) {
    for (const Shape& shape : shapes) {
      for (const bool positions : {false, true}) {
        SCOPED_TRACE(shape.width);
        const auto forward = [&](Tensors& t) { return forward_op(t, shape, dtype, positions); };
        const auto backward = [&](Tensors& t) { return backward_op(t, shape, dtype, positions); };
        expect_op(forward_tensors(shape, dtype), forward);
        expect_same_bits_anywhere(forward_tensors(shape, dtype), forward);
        expect_op(backward_tensors(shape, dtype, 1.0), backward);
        expect_same_bits_anywhere(backward_tensors(shape, dtype, 1.0), backward);
      }
    }
  }
}

// More than are sorted at once.
KERNEL_CASES(EmbeddingBackwardOfManyRows, OpId::embedding_backward) {
  const Shape shape{9001, 3, 1000, 100};
  expect_op(backward_tensors(shape, DType::bf16, 1.0),
            [&](Tensors& t) { return backward_op(t, shape, DType::bf16, true); });
}

// Token t has t rows, which lie apart: an implementation that reads them in batches meets every number of them.
KERNEL_CASES(EmbeddingBackwardOfAnyNumberOfRows, OpId::embedding_backward) {
  constexpr std::int64_t most = 50;
  for (const DType dtype : {DType::fp32, DType::bf16}) {
    for (const std::int64_t width : {7, 16}) {
      const Shape shape{most * (most - 1) / 2, width, most * (most - 1) / 2, most};
      Tensors tensors = backward_tensors(shape, dtype, 1.0);
      std::int64_t row = 0;
      for (std::int64_t round = 0; round < most; ++round) {
        for (std::int64_t token = round + 1; token < most; ++token)
          tensors[0].set(row++, static_cast<double>(token));
      }
      ASSERT_EQ(row, shape.rows);
      expect_op(tensors, [&](Tensors& t) { return backward_op(t, shape, dtype, true); });
    }
  }
}

// A slice of the table, by the tokens that it has. Tensors as of the whole, but for the table.
struct TableSlice {
  std::int64_t first_token, token_count;
};
template <typename Op>
Op sliced(Op op, const TableSlice& slice) {
  op.first_token = slice.first_token;
  op.token_count = slice.token_count;
  return op;
}

// The rows of a table, or of its gradient, that belong to a slice.
Values rows_of_slice(const Values& table, const TableSlice& slice, std::int64_t width) {
  Values rows(slice.token_count * width, table.dtype());
  for (std::int64_t i = 0; i < rows.count(); ++i) rows.set(i, table[slice.first_token * width + i]);
  return rows;
}

constexpr Shape sliced_shapes[] = {{6, 15, 3, 16}, {35, 64, 7, 32}, {300, 130, 300, 48}};

template <typename Body>
void for_slices(const Body& body) {
  for (const Shape& shape : sliced_shapes) {
    for (const std::int64_t slice_count : {1, 2, 4, 16}) {
      SCOPED_TRACE(shape.width);
      SCOPED_TRACE(slice_count);
      std::vector<TableSlice> slices;
      const std::int64_t tokens = shape.vocabulary / slice_count;
      for (std::int64_t i = 0; i < slice_count; ++i) slices.push_back({i * tokens, tokens});
      body(shape, slices);
    }
  }
}

KERNEL_CASES(EmbeddingForwardOfASlice, OpId::embedding_forward) {
  for (const DType dtype : {DType::fp32, DType::bf16}) {
    for_slices([&](const Shape& shape, const std::vector<TableSlice>& slices) {
      const TableSlice slice = slices.back();
      Tensors tensors = forward_tensors(shape, dtype);
      tensors[1] = rows_of_slice(tensors[1], slice, shape.width);
      tensors[3] = random_values(shape.rows * shape.width, dtype, 7);  // stays where other tokens are
      for (const bool positions : {false, true}) {
        const auto op = [&](Tensors& t) { return sliced(forward_op(t, shape, dtype, positions), slice); };
        expect_op(tensors, op);
        expect_same_bits_anywhere(tensors, op);
      }
    });
  }
}

KERNEL_CASES(EmbeddingSlicesTogetherDoWhatOneOpDoesWithoutMinusZero, OpId::embedding_forward) {
  for (const DType dtype : {DType::fp32, DType::bf16}) {
    for_slices([&](const Shape& shape, const std::vector<TableSlice>& slices) {
      for (const bool positions : {false, true}) {
        Tensors tensors = forward_tensors(shape, dtype);
        for (const std::size_t t : {1U, 2U}) {
          for (std::int64_t i = 0; i < tensors[t].count(); i += 3) tensors[t].set(i, -0.0);
        }
        const auto whole =
            run_under_test(tensors, [&](Tensors& t) { return forward_op(t, shape, dtype, positions); });
        if (!whole) continue;
        Tensors together = tensors;
        for (const TableSlice& slice : slices) {
          together[1] = rows_of_slice(tensors[1], slice, shape.width);
          together = *run_under_test(
              together, [&](Tensors& t) { return sliced(forward_op(t, shape, dtype, positions), slice); });
        }
        for (std::int64_t i = 0; i < together[3].count(); ++i) {
          const double x = together[3][i];
          ASSERT_EQ(x, (*whole)[3][i]) << "element " << i;
          ASSERT_FALSE(std::fpclassify(x) == FP_ZERO && std::signbit(x)) << "element " << i;
        }
      }
    });
  }
}

KERNEL_CASES(EmbeddingBackwardOfSlicesHasTheBitsOfTheWhole, OpId::embedding_backward) {
  for (const DType dtype : {DType::fp32, DType::bf16}) {
    for_slices([&](const Shape& shape, const std::vector<TableSlice>& slices) {
      const Tensors tensors = backward_tensors(shape, dtype, 1.0);
      const auto whole =
          run_under_test(tensors, [&](Tensors& t) { return backward_op(t, shape, dtype, true); });
      if (!whole) return;
      for (const TableSlice& slice : slices) {
        Tensors part = tensors;
        part[2] = rows_of_slice(tensors[2], slice, shape.width);
        const auto op = [&](Tensors& t) { return sliced(backward_op(t, shape, dtype, true), slice); };
        expect_op(part, op);
        const auto result = run_under_test(part, op);
        EXPECT_TRUE((*result)[2].same_bits(rows_of_slice((*whole)[2], slice, shape.width)));
        EXPECT_TRUE((*result)[3].same_bits((*whole)[3]));
      }
    });
  }
}

TEST(Embedding, GradientsOfEqualTokensAreAddedInRowOrder) {
  const std::int64_t rows = 3;
  Tensors tensors = {Values(rows, DType::int32), Values(rows, DType::fp32), Values(1, DType::fp32)};
  const double dx[] = {1e8, -1e8, 1.0};  // 1 in this order; 0 if the last two were added first
  for (std::int64_t row = 0; row < rows; ++row) tensors[1].set(row, dx[row]);
  const Tensors result = run_op(
      tensors,
      [&](Tensors& t) {
        return EmbeddingBackward{.tokens = t[0].as<std::int32_t>(),
                                 .dx = t[1].data(),
                                 .table_gradient = t[2].as<float>(),
                                 .rows = rows,
                                 .width = 1,
                                 .sequence_length = rows};
      },
      3, best_cpu_isa());
  EXPECT_EQ(result[2][0], 1.0);
}

TEST(Embedding, BackwardMatchesFiniteDifferences) {
  const Shape shape{12, 5, 4, 3};
  Tensors forward = forward_tensors(shape, DType::fp32);
  const Tensors backward = run_reference(backward_tensors(shape, DType::fp32, 0.0), [&](Tensors& t) {
    return backward_op(t, shape, DType::fp32, true);
  });
  const auto loss = [&] {
    const Tensors result =
        run_reference(forward, [&](Tensors& t) { return forward_op(t, shape, DType::fp32, true); });
    return dot(result[3], backward[1]);
  };
  expect_gradient(forward[1], backward[2], loss);
  expect_gradient(forward[2], backward[3], loss);
}

}  // namespace
}  // namespace holdfast::test
