#include "runtime/model/model.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "tests/support/golden.h"
#include "tests/support/model_rig.h"

namespace holdfast::test {
namespace {

constexpr std::uint64_t seed = 11;

ModelSpec small_spec(const std::string& style, const std::string& precision) {
  Config config;
  config.model = {.preset = "",
                  .style = style,
                  .layers = 2,
                  .heads = 4,
                  .kv_heads = style == "gpt2" ? 4 : 2,
                  .head_size = style == "qwen3" ? 32 : 0,
                  .width = 96,
                  .feed_forward = 208,
                  .vocabulary = 150,
                  .head = style == "llama" ? "untied" : "tied",
                  .positions = 40};
  config.training.precision = precision;
  return make_model_spec(config);
}

void start(ModelRig& rig, std::int64_t rows, std::uint64_t token_seed = 1) {
  rig.set_initial_weights(seed);
  rig.set_tokens(random_tokens(rows, rig.model().spec().vocabulary, token_seed),
                 random_tokens(rows, rig.model().spec().vocabulary, token_seed + 100));
}

class ModelTest : public testing::TestWithParam<std::tuple<const char*, const char*>> {
 protected:
  ModelSpec spec() const { return small_spec(std::get<0>(GetParam()), std::get<1>(GetParam())); }
  static constexpr BatchShapeBT shape{.batch = 3, .sequence_length = 37};
  static constexpr float scale = 1.0F / 111.0F;
};

TEST_P(ModelTest, SameBitsForAnyNumberOfThreads) {
  std::vector<float> expected;
  double expected_loss = 0.0;
  for (const int threads : {1, 2, 5}) {
    ModelRig rig(spec(), shape, {.threads = threads});
    start(rig, shape.rows());
    const double loss = rig.forward_backward({.gradient_scale = scale});
    const std::vector<float> gradients = rig.all_gradients();
    ASSERT_TRUE(std::isfinite(loss));
    if (threads == 1) {
      expected = gradients;
      expected_loss = loss;
    }
    EXPECT_EQ(std::memcmp(gradients.data(), expected.data(), expected.size() * sizeof(float)), 0) << threads;
    EXPECT_EQ(std::bit_cast<std::uint64_t>(loss), std::bit_cast<std::uint64_t>(expected_loss)) << threads;
  }
}

TEST_P(ModelTest, SameBitsInEveryRun) {
  ModelRig rig(spec(), shape);
  start(rig, shape.rows());
  rig.forward_backward({.gradient_scale = scale});
  const std::vector<float> first = rig.all_gradients();
  rig.forward_backward({.gradient_scale = scale});
  EXPECT_EQ(rig.all_gradients(), first);
}

TEST_P(ModelTest, GradientsOfTwoMicrobatchesAddUp) {
  ModelRig rig(spec(), shape);
  std::vector<std::vector<float>> alone;
  for (const std::uint64_t microbatch : {1u, 2u}) {
    start(rig, shape.rows(), microbatch);
    rig.forward_backward({.gradient_scale = scale});
    alone.push_back(rig.all_gradients());
  }
  start(rig, shape.rows(), 1);
  rig.forward_backward({.gradient_scale = scale});
  start(rig, shape.rows(), 2);
  rig.forward_backward({.accumulate = true, .gradient_scale = scale});
  std::vector<float> sum(alone[0].size());
  std::transform(alone[0].begin(), alone[0].end(), alone[1].begin(), sum.begin(), std::plus<>());
  for (const Bucket& bucket : rig.buckets().buckets()) {
    for (const BucketTensor& tensor : bucket.tensors) {
      const auto part = [&tensor](const std::vector<float>& all) {
        return std::span(all).subspan(tensor.gradient_offset, tensor.elements());
      };
      EXPECT_LE(relative_error(part(rig.all_gradients()), part(sum)), 2e-6) << tensor.name;
    }
  }
}

// At its announcement a bucket's gradients are as at the end: every op that writes them was launched before.
class CompleteBuckets final : public BucketObserver {
 public:
  explicit CompleteBuckets(ModelRig& rig) : rig_(rig) {}
  void bucket_launched(int bucket) override {
    buckets.push_back(bucket);
    rig_.device().synchronize();
    gradients.push_back(rig_.all_gradients());
  }
  std::vector<int> buckets;
  std::vector<std::vector<float>> gradients;

 private:
  ModelRig& rig_;
};

void expect_complete(const ModelRig& rig, int bucket, const CompleteBuckets& observer) {
  const std::vector<float>& announced = observer.gradients[static_cast<std::size_t>(bucket)];
  for (const BucketTensor& tensor : rig.buckets().buckets()[static_cast<std::size_t>(bucket)].tensors) {
    for (std::uint64_t i = 0; i < tensor.elements(); ++i) {
      const float value = announced[tensor.gradient_offset + i];
      ASSERT_FALSE(std::isnan(value)) << tensor.name << " " << i;
      ASSERT_EQ(std::bit_cast<std::uint32_t>(value),
                std::bit_cast<std::uint32_t>(rig.gradients()[tensor.gradient_offset + i]))
          << tensor.name << " " << i;
    }
  }
}

TEST_P(ModelTest, AnnouncesEveryBucketOnceInOrderWhenItIsComplete) {
  for (const Recompute recompute : {Recompute::none, Recompute::selective, Recompute::full}) {
    ModelRig rig(spec(), shape, {.recompute = recompute});
    start(rig, shape.rows());
    std::fill_n(rig.gradients(), rig.buckets().gradient_elements(), std::numeric_limits<float>::quiet_NaN());
    CompleteBuckets observer(rig);
    rig.forward_backward({.gradient_scale = scale, .observer = &observer});
    std::vector<int> in_order(rig.buckets().buckets().size());
    std::iota(in_order.begin(), in_order.end(), 0);
    ASSERT_EQ(observer.buckets, in_order);
    for (const int bucket : in_order) expect_complete(rig, bucket, observer);
  }
}

// Freezing saves memory and work, and changes no bit of the other gradients.
TEST_P(ModelTest, FrozenTensorsChangeNoOtherGradient) {
  const bool is_tied = spec().tied_head;
  const std::vector<std::vector<std::string>> lists = {{"embedding"},
                                                       {"embedding", "layer 0"},
                                                       {"embedding", "layers 0-1"},
                                                       {"layer 1"},
                                                       {is_tied ? "embedding" : "head"},
                                                       {"all but biases and norms"},
                                                       {"all but biases and norms", "layer 0"}};
  for (const Recompute recompute : {Recompute::none, Recompute::selective, Recompute::full}) {
    ModelRig whole(spec(), shape, {.recompute = recompute});
    start(whole, shape.rows());
    double loss = whole.forward_backward({.gradient_scale = scale});
    loss = whole.forward_backward({.accumulate = true, .gradient_scale = scale});
    for (const std::vector<std::string>& list : lists) {
      for (const bool split : {false, true}) {
        SCOPED_TRACE(fmt::format("{} {} {}", list.front(), list.size(), name_of(recompute)));
        ModelSpec frozen = spec();
        frozen.freeze = parse_freeze_list(list).value();
        ModelRig rig(frozen, shape, {.recompute = recompute, .split_backward = split});
        start(rig, shape.rows());
        CompleteBuckets observer(rig);
        rig.forward_backward({.gradient_scale = scale});
        EXPECT_EQ(rig.forward_backward({.accumulate = true, .gradient_scale = scale, .observer = &observer}),
                  loss);
        EXPECT_EQ(observer.buckets.size(), static_cast<std::size_t>(rig.buckets().local_count()));
        EXPECT_LT(rig.buckets().gradient_elements(), whole.buckets().gradient_elements());
        for (const ParameterSpec& parameter : parameter_specs(frozen)) {
          if (parameter.is_frozen) continue;
          EXPECT_EQ(rig.gradient(parameter.name), whole.gradient(parameter.name)) << parameter.name;
        }
      }
    }
  }
}

TEST_P(ModelTest, LossIsTheSameWithAndWithoutBackward) {
  ModelRig train(spec(), shape), forward_only(spec(), shape, {.mode = Model::Mode::forward_only});
  start(train, shape.rows());
  start(forward_only, shape.rows());
  const auto loss = std::bit_cast<std::uint64_t>(train.forward_backward({.gradient_scale = scale}));
  EXPECT_EQ(std::bit_cast<std::uint64_t>(train.forward_loss()), loss);
  EXPECT_EQ(std::bit_cast<std::uint64_t>(forward_only.forward_loss()), loss);
}

// Brings the parameters of a bucket when they are asked for and not before.
class LateParameters {
 public:
  LateParameters(ModelRig& rig, std::size_t element_bytes) : rig_(rig), element_bytes_(element_bytes) {
    const std::uint64_t bytes = rig.buckets().parameter_elements() * element_bytes;
    parameters_.assign(rig.parameters(), rig.parameters() + bytes);
    std::memset(rig.parameters(), 0xff, bytes);  // not numbers
  }
  Result<void> wait_for(int bucket) {
    rig_.device().synchronize();  // what was launched before has read what was there
    asked_.push_back(bucket);
    if (bucket == failing_) return fail(ExitCode::communication, "no parameters");
    for (int b = static_cast<int>(rig_.buckets().buckets().size()); b-- > bucket;) bring(b);
    return {};
  }
  void bring(int bucket) {
    const ElementRange range = rig_.buckets().parameter_range(bucket, 0);
    std::memcpy(rig_.parameters() + range.begin * element_bytes_,
                parameters_.data() + range.begin * element_bytes_, range.size() * element_bytes_);
  }
  void fail_at(int bucket) { failing_ = bucket; }
  const std::vector<int>& asked() const { return asked_; }

 private:
  ModelRig& rig_;
  std::size_t element_bytes_;
  std::vector<std::byte> parameters_;
  std::vector<int> asked_;
  int failing_ = -1;
};

TEST_P(ModelTest, AsksForEachHalfLayersParametersBeforeItReadsThem) {
  ModelRig rig(spec(), shape);
  start(rig, shape.rows());
  const double expected_loss = rig.forward_loss();
  const auto output = [&rig] {
    rig.device().synchronize();
    const std::span<const std::byte> bytes = rig.model().output(0, shape);
    return std::vector<std::byte>(bytes.begin(), bytes.end());
  };
  const std::vector<std::byte> expected = output();
  LateParameters late(rig, bytes_of(spec().dtype));
  rig.set_parameter_wait([&late](int bucket) { return late.wait_for(bucket); });
  const int head = rig.model().spec().tied_head ? 1 : 0;
  ASSERT_TRUE(rig.model().forward(rig.device(), rig.tokens(), 0).ok());
  EXPECT_EQ(output(), expected);
  // Two layers and the embedding, whose positions come with it.
  const int embedding = head + 5;
  EXPECT_EQ(late.asked(), (std::vector{embedding, head + 4, head + 3, head + 2, head + 1}));
  late.bring(head);
  EXPECT_EQ(std::bit_cast<std::uint64_t>(rig.forward_loss()), std::bit_cast<std::uint64_t>(expected_loss));
  late.fail_at(head + 3);
  const Result<void> failed = rig.model().forward(rig.device(), rig.tokens(), 0);
  EXPECT_FALSE(failed.ok());
  rig.device().synchronize();
}

TEST_P(ModelTest, LogitsGiveTheLoss) {
  ModelRig rig(spec(), shape, {.mode = Model::Mode::forward_only});
  start(rig, shape.rows());
  const auto vocabulary = static_cast<std::size_t>(rig.model().spec().vocabulary);
  double loss_sum = 0.0;
  for (std::int64_t row = 0; row < shape.rows(); ++row) {
    std::vector<float> logits = rig.forward_logits(row);
    for (std::size_t column = vocabulary; column < logits.size(); ++column) {
      EXPECT_EQ(std::fpclassify(logits[column]), FP_ZERO) << "padding";
    }
    double exponentials = 0.0;
    for (std::size_t column = 0; column < vocabulary; ++column) {
      exponentials += std::exp(static_cast<double>(logits[column]));
    }
    const auto target = static_cast<std::size_t>(rig.tokens().targets[row]);
    loss_sum += std::log(exponentials) - static_cast<double>(logits[target]);
  }
  EXPECT_NEAR(rig.forward_loss() / loss_sum, 1.0, 1e-6);
}

TEST_P(ModelTest, ASmallerBatchThanPlannedGivesTheSameBits) {
  constexpr BatchShapeBT small{.batch = 1, .sequence_length = 9};
  ModelRig large_rig(spec(), shape), small_rig(spec(), small);
  start(small_rig, small.rows());
  start(large_rig, small.rows());
  TokenBatch batch = large_rig.tokens();
  batch.shape = small;
  EXPECT_TRUE(
      large_rig.model()
          .forward_backward(large_rig.device(), batch, large_rig.loss_sum(), {.gradient_scale = scale})
          .ok());
  large_rig.device().synchronize();
  small_rig.forward_backward({.gradient_scale = scale});
  EXPECT_EQ(std::bit_cast<std::uint64_t>(*large_rig.loss_sum()),
            std::bit_cast<std::uint64_t>(*small_rig.loss_sum()));
  EXPECT_EQ(large_rig.all_gradients(), small_rig.all_gradients());
}

// Three documents packed into one sequence against each in a sequence of its own: the same loss and, added
// up, the same gradients. Rotary attention knows only distances, so positions that do not restart change
// nothing; the learned table of gpt2 does: its rows are made alike here.
TEST_P(ModelTest, PackedDocumentsComputeWhatEachDoesAlone) {
  constexpr std::array<std::int64_t, 3> lengths = {9, 20, 8};
  ModelRig packed(spec(), {.batch = 1, .sequence_length = 37}), alone(spec(), shape);
  for (ModelRig* rig : {&packed, &alone}) {
    start(*rig, 37);
    rig->set_weights([](const ParameterSpec& parameter) {
      std::vector<float> values(parameter.elements());
      initial_values(parameter, seed, 0, values);
      if (parameter.name == "embedding.position.weight") std::ranges::fill(values, 0.125F);
      return values;
    });
  }
  std::vector<std::int32_t> first_key;
  TokenBatch all = packed.tokens();
  double alone_loss = 0.0;
  for (const std::int64_t length : lengths) {
    const auto begin = static_cast<std::int64_t>(first_key.size());
    first_key.resize(first_key.size() + static_cast<std::size_t>(length), static_cast<std::int32_t>(begin));
    const TokenBatch document = {.inputs = all.inputs + begin,
                                 .targets = all.targets + begin,
                                 .shape = {.batch = 1, .sequence_length = length}};
    EXPECT_TRUE(alone.model()
                    .forward_backward(alone.device(), document, alone.loss_sum(),
                                      {.accumulate = begin > 0, .gradient_scale = scale})
                    .ok());
    alone.device().synchronize();
    alone_loss += *alone.loss_sum();
  }
  all.first_key = first_key.data();
  EXPECT_TRUE(packed.model()
                  .forward_backward(packed.device(), all, packed.loss_sum(), {.gradient_scale = scale})
                  .ok());
  packed.device().synchronize();
  const bool bf16 = spec().dtype == DType::bf16;
  EXPECT_NEAR(*packed.loss_sum() / alone_loss, 1.0, bf16 ? 1e-4 : 1e-6);
  for (const ParameterSpec& parameter : parameter_specs(packed.model().spec())) {
    if (parameter.name == "embedding.position.weight") continue;  // other rows of it
    EXPECT_LE(relative_error(packed.gradient(parameter.name), alone.gradient(parameter.name)),
              bf16 ? 2e-2 : 1e-5)
        << parameter.name;
  }
  const double masked_loss = *packed.loss_sum();
  EXPECT_GT(std::abs(packed.forward_loss() / masked_loss - 1.0), 1e-4) << "without documents it must differ";
}

INSTANTIATE_TEST_SUITE_P(Models, ModelTest,
                         testing::Combine(testing::Values("gpt2", "llama"), testing::Values("fp32", "bf16")),
                         [](const auto& test) {
                           return fmt::format("{}_{}", std::get<0>(test.param), std::get<1>(test.param));
                         });

// A vocabulary so large that the head takes 300 rows in two chunks.
ModelSpec spec_of_head_chunks(const std::string& style) {
  Config config;
  config.model = {.preset = "",
                  .style = style,
                  .layers = 2,
                  .heads = 2,
                  .kv_heads = 2,
                  .width = 16,
                  .feed_forward = 32,
                  .vocabulary = 16'000,
                  .head = style == "gpt2" ? "tied" : "untied"};
  return make_model_spec(config);
}

// Both parts of a backward have the bits of the whole, also of a head in chunks and of gradients that
// accumulate, and the part of inputs writes none of them.
TEST(ModelParts, HaveTheBitsOfTheWhole) {
  constexpr BatchShapeBT shape{.batch = 2, .sequence_length = 150};
  for (const char* style : {"gpt2", "llama"}) {
    for (const Recompute recompute : {Recompute::none, Recompute::selective, Recompute::full}) {
      SCOPED_TRACE(fmt::format("{}, {}", style, name_of(recompute)));
      const ModelSpec spec = spec_of_head_chunks(style);
      ModelRig whole(spec, shape, {.recompute = recompute});
      ModelRig parts(spec, shape, {.recompute = recompute, .split_backward = true});
      for (ModelRig* rig : {&whole, &parts}) start(*rig, shape.rows());
      for (const bool accumulate : {false, true}) {
        const double loss =
            whole.forward_backward({.accumulate = accumulate, .gradient_scale = 1.0F / 600.0F});
        const std::vector<float> before = parts.all_gradients();
        BackwardOptions options{
            .part = BackwardPart::inputs, .accumulate = accumulate, .gradient_scale = 1.0F / 600.0F};
        ASSERT_TRUE(parts.model().forward(parts.device(), parts.tokens(), 0).ok());
        const auto run = [&] {
          ASSERT_TRUE(
              parts.model().backward(parts.device(), parts.tokens(), 0, parts.loss_sum(), options).ok());
          parts.device().synchronize();
        };
        run();
        EXPECT_EQ(parts.all_gradients(), before);
        options.part = BackwardPart::weights;
        run();
        EXPECT_EQ(*parts.loss_sum(), loss);
        EXPECT_EQ(parts.all_gradients(), whole.all_gradients());
      }
    }
  }
}

// ModelSpec::head_rows is the number of rows wherever it is used, and changes no more than the order of a
// sum.
TEST(ModelHead, ChunksAreAsLargeAsTheSpecSays) {
  constexpr BatchShapeBT shape{.batch = 2, .sequence_length = 150};
  const ModelSpec automatic = spec_of_head_chunks("gpt2");
  EXPECT_EQ(head_chunk_rows(shape.rows(), automatic), 256);
  ModelRig by_rule(automatic, shape);
  start(by_rule, shape.rows());
  const double loss = by_rule.forward_backward({.gradient_scale = 1.0F / 300.0F});
  for (const std::int64_t rows : {64, 256, 1024}) {
    SCOPED_TRACE(rows);
    ModelSpec spec = automatic;
    spec.head_rows = rows;
    MemoryPlan plan;
    EXPECT_EQ(ActivationMemory(spec, shape, true, Recompute::none, plan).head_rows(),
              std::min(rows, shape.rows()));
    ModelRig rig(spec, shape);
    start(rig, shape.rows());
    EXPECT_NEAR(rig.forward_backward({.gradient_scale = 1.0F / 300.0F}) / loss, 1.0, 1e-7);
    for (const ParameterSpec& parameter : parameter_specs(spec)) {
      const double error = relative_error(rig.gradient(parameter.name), by_rule.gradient(parameter.name));
      EXPECT_LE(error, rows == 256 ? 0.0 : 5e-6) << parameter.name;
    }
  }
}

// The chunks against a microbatch for each half in one chunk.
TEST(ModelHead, ChunksOfRowsAddUp) {
  const ModelSpec spec = spec_of_head_chunks("llama");
  constexpr BatchShapeBT whole{.batch = 2, .sequence_length = 150}, half{.batch = 1, .sequence_length = 150};
  MemoryPlan plan;
  ASSERT_LT(ActivationMemory(spec, whole, true, Recompute::none, plan).head_rows(), whole.rows());
  ASSERT_EQ(ActivationMemory(spec, half, true, Recompute::none, plan).head_rows(), half.rows());

  ModelRig whole_rig(spec, whole), half_rig(spec, half);
  start(whole_rig, whole.rows());
  half_rig.set_initial_weights(seed);
  const double whole_loss = whole_rig.forward_backward({.gradient_scale = 1.0F / 300.0F});
  double halves_loss = 0.0;
  for (const std::int64_t index : {0, 1}) {
    const std::int32_t* inputs = whole_rig.tokens().inputs + index * half.rows();
    const std::int32_t* targets = whole_rig.tokens().targets + index * half.rows();
    half_rig.set_tokens({inputs, inputs + half.rows()}, {targets, targets + half.rows()});
    halves_loss += half_rig.forward_backward({.accumulate = index > 0, .gradient_scale = 1.0F / 300.0F});
  }
  EXPECT_NEAR(whole_loss / halves_loss, 1.0, 1e-7);
  for (const ParameterSpec& parameter : parameter_specs(spec)) {
    EXPECT_LE(relative_error(whole_rig.gradient(parameter.name), half_rig.gradient(parameter.name)), 5e-6)
        << parameter.name;
  }
}

}  // namespace
}  // namespace holdfast::test
