#include "kernels/rotary.h"

#include "tests/kernels/op_test.h"

namespace holdfast::test {
namespace {

struct Shape {
  std::int64_t rows, heads, head_size, other_columns, sequence_length;
};
constexpr Shape shapes[] = {
    {1, 1, 2, 0, 1}, {10, 3, 16, 16, 5}, {77, 4, 32, 64, 7}, {160, 5, 48, 10, 80}, {70, 4, 128, 1, 70}};

// Tensors: x, cosine, sine.
Tensors tensors_of(const Shape& shape, DType dtype) {
  const std::int64_t half = shape.head_size / 2;
  Tensors tensors = {
      random_values(shape.rows * (shape.heads * shape.head_size + shape.other_columns), dtype, 1),
      Values(shape.sequence_length * half, DType::fp32), Values(shape.sequence_length * half, DType::fp32)};
  for (std::int64_t position = 0; position < shape.sequence_length; ++position) {
    for (std::int64_t i = 0; i < half; ++i) {
      const double exponent = -static_cast<double>(i) / static_cast<double>(half);
      const double angle = static_cast<double>(position + 1) * std::pow(10000.0, exponent);
      tensors[1].set(position * half + i, std::cos(angle));
      tensors[2].set(position * half + i, std::sin(angle));
    }
  }
  return tensors;
}
Rotary rotary_op(Tensors& t, const Shape& shape, DType dtype, bool inverse) {
  return {.x = t[0].data(),
          .cosine = t[1].as<float>(),
          .sine = t[2].as<float>(),
          .rows = shape.rows,
          .row_stride = shape.heads * shape.head_size + shape.other_columns,
          .heads = shape.heads,
          .head_size = shape.head_size,
          .sequence_length = shape.sequence_length,
          .inverse = inverse,
          .dtype = dtype};
}

KERNEL_CASES(RotaryMatchesReference, OpId::rotary) {
  for (const DType dtype : {DType::fp32, DType::bf16}) {
    for (const Shape& shape : shapes) {
      for (const bool inverse : {false, true}) {
        SCOPED_TRACE(shape.head_size);
        const auto bind = [&](Tensors& t) { return rotary_op(t, shape, dtype, inverse); };
        expect_op(tensors_of(shape, dtype), bind);
        expect_same_bits_anywhere(tensors_of(shape, dtype), bind);
      }
    }
  }
}

TEST(Rotary, InverseUndoesIt) {
  const Shape& shape = shapes[2];
  const Tensors tensors = tensors_of(shape, DType::fp32);
  const Tensors rotated = run_op(
      tensors, [&](Tensors& t) { return rotary_op(t, shape, DType::fp32, false); }, 2, best_cpu_isa());
  const Tensors back = run_op(
      rotated, [&](Tensors& t) { return rotary_op(t, shape, DType::fp32, true); }, 2, best_cpu_isa());
  EXPECT_FALSE(rotated[0].same_bits(tensors[0]));
  expect_close(back[0], tensors[0], {.tolerance = 1e-6}, "x");
}

TEST(Rotary, RotatesTheTwoHalvesOfAHead) {
  const Shape shape{1, 1, 4, 0, 1};
  Tensors tensors = tensors_of(shape, DType::fp32);
  const double x[] = {1, 2, 3, 4};
  for (std::int64_t i = 0; i < 4; ++i) tensors[0].set(i, x[i]);
  for (std::int64_t i = 0; i < 2; ++i) {  // a quarter turn of the pairs (0, 2) and (1, 3)
    tensors[1].set(i, 0);
    tensors[2].set(i, 1);
  }
  const Tensors result = run_op(
      tensors, [&](Tensors& t) { return rotary_op(t, shape, DType::fp32, false); }, 1, best_cpu_isa());
  const double expected[] = {-3, -4, 1, 2};
  for (std::int64_t i = 0; i < 4; ++i) EXPECT_EQ(result[0][i], expected[i]);
}

TEST(Rotary, BackwardMatchesFiniteDifferences) {
  const Shape shape{6, 2, 10, 3, 3};
  Tensors forward = tensors_of(shape, DType::fp32);
  Tensors backward = tensors_of(shape, DType::fp32);
  backward[0] = random_values(backward[0].count(), DType::fp32, 9);
  const Values dy = backward[0];
  const Tensors gradient =
      run_reference(backward, [&](Tensors& t) { return rotary_op(t, shape, DType::fp32, true); });
  expect_gradient(forward[0], gradient[0], [&] {
    return dot(run_reference(forward, [&](Tensors& t) { return rotary_op(t, shape, DType::fp32, false); })[0],
               dy);
  });
}

}  // namespace
}  // namespace holdfast::test
