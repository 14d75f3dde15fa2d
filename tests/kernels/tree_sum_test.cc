#include "kernels/tree_sum.h"

#include "tests/kernels/op_test.h"

namespace holdfast::test {
namespace {

struct Shape {
  std::int64_t rows, columns;
};
constexpr Shape shapes[] = {{1, 1}, {3, 15}, {7, 64}, {33, 130}, {2, 20000}};
constexpr std::size_t first_part = 3;  // of the tensors
constexpr int part_counts[] = {1, 2, 4, 8, 16};

// Tensors: bias, y, residual, parts. Terms of very different sizes, so that another order gives other bits.
Tensors tensors_of(const Shape& shape, DType dtype, int part_count) {
  const std::int64_t count = shape.rows * shape.columns;
  Tensors tensors = {random_values(shape.columns, dtype, 1), Values(count, dtype),
                     random_values(count, dtype, 40, 30.0)};
  for (int i = 0; i < part_count; ++i) {
    const auto seed = static_cast<std::uint64_t>(2 + i);
    tensors.push_back(random_values(count, DType::fp32, seed, i % 3 == 0 ? 100.0 : 1.0));
  }
  return tensors;
}

TreeSum op_of(Tensors& t, const Shape& shape, bool bias, bool residual = false) {
  TreeSum op{.part_count = static_cast<int>(t.size() - first_part),
             .bias = bias ? t[0].data() : nullptr,
             .residual = residual ? t[2].data() : nullptr,
             .y = t[1].data(),
             .rows = shape.rows,
             .columns = shape.columns,
             .dtype = t[1].dtype()};
  for (int i = 0; i < op.part_count; ++i)
    op.parts[i] = t[static_cast<std::size_t>(i) + first_part].as<float>();
  return op;
}

KERNEL_CASES(TreeSumHasTheBitsOfTheReference, OpId::tree_sum) {
  for (const DType dtype : {DType::fp32, DType::bf16}) {
    for (const Shape& shape : shapes) {
      for (const int part_count : part_counts) {
        SCOPED_TRACE(shape.columns);
        SCOPED_TRACE(part_count);
        const Tensors tensors = tensors_of(shape, dtype, part_count);
        const bool bias = part_count % 3 != 1;
        const bool residual = part_count % 3 != 2;
        const auto bind = [&](Tensors& t) { return op_of(t, shape, bias, residual); };
        expect_op(tensors, bind);
        const auto result = run_under_test(tensors, bind);
        EXPECT_TRUE(!result || (*result)[1].same_bits(run_reference(tensors, bind)[1]));
      }
    }
  }
}

KERNEL_CASES(TreeSumHasTheSameBitsAnywhere, OpId::tree_sum) {
  for (const DType dtype : {DType::fp32, DType::bf16}) {
    for (const bool added : {false, true}) {
      expect_same_bits_anywhere(tensors_of({5, 128}, dtype, 4), [&](Tensors& t) {
        return op_of(t, {5, 128}, /*bias=*/added, /*residual=*/added);
      });
    }
  }
}

KERNEL_CASES(TreeSumMayReplaceAPart, OpId::tree_sum) {
  const Shape shape{9, 100};
  for (const std::size_t part : {0U, 3U}) {
    expect_op(tensors_of(shape, DType::fp32, 4), [&](Tensors& t) {
      TreeSum op = op_of(t, shape, true);
      op.y = t[part + first_part].data();
      return op;
    });
  }
}

// Ranks that hold `share` neighbouring parts add theirs first, and then the roots.
KERNEL_CASES(TreeSumOfSubtreesHasTheBitsOfTheWholeTree, OpId::tree_sum) {
  constexpr Shape shape{5, 70};
  constexpr int part_count = 16;
  for (const DType dtype : {DType::fp32, DType::bf16}) {
    const Tensors tensors = tensors_of(shape, dtype, part_count);
    const auto bind = [&](Tensors& t) { return op_of(t, shape, true, true); };
    const auto whole = run_under_test(tensors, bind);
    if (!whole) continue;
    for (const int share : {2, 4, 8}) {
      SCOPED_TRACE(share);
      Tensors roots = {tensors[0], tensors[1], tensors[2]};
      for (int first = 0; first < part_count; first += share) {
        Tensors subtree = {tensors[0], Values(shape.rows * shape.columns, DType::fp32), tensors[2]};
        const auto begin = tensors.begin() + first_part + first;
        subtree.insert(subtree.end(), begin, begin + share);
        const auto root = run_under_test(subtree, [&](Tensors& t) { return op_of(t, shape, false); });
        roots.push_back((*root)[1]);
      }
      EXPECT_TRUE((*run_under_test(roots, bind))[1].same_bits((*whole)[1]));
    }
  }
}

TEST(TreeSum, AddsNeighboursFirst) {
  const Shape shape{1, 1};
  Tensors tensors = tensors_of(shape, DType::fp32, 4);
  const double parts[] = {1e8, -1e8, 1.0, 2.0};
  for (std::size_t i = 0; i < 4; ++i) tensors[i + first_part].set(0, parts[i]);
  const auto bind = [&](Tensors& t) { return op_of(t, shape, false); };
  EXPECT_EQ(run_reference(tensors, bind)[1][0], 3.0);
  tensors[4].set(0, 1.0), tensors[5].set(0, -1e8);  // ((1e8 + 1) + (-1e8 + 2)): both ones are lost
  EXPECT_EQ(run_reference(tensors, bind)[1][0], 0.0);
}

}  // namespace
}  // namespace holdfast::test
