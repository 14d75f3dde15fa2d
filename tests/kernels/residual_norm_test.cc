#include "kernels/residual_norm.h"

#include <gmock/gmock.h>

#include <span>
#include <vector>

#include "kernels/visit_op.h"
#include "tests/kernels/op_test.h"

namespace holdfast::test {
namespace {

struct Shape {
  std::int64_t rows, width;
};
constexpr Shape shapes[] = {{1, 1}, {3, 15}, {7, 64}, {33, 130}, {2, 20000}};
constexpr int part_counts[] = {1, 2, 4, 16};
constexpr std::size_t sum_at = 3, first_part = 8;  // of the tensors

// Tensors: bias, residual, weight, sum, y, rstd, mean, bias of the norm, parts.
Tensors tensors_of(const Shape& shape, DType dtype, int part_count) {
  const std::int64_t count = shape.rows * shape.width;
  Tensors tensors = {random_values(shape.width, dtype, 1),
                     random_values(count, dtype, 2, 3.0),
                     random_values(shape.width, dtype, 3),
                     Values(count, dtype),
                     Values(count, dtype),
                     Values(shape.rows, DType::fp32),
                     Values(shape.rows, DType::fp32),
                     random_values(shape.width, dtype, 4)};
  for (int i = 0; i < part_count; ++i) {
    const auto seed = static_cast<std::uint64_t>(5 + i);
    tensors.push_back(random_values(count, DType::fp32, seed, i % 3 == 0 ? 10.0 : 1.0));
  }
  return tensors;
}

template <typename Op>
Op op_of(Tensors& t, const Shape& shape, bool bias) {
  Op op;
  op.part_count = static_cast<int>(t.size() - first_part);
  op.bias = bias ? t[0].data() : nullptr;
  op.residual = t[1].data();
  op.weight = t[2].data();
  op.sum = t[sum_at].data();
  op.y = t[4].data();
  op.rstd = t[5].as<float>();
  if constexpr (requires { op.mean; }) {
    op.mean = t[6].as<float>();
    op.norm_bias = t[7].data();
  }
  op.rows = shape.rows;
  op.width = shape.width;
  op.dtype = t[sum_at].dtype();
  for (int i = 0; i < op.part_count; ++i)
    op.parts[i] = t[static_cast<std::size_t>(i) + first_part].template as<float>();
  return op;
}

// The sum has the bits of its contract in every implementation. One that says so has those of its parts, by the kernels
// that a run has for them.
template <typename Op>
void expect_its_parts() {
  for (const DType dtype : {DType::fp32, DType::bf16}) {
    for (const Shape& shape : shapes) {
      for (const int part_count : part_counts) {
        SCOPED_TRACE(shape.width);
        SCOPED_TRACE(part_count);
        const Tensors tensors = tensors_of(shape, dtype, part_count);
        const auto bind = [&](Tensors& t) { return op_of<Op>(t, shape, part_count % 3 != 1); };
        expect_op(tensors, bind, {.tolerance = 4e-6});
        const auto result = run_under_test(tensors, bind);
        if (!result) continue;
        EXPECT_TRUE((*result)[sum_at].same_bits(run_reference(tensors, bind)[sum_at]));
        if (!under_test()->implementation().same_bits_as_portable) continue;
        Tensors apart = tensors;
        Device& device = device_of(1, best_cpu_isa());
        Op::visit_parts(bind(apart), [&](const auto& part) { device.launch(part); });
        device.synchronize();
        for (std::size_t t = 0; t < apart.size(); ++t)
          EXPECT_TRUE((*result)[t].same_bits(apart[t])) << "tensor " << t;
      }
    }
  }
}

KERNEL_CASES(ResidualRmsNormIsItsParts, OpId::residual_rmsnorm) {
  expect_its_parts<ResidualRmsNorm>();
}

KERNEL_CASES(ResidualLayerNormIsItsParts, OpId::residual_layernorm) {
  expect_its_parts<ResidualLayerNorm>();
}

KERNEL_CASES(ResidualRmsNormHasTheSameBitsAnywhere, OpId::residual_rmsnorm) {
  for (const bool bias : {false, true}) {
    expect_same_bits_anywhere(tensors_of({5, 128}, DType::bf16, 4), [&](Tensors& t) {
      return op_of<ResidualRmsNorm>(t, {5, 128}, bias);
    });
  }
}

// Every composed op visits the ops that it says it is, none of which is composed.
TEST(ComposedOps, AreThePartsThatTheyName) {
  alignas(16) const std::byte arguments[op_bytes_max] = {};
  for (std::size_t index = 0; index < op_count; ++index) {
    const auto id = static_cast<OpId>(index);
    std::vector<OpId> visited;
    visit_op(id, arguments, [&]<typename Op>(const Op& op) {
      if constexpr (ComposedOp<Op>)
        Op::visit_parts(op, [&]<typename Part>(const Part&) { visited.push_back(Part::id); });
    });
    const std::span<const OpId> named = parts_of(id);
    EXPECT_EQ(visited, std::vector<OpId>(named.begin(), named.end())) << name_of(id);
    EXPECT_EQ(is_composed(id), !named.empty()) << name_of(id);
    for (const OpId part : named) EXPECT_FALSE(is_composed(part)) << name_of(id);
  }
  EXPECT_EQ(parts_text(OpId::residual_rmsnorm), "tree_sum and rmsnorm_forward");
}

// The parts have the arguments of the op, and the op that is made of them again is the same.
template <typename Op>
void expect_arguments_of_parts() {
  const Shape shape{3, 8};
  Tensors tensors = tensors_of(shape, DType::bf16, 4);
  const Op op = op_of<Op>(tensors, shape, true), again = Op::of(Op::sum_of(op), Op::norm_of(op));
  const auto fields = [](const Op& of) {
    std::vector<std::uintptr_t> arrays;
    Op::visit_operands(of, [&](const auto& pointer, const Operand& operand) {
      arrays.push_back(reinterpret_cast<std::uintptr_t>(pointer));
      arrays.push_back(static_cast<std::uintptr_t>(operand.count));
    });
    return arrays;
  };
  EXPECT_EQ(fields(again), fields(op));
  EXPECT_EQ(again.epsilon, op.epsilon);
}

TEST(ComposedOps, HaveTheArgumentsOfTheirParts) {
  expect_arguments_of_parts<ResidualLayerNorm>();
  expect_arguments_of_parts<ResidualRmsNorm>();
}

}  // namespace
}  // namespace holdfast::test
