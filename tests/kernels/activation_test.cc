#include "kernels/activation.h"

#include "tests/kernels/op_test.h"

namespace holdfast::test {
namespace {

constexpr std::int64_t counts[] = {1, 15, 16, 33, 50001};

// Tensors: x, y (or dy), dx of SwiGLU.
GeluForward gelu_forward(Tensors& t, DType dtype) {
  return {.x = t[0].data(), .y = t[1].data(), .count = t[0].count(), .dtype = dtype};
}

struct Shape {
  std::int64_t rows, feed_forward;
};
constexpr Shape shapes[] = {{1, 1}, {7, 15}, {3, 16}, {61, 130}, {5, 9001}};

SwigluForward swiglu_forward(Tensors& t, const Shape& shape, DType dtype) {
  return {.x = t[0].data(),
          .y = t[1].data(),
          .rows = shape.rows,
          .feed_forward = shape.feed_forward,
          .dtype = dtype};
}
SwigluBackward swiglu_backward(Tensors& t, const Shape& shape, DType dtype) {
  return {.x = t[0].data(),
          .dy = t[1].data(),
          .dx = t[2].data(),
          .rows = shape.rows,
          .feed_forward = shape.feed_forward,
          .dtype = dtype};
}

KERNEL_CASES(GeluMatchesReference, OpId::gelu_forward) {
  for (const DType dtype : {DType::fp32, DType::bf16}) {
    for (const std::int64_t count : counts) {
      SCOPED_TRACE(count);
      const Values x = random_values(count, dtype, 1, 4.0);
      const auto forward = [&](Tensors& t) { return gelu_forward(t, dtype); };
      expect_op({x, Values(count, dtype)}, forward);
      expect_same_bits_anywhere({x, Values(count, dtype)}, forward);
    }
  }
}

TEST(Gelu, IsAccurateWhereItIsSmall) {
  const std::int64_t count = 2000;
  Tensors tensors = {Values(count, DType::fp32), Values(count, DType::fp32)};
  for (std::int64_t i = 0; i < count; ++i) tensors[0].set(i, -5.0 + static_cast<double>(i) / 400.0);  // to 0
  const auto bind = [&](Tensors& t) { return gelu_forward(t, DType::fp32); };
  const Tensors actual = run_op(tensors, bind, 2, best_cpu_isa());
  const Tensors expected = run_reference(tensors, bind);
  for (std::int64_t i = 0; i < count; ++i) {
    EXPECT_NEAR(actual[1][i], expected[1][i], 5e-6 * std::abs(expected[1][i])) << tensors[0][i];
  }
}

KERNEL_CASES(GeluOfLargeArgumentsSaturates, OpId::gelu_forward) {
  Tensors tensors = {Values(4, DType::fp32), Values(4, DType::fp32)};
  const double x[] = {-1e15, -100, 100, 1e15};
  for (std::int64_t i = 0; i < 4; ++i) tensors[0].set(i, x[i]);
  const auto forward = run_under_test(tensors, [&](Tensors& t) { return gelu_forward(t, DType::fp32); });
  ASSERT_TRUE(forward);
  for (std::int64_t i = 0; i < 4; ++i) EXPECT_EQ((*forward)[1][i], i < 2 ? 0.0 : tensors[0][i]);
}

TEST(Gelu, SlopeMatchesFiniteDifferences) {
  const std::int64_t count = 60;
  Tensors forward = {random_values(count, DType::fp32, 1, 3.0), Values(count, DType::fp32)};
  const Values dy = random_values(count, DType::fp32, 2);
  Values gradient(count, DType::fp32);
  for (std::int64_t i = 0; i < count; ++i) gradient.set(i, dy[i] * reference_gelu_slope(forward[0][i]));
  expect_gradient(forward[0], gradient, [&] {
    return dot(run_reference(forward, [&](Tensors& t) { return gelu_forward(t, DType::fp32); })[1], dy);
  });
}

KERNEL_CASES(SwigluMatchesReference, OpId::swiglu_forward, OpId::swiglu_backward) {
  for (const DType dtype : {DType::fp32, DType::bf16}) {
    for (const Shape& shape : shapes) {
      SCOPED_TRACE(shape.feed_forward);
      const std::int64_t count = shape.rows * shape.feed_forward;
      const Values x = random_values(2 * count, dtype, 1, 6.0);
      const Tensors forward = {x, Values(count, dtype)};
      const auto bind_forward = [&](Tensors& t) { return swiglu_forward(t, shape, dtype); };
      expect_op(forward, bind_forward);
      expect_same_bits_anywhere(forward, bind_forward);
      const Tensors backward = {x, random_values(count, dtype, 2), Values(2 * count, dtype)};
      const auto bind_backward = [&](Tensors& t) { return swiglu_backward(t, shape, dtype); };
      expect_op(backward, bind_backward);
      expect_same_bits_anywhere(backward, bind_backward);
    }
  }
}

TEST(Swiglu, BackwardMatchesFiniteDifferences) {
  const Shape shape{4, 9};
  const std::int64_t count = shape.rows * shape.feed_forward;
  Tensors forward = {random_values(2 * count, DType::fp32, 1, 3.0), Values(count, DType::fp32)};
  const Values dy = random_values(count, DType::fp32, 2);
  const Tensors gradient = run_reference(Tensors{forward[0], dy, Values(2 * count, DType::fp32)},
                                         [&](Tensors& t) { return swiglu_backward(t, shape, DType::fp32); });
  expect_gradient(forward[0], gradient[2], [&] {
    return dot(run_reference(forward, [&](Tensors& t) { return swiglu_forward(t, shape, DType::fp32); })[1],
               dy);
  });
}

}  // namespace
}  // namespace holdfast::test
