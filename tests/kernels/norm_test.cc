#include "kernels/norm.h"

#include "tests/kernels/op_test.h"

namespace holdfast::test {
namespace {

struct Shape {
  std::int64_t rows, width;
};
constexpr Shape shapes[] = {{1, 5},    {3, 15},    {33, 16},  {70, 33},  {131, 300},
                            {4, 1025}, {37, 2048}, {3, 8201}, {77, 768}, {9, 1600}};

// Tensors of the forward pass: x, weight, bias, y, mean, rstd. RMSNorm leaves bias and mean alone.
Tensors forward_tensors(const Shape& shape, DType dtype) {
  const std::int64_t count = shape.rows * shape.width;
  Tensors tensors = {random_values(count, dtype, 1, 2.0),  random_values(shape.width, dtype, 2),
                     random_values(shape.width, dtype, 3), Values(count, dtype),
                     Values(shape.rows, DType::fp32),      Values(shape.rows, DType::fp32)};
  for (std::int64_t i = 0; i < count; ++i) tensors[0].set(i, tensors[0][i] + 0.5);
  return tensors;
}
LayerNormForward layer_forward(Tensors& t, const Shape& shape, DType dtype) {
  return {.x = t[0].data(),
          .weight = t[1].data(),
          .bias = t[2].data(),
          .y = t[3].data(),
          .mean = t[4].as<float>(),
          .rstd = t[5].as<float>(),
          .rows = shape.rows,
          .width = shape.width,
          .dtype = dtype};
}
RmsNormForward rms_forward(Tensors& t, const Shape& shape, DType dtype) {
  return {.x = t[0].data(),
          .weight = t[1].data(),
          .y = t[3].data(),
          .rstd = t[5].as<float>(),
          .rows = shape.rows,
          .width = shape.width,
          .dtype = dtype};
}

enum class Residual { none, other, in_place };
struct BackwardCase {
  Residual residual = Residual::none;
  bool accumulate = false;
  bool sums_residual = false;  // layer norm only
};
constexpr BackwardCase backward_cases[] = {
    {}, {Residual::other, true, true}, {Residual::in_place, false}, {Residual::in_place, false, true}};

// Tensors of the backward pass: x, weight, dy, mean, rstd, dresidual, dx, gradients of weight and bias, sum of
// dresidual. `forward` is the result of the forward pass.
Tensors backward_tensors(const Tensors& forward, const Shape& shape, DType dtype) {
  const std::int64_t count = shape.rows * shape.width;
  return {forward[0],
          forward[1],
          random_values(count, dtype, 4),
          forward[4],
          forward[5],
          random_values(count, dtype, 5),
          random_values(count, dtype, 6),
          random_values(shape.width, DType::fp32, 7),
          random_values(shape.width, DType::fp32, 8),
          random_values(shape.width, DType::fp32, 9)};
}
void* residual_of(Tensors& t, Residual residual) {
  return residual == Residual::none ? nullptr : t[residual == Residual::in_place ? 6 : 5].data();
}
LayerNormBackward layer_backward(Tensors& t, const Shape& shape, DType dtype, const BackwardCase& of = {}) {
  return {.x = t[0].data(),
          .weight = t[1].data(),
          .dy = t[2].data(),
          .mean = t[3].as<float>(),
          .rstd = t[4].as<float>(),
          .dresidual = residual_of(t, of.residual),
          .dx = t[6].data(),
          .weight_gradient = t[7].as<float>(),
          .bias_gradient = t[8].as<float>(),
          .dresidual_sum = of.sums_residual ? t[9].as<float>() : nullptr,
          .rows = shape.rows,
          .width = shape.width,
          .accumulate = of.accumulate,
          .dtype = dtype};
}
RmsNormBackward rms_backward(Tensors& t, const Shape& shape, DType dtype, const BackwardCase& of = {}) {
  return {.x = t[0].data(),
          .weight = t[1].data(),
          .dy = t[2].data(),
          .rstd = t[4].as<float>(),
          .dresidual = residual_of(t, of.residual),
          .dx = t[6].data(),
          .weight_gradient = t[7].as<float>(),
          .rows = shape.rows,
          .width = shape.width,
          .accumulate = of.accumulate,
          .dtype = dtype};
}

KERNEL_CASES(LayerNormMatchesReference, OpId::layernorm_forward, OpId::layernorm_backward) {
  for (const DType dtype : {DType::fp32, DType::bf16}) {
    for (const Shape& shape : shapes) {
      SCOPED_TRACE(shape.width);
      const auto forward = [&](Tensors& t) { return layer_forward(t, shape, dtype); };
      const Tensors tensors = forward_tensors(shape, dtype);
      expect_op(tensors, forward, {.tolerance = 4e-6});
      const Tensors backward = backward_tensors(run_reference(tensors, forward), shape, dtype);
      for (const BackwardCase& of : backward_cases) {
        expect_op(backward, [&](Tensors& t) { return layer_backward(t, shape, dtype, of); },
                  {.tolerance = 4e-6});
      }
    }
  }
}

KERNEL_CASES(RmsNormMatchesReference, OpId::rmsnorm_forward, OpId::rmsnorm_backward) {
  for (const DType dtype : {DType::fp32, DType::bf16}) {
    for (const Shape& shape : shapes) {
      SCOPED_TRACE(shape.width);
      const auto forward = [&](Tensors& t) { return rms_forward(t, shape, dtype); };
      const Tensors tensors = forward_tensors(shape, dtype);
      expect_op(tensors, forward, {.tolerance = 4e-6});
      const Tensors backward = backward_tensors(run_reference(tensors, forward), shape, dtype);
      for (const BackwardCase& of : backward_cases) {
        expect_op(backward, [&](Tensors& t) { return rms_backward(t, shape, dtype, of); },
                  {.tolerance = 4e-6});
      }
    }
  }
}

KERNEL_CASES(NormsHaveTheSameBitsAnywhere, OpId::layernorm_forward, OpId::layernorm_backward,
             OpId::rmsnorm_forward, OpId::rmsnorm_backward) {
  for (const DType dtype : {DType::fp32, DType::bf16}) {
    for (const Shape& shape : {Shape{70, 64}, Shape{37, 2048}}) {
      SCOPED_TRACE(shape.width);
      const Tensors tensors = forward_tensors(shape, dtype);
      const auto forward = [&](Tensors& t) { return layer_forward(t, shape, dtype); };
      expect_same_bits_anywhere(tensors, forward);
      expect_same_bits_anywhere(tensors, [&](Tensors& t) { return rms_forward(t, shape, dtype); });
      const Tensors backward = backward_tensors(run_reference(tensors, forward), shape, dtype);
      expect_same_bits_anywhere(
          backward, [&](Tensors& t) { return layer_backward(t, shape, dtype, backward_cases[1]); });
      expect_same_bits_anywhere(backward,
                                [&](Tensors& t) { return rms_backward(t, shape, dtype, backward_cases[1]); });
    }
  }
}

// A sum that is made elsewhere and added later is the sum that accumulates.
KERNEL_CASES(NormsAddWholeSumsToGradients, OpId::layernorm_backward, OpId::rmsnorm_backward) {
  for (const DType dtype : {DType::fp32, DType::bf16}) {
    for (const Shape& shape : {Shape{70, 64}, Shape{37, 257}}) {
      SCOPED_TRACE(shape.width);
      const auto forward = [&](Tensors& t) { return layer_forward(t, shape, dtype); };
      const Tensors tensors =
          backward_tensors(run_reference(forward_tensors(shape, dtype), forward), shape, dtype);
      const auto expect_sums = [&](const auto& backward, std::size_t gradients) {
        const auto run = [&](bool accumulate) {
          return run_under_test(tensors, [&](Tensors& t) {
            return backward(t, shape, dtype,
                            {.residual = Residual::other, .accumulate = accumulate, .sums_residual = true});
          });
        };
        const std::optional<Tensors> set = run(false), added = run(true);
        if (!set) return;
        for (std::size_t of = 7; of < 7 + gradients; ++of) {
          for (std::int64_t i = 0; i < shape.width; ++i) {
            const auto sum = static_cast<float>(tensors[of][i]) + static_cast<float>((*set)[of][i]);
            ASSERT_EQ((*added)[of][i], static_cast<double>(sum)) << "element " << i << " of tensor " << of;
          }
        }
      };
      expect_sums(layer_backward, 3);
      expect_sums(rms_backward, 1);
    }
  }
}

// A row far from zero: the variance must not come from a difference of large sums.
KERNEL_CASES(LayerNormKeepsItsAccuracyWithALargeMean, OpId::layernorm_forward) {
  const Shape shape{3, 257};
  Tensors tensors = forward_tensors(shape, DType::fp32);
  for (std::int64_t i = 0; i < tensors[0].count(); ++i) tensors[0].set(i, tensors[0][i] + 1000.0);
  expect_op(tensors, [&](Tensors& t) { return layer_forward(t, shape, DType::fp32); }, {.tolerance = 1e-4});
}

KERNEL_CASES(NormsOfConstantRowsStayFinite, OpId::layernorm_forward, OpId::rmsnorm_forward) {
  const Shape shape{2, 40};
  Tensors tensors = forward_tensors(shape, DType::fp32);
  for (std::int64_t i = 0; i < tensors[0].count(); ++i) tensors[0].set(i, 0);
  expect_op(tensors, [&](Tensors& t) { return layer_forward(t, shape, DType::fp32); });
  expect_op(tensors, [&](Tensors& t) { return rms_forward(t, shape, DType::fp32); });
}

TEST(LayerNorm, BackwardMatchesFiniteDifferences) {
  const Shape shape{5, 12};
  const auto forward_op = [&](Tensors& t) { return layer_forward(t, shape, DType::fp32); };
  Tensors forward = forward_tensors(shape, DType::fp32);
  const Tensors gradient =
      run_reference(backward_tensors(run_reference(forward, forward_op), shape, DType::fp32),
                    [&](Tensors& t) { return layer_backward(t, shape, DType::fp32); });
  const auto loss = [&] { return dot(run_reference(forward, forward_op)[3], gradient[2]); };
  expect_gradient(forward[0], gradient[6], loss);
  expect_gradient(forward[1], gradient[7], loss);
  expect_gradient(forward[2], gradient[8], loss);
}

TEST(RmsNorm, BackwardMatchesFiniteDifferences) {
  const Shape shape{5, 12};
  const auto forward_op = [&](Tensors& t) { return rms_forward(t, shape, DType::fp32); };
  Tensors forward = forward_tensors(shape, DType::fp32);
  const Tensors gradient =
      run_reference(backward_tensors(run_reference(forward, forward_op), shape, DType::fp32),
                    [&](Tensors& t) { return rms_backward(t, shape, DType::fp32); });
  const auto loss = [&] { return dot(run_reference(forward, forward_op)[3], gradient[2]); };
  expect_gradient(forward[0], gradient[6], loss);
  expect_gradient(forward[1], gradient[7], loss);
}

}  // namespace
}  // namespace holdfast::test
