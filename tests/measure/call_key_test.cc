#include "runtime/measure/call_key.h"

#include <gtest/gtest.h>

#include <set>

#include "kernels/visit_op.h"

namespace holdfast::test {
namespace {

template <typename Op>
measure::CallKey key_of(const Op& op) {
  return measure::call_key(Op::id, &op);
}
template <typename Op>
std::string text_of(const Op& op) {
  return measure::call_text(Op::id, &op);
}

TEST(CallKey, HasEveryFlagSizeAndType) {
  const Rotary op{.rows = 4, .row_stride = 64, .heads = 2, .head_size = 16, .sequence_length = 4};
  std::set<measure::CallKey> keys = {key_of(op)};
  for (const auto change : std::initializer_list<void (*)(Rotary&)>{
           [](Rotary& other) { other.inverse = true; }, [](Rotary& other) { other.row_stride = 65; },
           [](Rotary& other) { other.sequence_length = 2; },
           [](Rotary& other) { other.dtype = DType::bf16; }}) {
    Rotary other = op;
    change(other);
    EXPECT_TRUE(keys.insert(key_of(other)).second) << text_of(other);
  }
  Rotary back = op;
  back.inverse = true;
  EXPECT_EQ(text_of(back), "4x2 heads of 16, inverse");
}

TEST(CallKey, TellsWhichArraysAreGivenAndWhichAreOneMemory) {
  float memory[3];
  RmsNormBackward apart{.dresidual = memory, .dx = memory + 1, .rows = 2, .width = 3};
  RmsNormBackward same = apart, without = apart;
  same.dx = memory;
  without.dresidual = nullptr;
  EXPECT_EQ(std::set({key_of(apart), key_of(same), key_of(without)}).size(), 3U);
  EXPECT_EQ(text_of(apart), "2x3, dresidual");
  EXPECT_EQ(text_of(same), "2x3, dresidual, dx=dresidual");
  EXPECT_EQ(text_of(without), "2x3");
  RmsNormBackward elsewhere = apart;
  elsewhere.dresidual = memory + 2;
  elsewhere.x = memory;
  EXPECT_EQ(key_of(apart), key_of(elsewhere))
      << "addresses do not count, nor whether a needed array has one yet";
}

TEST(CallKey, HasTheTensorsAndTheSegmentsOfACall) {
  OptimizerTensor tensors[] = {{.count = 3, .weight_decay = 0.5F}, {.count = 4}};
  AdamW op{.tensors = tensors, .tensor_count = 2, .block_count = 2, .learning_rate = 0.1F};
  const measure::CallKey first = key_of(op);
  op.learning_rate = 0.2F;
  op.gradient_scale = 0.5F;
  EXPECT_EQ(first, key_of(op)) << "numbers of the moment";
  tensors[1].count = 5;
  EXPECT_NE(first, key_of(op));
  tensors[1].count = 4;
  BFloat16 copy;
  tensors[0].copy = &copy;
  EXPECT_NE(first, key_of(op));
  op.moments = DType::bf16;
  EXPECT_EQ(text_of(op), "7 in 2 tensors, moments=bf16, copy");

  const BlockSegment segments[] = {{.first = 0, .count = 2}, {.first = 4, .count = 1, .first_block = 1}};
  const SquareSum whole{.count = 5}, cut{.count = 5, .segments = segments, .segment_count = 2};
  EXPECT_NE(key_of(whole), key_of(cut));
  EXPECT_EQ(text_of(cut), "5, 2 segments");
  EXPECT_EQ(text_of(SquareSum{.count = 2, .segments = segments, .segment_count = 1}), "2, 1 segment");
}

TEST(CallKey, ZeroIsAStateOfNumbersThatDoNotCountOtherwise) {
  CrossEntropy op{.rows = 2, .row_stride = 3, .vocabulary = 3, .gradient_scale = 0.5F};
  const measure::CallKey first = key_of(op);
  op.gradient_scale = 0.25F;
  EXPECT_EQ(first, key_of(op));
  op.gradient_scale = 0.0F;
  EXPECT_NE(first, key_of(op));
  EXPECT_EQ(text_of(op), "2x3, gradient_scale=0");
}

}  // namespace
}  // namespace holdfast::test
