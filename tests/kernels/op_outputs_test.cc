// Every op of the reference runs on memory with a canary pattern: exactly what outputs_of() names changes.
#include "kernels/op_outputs.h"

#include <set>
#include <vector>

#include "kernels/visit_op.h"
#include "tests/kernels/op_test.h"

namespace holdfast::test {
namespace {

constexpr std::uint64_t base_seed = 100;

// Memory that an op writes: a finite value that no result here has.
Values canary(std::int64_t count, DType dtype = DType::fp32) {
  Values values(count, dtype);
  std::memset(values.data(), 0x5a, values.byte_count());
  return values;
}
Values some(std::int64_t count, DType dtype = DType::fp32) {
  Values values = random_values(count, dtype, base_seed + static_cast<std::uint64_t>(count), 0.5);
  for (std::int64_t i = 0; i < count; ++i) values.set(i, values[i] + 0.75);
  return values;
}

bool names(const OpOutputs& outputs, const std::byte* address) {
  for (const OpOutput& output : outputs) {
    const auto* const first = static_cast<const std::byte*>(output.values);
    const auto size = static_cast<std::ptrdiff_t>(bytes_of(output.dtype));
    if (address < first || address >= first + output.count * size) continue;
    if ((address - first) / size % output.row_stride < output.row_columns) return true;
  }
  return false;
}

enum class Relation {
  exact,    // what is named changes, and nothing else
  superset  // nothing else changes
};

class OpOutputsTest : public testing::Test {
 public:
  // Runs one op. Tensors from `unnamed` on are written and not named.
  template <typename Bind>
  void expect_outputs(const Tensors& before, const Bind& bind, Relation relation = Relation::exact,
                      std::size_t unnamed = 1000) {
    Tensors after = before;
    const auto op = bind(after);
    const OpOutputs outputs = outputs_of(op);
    reference(op);
    seen_.insert(op.id);
    SCOPED_TRACE(name_of(op.id));
    EXPECT_GT(outputs.size(), 0U);
    expect_changes(before, after, outputs, relation, unnamed);
  }

  static void expect_changes(const Tensors& before, const Tensors& after, const OpOutputs& outputs,
                             Relation relation, std::size_t unnamed) {
    for (std::size_t t = 0; t < before.size() && t < unnamed; ++t) {
      const std::size_t size = bytes_of(before[t].dtype());
      for (std::size_t at = 0; at < before[t].byte_count(); at += size) {
        const auto* const old = static_cast<const std::byte*>(before[t].data()) + at;
        const auto* const now = static_cast<const std::byte*>(after[t].data()) + at;
        const bool changed = std::memcmp(old, now, size) != 0;
        const bool named = names(outputs, now);
        const bool right = relation == Relation::exact ? changed == named : !changed || named;
        ASSERT_TRUE(right) << "tensor " << t << ", byte " << at << (named ? " is" : " is not") << " named and"
                           << (changed ? " changed" : " did not change");
      }
    }
  }

  template <typename Op>
  void expect_none(const Op& op) {
    seen_.insert(op.id);
    EXPECT_EQ(outputs_of(op).size(), 0U) << name_of(op.id);
  }

  void products();
  void embeddings();
  void norms();
  void attention();
  void activations();
  void head();
  void flat();
  void unnamed();

  std::set<OpId> seen_;
};

void OpOutputsTest::products() {
  for (const DType dtype_c : {DType::fp32, DType::bf16}) {
    expect_outputs({some(12, DType::bf16), some(20, DType::bf16), canary(40, dtype_c)}, [&](Tensors& t) {
      return Matmul{.a = t[0].data(),
                    .b = t[1].data(),
                    .c = t[2].data(),
                    .m = 3,
                    .n = 5,
                    .k = 4,
                    .lda = 4,
                    .ldb = 5,
                    .ldc = 8,
                    .dtype = DType::bf16,
                    .dtype_c = dtype_c};
    });
  }
  expect_outputs({some(12), canary(4)}, [](Tensors& t) {
    return BiasGradient{.dy = t[0].data(), .gradient = t[1].as<float>(), .rows = 3, .columns = 4};
  });
  expect_outputs({some(30), canary(36)}, [](Tensors& t) {
    TreeSum op{.part_count = 2, .y = t[1].data(), .rows = 3, .columns = 5};
    op.parts[0] = t[0].as<float>();
    op.parts[1] = t[0].as<float>() + 15;
    return op;
  });
}

// Tokens 0 to 3 of a table of four, or of a slice that has the last two.
void OpOutputsTest::embeddings() {
  Values tokens(6, DType::int32);
  for (std::int64_t i = 0; i < 6; ++i) tokens.set(i, static_cast<double>(i % 4));
  for (const bool slice : {false, true}) {
    expect_outputs(
        {tokens, some(12), some(15), canary(20)},
        [&](Tensors& t) {
          return EmbeddingForward{.tokens = t[0].as<std::int32_t>(),
                                  .table = t[1].data(),
                                  .positions = slice ? nullptr : t[2].data(),
                                  .x = t[3].data(),
                                  .rows = 6,
                                  .width = 3,
                                  .sequence_length = 5,
                                  .first_token = slice ? 2 : 0,
                                  .token_count = slice ? 2 : 0};
        },
        slice ? Relation::superset : Relation::exact);
    for (const std::int64_t length : {5, 8}) {
      expect_outputs(
          {tokens, some(18), some(27), some(15)},
          [&](Tensors& t) {
            return EmbeddingBackward{.tokens = t[0].as<std::int32_t>(),
                                     .dx = t[1].data(),
                                     .table_gradient = t[3].as<float>(),
                                     .positions_gradient = t[2].as<float>(),
                                     .rows = 6,
                                     .width = 3,
                                     .sequence_length = length,
                                     .first_token = slice ? 2 : 0,
                                     .token_count = slice ? 2 : 0};
          },
          Relation::exact, /*unnamed=*/slice ? 4 : 3);
    }
  }
}

void OpOutputsTest::norms() {
  for (const DType dtype : {DType::fp32, DType::bf16}) {
    expect_outputs({some(12, dtype), some(4, dtype), some(4, dtype), canary(16, dtype), canary(4), canary(4)},
                   [&](Tensors& t) {
                     return LayerNormForward{.x = t[0].data(),
                                             .weight = t[1].data(),
                                             .bias = t[2].data(),
                                             .y = t[3].data(),
                                             .mean = t[4].as<float>(),
                                             .rstd = t[5].as<float>(),
                                             .rows = 3,
                                             .width = 4,
                                             .dtype = dtype};
                   });
    expect_outputs(
        {some(24), some(12, dtype), some(4, dtype), canary(16, dtype), canary(16, dtype), canary(4)},
        [&](Tensors& t) {
          ResidualRmsNorm op{.part_count = 2,
                             .residual = t[1].data(),
                             .weight = t[2].data(),
                             .sum = t[3].data(),
                             .y = t[4].data(),
                             .rstd = t[5].as<float>(),
                             .rows = 3,
                             .width = 4,
                             .dtype = dtype};
          op.parts[0] = t[0].as<float>();
          op.parts[1] = t[0].as<float>() + 12;
          return op;
        });
    expect_outputs({some(24), some(12, dtype), some(4, dtype), canary(16, dtype), canary(16, dtype),
                    canary(4), canary(4)},
                   [&](Tensors& t) {
                     ResidualLayerNorm op{.part_count = 2,
                                          .residual = t[1].data(),
                                          .weight = t[2].data(),
                                          .norm_bias = t[2].data(),
                                          .sum = t[3].data(),
                                          .y = t[4].data(),
                                          .mean = t[6].as<float>(),
                                          .rstd = t[5].as<float>(),
                                          .rows = 3,
                                          .width = 4,
                                          .dtype = dtype};
                     op.parts[0] = t[0].as<float>();
                     op.parts[1] = t[0].as<float>() + 12;
                     return op;
                   });
    expect_outputs({some(12, dtype), some(4, dtype), canary(16, dtype), canary(4)}, [&](Tensors& t) {
      return RmsNormForward{.x = t[0].data(),
                            .weight = t[1].data(),
                            .y = t[2].data(),
                            .rstd = t[3].as<float>(),
                            .rows = 3,
                            .width = 4,
                            .dtype = dtype};
    });
    const Tensors backward = {some(12, dtype),   some(4, dtype), some(13, dtype), some(3),  some(4),
                              canary(16, dtype), canary(5),      canary(6),       canary(7)};
    expect_outputs(backward, [&](Tensors& t) {
      return LayerNormBackward{.x = t[0].data(),
                               .weight = t[1].data(),
                               .dy = t[2].data(),
                               .mean = t[3].as<float>(),
                               .rstd = t[4].as<float>(),
                               .dresidual = t[2].data(),
                               .dx = t[5].data(),
                               .weight_gradient = t[6].as<float>(),
                               .bias_gradient = t[7].as<float>(),
                               .dresidual_sum = t[8].as<float>(),
                               .rows = 3,
                               .width = 4,
                               .dtype = dtype};
    });
    expect_outputs(backward, [&](Tensors& t) {
      return RmsNormBackward{.x = t[0].data(),
                             .weight = t[1].data(),
                             .dy = t[2].data(),
                             .rstd = t[4].as<float>(),
                             .dx = t[5].data(),
                             .weight_gradient = t[6].as<float>(),
                             .rows = 3,
                             .width = 4,
                             .dtype = dtype};
    });
  }
}

// Two heads that share one of keys, of size 4: rows of 16.
void OpOutputsTest::attention() {
  constexpr std::int64_t rows = 6;
  expect_outputs({some(rows * 16), some(3 * 2), some(3 * 2)}, [](Tensors& t) {
    return Rotary{.x = t[0].data(),
                  .cosine = t[1].as<float>(),
                  .sine = t[2].as<float>(),
                  .rows = rows,
                  .row_stride = 16,
                  .heads = 3,
                  .head_size = 4,
                  .sequence_length = 3};
  });
  expect_outputs({some(rows * 16), canary(rows * 8 + 2), canary(rows * 2 + 2)}, [](Tensors& t) {
    return AttentionForward{.qkv = t[0].data(),
                            .out = t[1].data(),
                            .lse = t[2].as<float>(),
                            .batch = 2,
                            .sequence_length = 3,
                            .heads = 2,
                            .kv_heads = 1,
                            .head_size = 4};
  });
  expect_outputs({some(rows * 16), canary(rows * 8 + 2), canary(rows * 2 + 2), some(2 * 5 * 8)},
                 [](Tensors& t) {
                   return AttentionForward{.qkv = t[0].data(),
                                           .cache = t[3].data(),
                                           .out = t[1].data(),
                                           .lse = t[2].as<float>(),
                                           .batch = 2,
                                           .sequence_length = 3,
                                           .heads = 2,
                                           .kv_heads = 1,
                                           .head_size = 4,
                                           .first_position = 2};
                 });
  expect_outputs(
      {some(rows * 16), some(rows * 8), some(rows * 8 + 1), some(rows * 2), canary(rows * 16 + 2),
       canary(rows * 2)},
      [](Tensors& t) {
        return AttentionBackward{.qkv = t[0].data(),
                                 .out = t[1].data(),
                                 .dout = t[2].data(),
                                 .lse = t[3].as<float>(),
                                 .delta = t[5].as<float>(),
                                 .dqkv = t[4].data(),
                                 .batch = 2,
                                 .sequence_length = 3,
                                 .heads = 2,
                                 .kv_heads = 1,
                                 .head_size = 4};
      },
      Relation::exact, /*unnamed=*/5);  // delta is scratch
}

void OpOutputsTest::activations() {
  expect_outputs({some(7), canary(9)},
                 [](Tensors& t) { return GeluForward{.x = t[0].data(), .y = t[1].data(), .count = 7}; });
  expect_outputs({some(24), canary(14)}, [](Tensors& t) {
    return SwigluForward{.x = t[0].data(), .y = t[1].data(), .rows = 3, .feed_forward = 4};
  });
  expect_outputs({some(24), some(12), canary(26)}, [](Tensors& t) {
    return SwigluBackward{
        .x = t[0].data(), .dy = t[1].data(), .dx = t[2].data(), .rows = 3, .feed_forward = 4};
  });
}

// Three rows of five tokens and three columns of padding.
void OpOutputsTest::head() {
  Values targets(3, DType::int32);
  for (std::int64_t i = 0; i < 3; ++i) targets.set(i, static_cast<double>(i));
  for (const float scale : {0.0F, 0.5F}) {
    expect_outputs({some(26), targets, canary(4)}, [&](Tensors& t) {
      return CrossEntropy{.logits = t[0].data(),
                          .targets = t[1].as<std::int32_t>(),
                          .losses = t[2].as<float>(),
                          .rows = 3,
                          .row_stride = 8,
                          .vocabulary = 5,
                          .gradient_scale = scale};
    });
  }
  expect_outputs({some(26), targets, canary(10)}, [](Tensors& t) {
    return CrossEntropySlice{.logits = t[0].data(),
                             .targets = t[1].as<std::int32_t>(),
                             .statistics = t[2].as<SoftmaxStatistics>(),
                             .rows = 3,
                             .row_stride = 8,
                             .columns = 5};
  });
  expect_outputs({some(18), targets, canary(4), canary(10)}, [](Tensors& t) {
    return CrossEntropyJoin{.slices = t[0].as<SoftmaxStatistics>(),
                            .targets = t[1].as<std::int32_t>(),
                            .losses = t[2].as<float>(),
                            .statistics = t[3].as<SoftmaxStatistics>(),
                            .rows = 3,
                            .slice_count = 2};
  });
  expect_outputs({some(26), targets, some(9)}, [](Tensors& t) {
    return CrossEntropyGradient{.logits = t[0].data(),
                                .targets = t[1].as<std::int32_t>(),
                                .statistics = t[2].as<SoftmaxStatistics>(),
                                .rows = 3,
                                .row_stride = 8,
                                .columns = 5,
                                .gradient_scale = 0.5F};
  });
  expect_outputs({some(5), canary(2, DType::fp64)}, [](Tensors& t) {
    return LossSum{.values = t[0].as<float>(), .count = 5, .sum = t[1].as<double>()};
  });
}

void OpOutputsTest::flat() {
  constexpr std::int64_t count = 4099;
  expect_outputs({some(count), canary(3, DType::fp64)}, [](Tensors& t) {
    return SquareSum{.values = t[0].as<float>(), .count = count, .sums = t[1].as<double>()};
  });
  for (const bool sums : {false, true}) {
    expect_outputs({some(count + 2), some(count), canary(3, DType::fp64)}, [&](Tensors& t) {
      return Accumulate{.target = t[0].as<float>(),
                        .source = t[1].as<float>(),
                        .count = count,
                        .square_sums = sums ? t[2].as<double>() : nullptr};
    });
  }
  for (const DType dtype : {DType::fp32, DType::bf16}) {
    expect_outputs({some(5, dtype), some(6, dtype), canary(7, dtype)}, [&](Tensors& t) {
      return Add{.a = t[0].data(), .b = t[1].data(), .y = t[2].data(), .count = 5, .dtype = dtype};
    });
  }
  expect_outputs({some(18), canary(20)}, [](Tensors& t) {
    return CopyRows{.source = t[0].data(),
                    .target = t[1].data(),
                    .rows = 3,
                    .columns = 4,
                    .source_stride = 6,
                    .target_stride = 5};
  });
  expect_outputs({some(5), canary(7, DType::bf16)}, [](Tensors& t) {
    return Cast{.source = t[0].as<float>(), .target = t[1].as<BFloat16>(), .count = 5};
  });
}

void OpOutputsTest::unnamed() {
  Values values = some(8);
  DigestWords words;
  const OptimizerTensor tensor{.weight = values.as<float>(), .count = 8};
  expect_none(AdamW{.tensors = &tensor, .tensor_count = 1, .block_count = 1});
  expect_none(Lion{.tensors = &tensor, .tensor_count = 1, .block_count = 1});
  expect_none(FillZero{.target = values.data(), .bytes = 8});
  expect_none(Copy{.source = values.data(), .target = values.data(), .bytes = 8});
  std::uint64_t digests[1];
  expect_none(
      OptimizerDigest{.tensors = &tensor, .tensor_count = 1, .block_count = 1, .block_digests = digests});
  expect_none(TensorDigest{.values = values.data(), .count = 8, .result = &words});
}

TEST_F(OpOutputsTest, AreExactlyWhatEachOpWrites) {
  products();
  embeddings();
  norms();
  attention();
  activations();
  head();
  flat();
  unnamed();
  EXPECT_EQ(seen_.size(), op_count) << "an op has no case";
}

TEST_F(OpOutputsTest, OfATensorAreExactlyWhatAnUpdateWrites) {
  const auto expect = [&]<typename Update>(Update op) {
    for (const bool copy : {false, true}) {
      const DType moments = copy ? DType::bf16 : DType::fp32;
      const Tensors before = {some(5), some(5, moments), some(5, moments), some(5), canary(6, DType::bf16)};
      Tensors after = before;
      const OptimizerTensor tensor{.weight = after[0].as<float>(),
                                   .moment1 = after[1].data(),
                                   .moment2 = Update::moment_count > 1 ? after[2].data() : nullptr,
                                   .gradient = after[3].as<float>(),
                                   .copy = copy ? after[4].as<BFloat16>() : nullptr,
                                   .count = 5};
      op.tensors = &tensor;
      op.tensor_count = op.block_count = 1;
      op.learning_rate = 0.1F;
      op.beta1 = 0.5F;
      op.beta2 = 0.25F;
      op.gradient_scale = 3.0F;
      op.moments = moments;
      reference(op);
      expect_changes(before, after, outputs_of(tensor, moments), Relation::exact, before.size());
    }
  };
  expect(AdamW{.epsilon = 1e-8F});
  expect(Lion{});
}

TEST_F(OpOutputsTest, OfAnEmptyOpAreNone) {
  EXPECT_EQ(outputs_of(Matmul{.c = &seen_, .m = 0, .n = 4, .ldc = 4}).size(), 0U);
  EXPECT_EQ(outputs_of(Rotary{.x = &seen_, .rows = 2, .row_stride = 4, .heads = 0, .head_size = 4}).size(),
            0U);
  EXPECT_EQ(outputs_of(Add{.y = &seen_, .count = 0}).size(), 0U);
  EXPECT_EQ(outputs_of(Add{.y = nullptr, .count = 4}).size(), 0U) << "planned";
}

TEST_F(OpOutputsTest, OfWhatHasStatisticsMayBeInfinite) {
  SoftmaxStatistics statistics;
  float losses[1];
  const OpOutputs outputs =
      outputs_of(CrossEntropyJoin{.losses = losses, .statistics = &statistics, .rows = 1});
  ASSERT_EQ(outputs.size(), 2U);
  EXPECT_FALSE(outputs[0].may_be_infinite);
  EXPECT_TRUE(outputs[1].may_be_infinite);
}

}  // namespace
}  // namespace holdfast::test
