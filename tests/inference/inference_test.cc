// A model whose weights are written by hand, so that what it must say is known: the embedding of a token is
// an axis of its own, the blocks add nothing, and the head turns the axis of token t into token t + 1.
#include "runtime/inference/inference.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "runtime/core/random.h"
#include "runtime/inference/file_evaluation.h"
#include "runtime/inference/sampler.h"
#include "tests/save/checkpoint_fixture.h"

namespace holdfast::test {
namespace {

using testing::HasSubstr;

constexpr float certainty = 20.0F;  // logit of the right token, all others 0

std::string model_text(int vocabulary, int width, const std::string& more = "") {
  return fmt::format(
      "[training]\nsteps = 10\nsequence_length = 8\n[model]\nlayers = 1\nheads = 2\nwidth = {}\nvocabulary = "
      "{}\n{}",
      width, vocabulary, more);
}

// Head row (t + 1) % vocabulary looks along axis t. RMSNorm makes the axis sqrt(width) long.
void fill_counting(std::int64_t vocabulary, std::int64_t width, const ShardSpec& piece,
                   std::span<float> values) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto element = static_cast<std::int64_t>(piece.first_element() + i);
    const std::int64_t row = element / width, axis = element % width;
    values[i] = 0.0F;
    if (row < vocabulary && piece.tensor == "embedding.token.weight") values[i] = axis == row ? 1.0F : 0.0F;
    if (row < vocabulary && piece.tensor == "head.weight" && (axis + 1) % vocabulary == row) {
      values[i] = certainty / std::sqrt(static_cast<float>(width));
    }
    if (piece.tensor.ends_with("norm.weight")) values[i] = 1.0F;
  }
}

void fill_random(const ShardSpec& piece, std::span<float> values) {
  const RandomStream stream(3, digest_of(piece.tensor).low);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = 0.2F * stream.normal(piece.first_element() + i);
}

class InferenceTest : public testing::Test {
 protected:
  std::unique_ptr<InferenceModel> load(const std::string& run, const CheckpointContent& content,
                                       const InferenceOptions& options = {}) {
    Result<Checkpoint> checkpoint =
        Checkpoint::open(posix_env(), write_checkpoint(directory_ / run, content));
    EXPECT_TRUE(checkpoint.ok()) << checkpoint.error().message;
    Result<std::unique_ptr<InferenceModel>> model = InferenceModel::load(posix_env(), *checkpoint, options);
    EXPECT_TRUE(model.ok()) << model.error().message;
    return std::move(model).value();
  }

  static CheckpointContent counting(int vocabulary, int width, int ranks = 1) {
    return {.config = resolved_config(model_text(vocabulary, width)),
            .state = example_state(),
            .ranks = ranks,
            .fill = [=](const ShardSpec& piece, std::span<float> values) {
              fill_counting(vocabulary, width, piece, values);
            }};
  }
  static CheckpointContent random(int ranks = 1) {
    return {.config = resolved_config(model_text(256, 64)),
            .state = example_state(),
            .ranks = ranks,
            .fill = fill_random};
  }

  static std::string sampled(InferenceModel& model, const SampleOptions& options) {
    std::string text;
    const Result<void> outcome = sample(model, options, [&](std::string_view part) { text += part; });
    EXPECT_TRUE(outcome.ok()) << outcome.error().message;
    return text;
  }

  std::string data_file(const std::string& text) {
    const std::string path = directory_ / "data.txt";
    EXPECT_TRUE(posix_env().replace_text(path, text).ok());
    return path;
  }

  double loss(InferenceModel& model, const std::string& path) {
    const Result<double> value = evaluate_file(posix_env(), model, path);
    EXPECT_TRUE(value.ok()) << value.error().message;
    return value.value();
  }

  TemporaryDirectory directory_;
};

TEST_F(InferenceTest, SaysTheOneThingItsWeightsKnow) {
  const auto model = load("run", counting(256, 256, /*ranks=*/3));
  EXPECT_EQ(sampled(*model, {.prompt = "abc", .tokens = 5, .temperature = 0.0}), "abcdefgh");
  // Past the window of 8 tokens it slides.
  EXPECT_EQ(sampled(*model, {.prompt = "", .tokens = 40, .temperature = 0.0}).substr(21),
            " !\"#$%&'()*+,-./012");
  const std::span<const float> logits = model->next_logits(std::vector<std::int32_t>{65, 10}).value();
  EXPECT_NEAR(logits[11], certainty, 0.1);
  EXPECT_NEAR(logits[10], 0.0, 1e-6);
}

TEST_F(InferenceTest, SpeaksTokenIdsWhereTheVocabularyIsNotBytes) {
  const auto model = load("run", counting(50, 64));  // 50 is padded to 64: padding is never chosen
  EXPECT_EQ(sampled(*model, {.prompt = "3, 47", .tokens = 4, .temperature = 0.0}), "3, 47 48 49 0 1");
  const SampleOptions wild{.prompt = "1", .tokens = 200, .temperature = 1000.0, .top_k = 0};
  const Result<std::vector<std::int32_t>> tokens = parse_prompt(sampled(*model, wild), 50);
  ASSERT_TRUE(tokens.ok()) << tokens.error().message;
  EXPECT_EQ(tokens->size(), 201u);
}

TEST_F(InferenceTest, SamplesAreReproducible) {
  const auto model = load("run", random());
  const SampleOptions options{.prompt = "x", .tokens = 60, .temperature = 1.0, .top_k = 0, .seed = 5};
  const std::string text = sampled(*model, options);
  EXPECT_EQ(text.size(), 61u);
  const auto other_layout = load("other", random(/*ranks=*/4), {.threads = 2});
  EXPECT_EQ(sampled(*other_layout, options), text);
  SampleOptions other_seed = options;
  other_seed.seed = 6;
  EXPECT_NE(sampled(*model, other_seed), text);
}

TEST_F(InferenceTest, LossIsTheOneOfTheLogits) {
  const auto model = load("run", random());
  const std::string text = "some text, long enough";  // 22 bytes: 2 windows of 8
  double expected = 0.0;
  for (std::size_t window = 0; window < 2; ++window) {
    std::vector<std::int32_t> seen;
    for (std::size_t i = 0; i < 8; ++i) {
      seen.push_back(text[window * 8 + i]);
      const std::span<const float> logits = model->next_logits(seen).value();
      double sum = 0.0;
      for (const float logit : logits) sum += std::exp(static_cast<double>(logit));
      expected +=
          std::log(sum) - static_cast<double>(logits[static_cast<std::size_t>(text[window * 8 + i + 1])]);
    }
  }
  EXPECT_NEAR(loss(*model, data_file(text)), expected / 16.0, 1e-5);
}

TEST_F(InferenceTest, LossOfAFileIsTheMeanOverItsWindows) {
  CheckpointContent content = counting(256, 256);
  std::string counting_text;
  for (int i = 0; i < 8 * 5 + 1; ++i) counting_text += static_cast<char>('!' + i);
  const auto model = load("run", content);
  const double right = std::log(1.0 + 255.0 * std::exp(-static_cast<double>(certainty)));
  EXPECT_NEAR(loss(*model, data_file(counting_text)), right, 1e-4);
  // One wrong transition of 40; what follows the last whole window does not count.
  std::string wrong = counting_text;
  wrong[40] = '!';
  EXPECT_NEAR(loss(*model, data_file(wrong + "zzzzzzz")), certainty / 40.0, 1e-2);
  // Five windows in batches of 3: the last batch is not full.
  const auto batched = load("batched", content, {.batch = 3});
  EXPECT_NEAR(loss(*batched, data_file(wrong)), certainty / 40.0, 1e-2);
  EXPECT_NEAR(loss(*load("short", content, {.sequence_length = 4}), data_file(wrong)), certainty / 40.0,
              1e-2);
}

TEST_F(InferenceTest, ReadsTokenShards) {
  std::string bytes(1024 + 17 * 2, '\0');
  const std::int32_t header[3] = {20240520, 1, 17};
  std::memcpy(bytes.data(), header, sizeof(header));
  for (std::size_t i = 0; i < 17; ++i) {
    const auto token = static_cast<std::uint16_t>(20 + i);
    std::memcpy(bytes.data() + 1024 + 2 * i, &token, sizeof(token));
  }
  const auto model = load("run", counting(50, 64));
  EXPECT_LT(loss(*model, data_file(bytes)), 1e-5);
  const Result<double> text =
      evaluate_file(posix_env(), *model, data_file("ordinary text of bytes above 50"));
  ASSERT_FALSE(text.ok());
  EXPECT_EQ(text.error().code, ExitCode::data);
  EXPECT_THAT(text.error().message, HasSubstr("vocabulary"));
}

TEST_F(InferenceTest, RefusesASequenceLongerThanItsPositions) {
  const CheckpointContent content{
      .config = resolved_config(model_text(256, 64, "style = \"gpt2\"\npositions = 12\n")),
      .state = example_state(),
      .ranks = 1,
      .fill = fill_random};
  Result<Checkpoint> checkpoint =
      Checkpoint::open(posix_env(), write_checkpoint(directory_ / "run", content));
  ASSERT_TRUE(checkpoint.ok());
  EXPECT_TRUE(InferenceModel::load(posix_env(), *checkpoint, {.sequence_length = 12}).ok());
  const auto model = InferenceModel::load(posix_env(), *checkpoint, {.sequence_length = 13});
  ASSERT_FALSE(model.ok());
  EXPECT_EQ(model.error().code, ExitCode::config);
  EXPECT_THAT(model.error().message, HasSubstr("12 positions"));
}

TEST_F(InferenceTest, RefusesBadInputWithASentence) {
  const auto model = load("run", counting(50, 64));
  const auto message = [&](const SampleOptions& options) {
    const Result<void> outcome = sample(*model, options, [](std::string_view) {});
    EXPECT_FALSE(outcome.ok());
    return outcome.ok() ? std::string() : outcome.error().message;
  };
  EXPECT_THAT(message({.prompt = "1 50"}), HasSubstr("'50'"));
  EXPECT_THAT(message({.prompt = "hello"}), HasSubstr("from 0 to 49"));
  EXPECT_THAT(message({.prompt = " "}), HasSubstr("the prompt is empty"));
  EXPECT_THAT(message({.prompt = "1", .temperature = -1.0}), HasSubstr("temperature"));
  EXPECT_THAT(message({.prompt = "1", .top_k = -3}), HasSubstr("top-k"));
  const Result<double> loss = evaluate_file(posix_env(), *model, data_file("\x01\x02\x03"));
  ASSERT_FALSE(loss.ok());
  EXPECT_EQ(loss.error().code, ExitCode::data);
  EXPECT_THAT(loss.error().message, HasSubstr("a sequence length of 2 or less"));
}

TEST(ChooseToken, FollowsTemperatureAndTopK) {
  const std::vector<float> logits = {0.0F, 2.0F, 2.0F, 1.0F};
  const auto choose = [&](double temperature, std::int64_t top_k, double uniform) {
    return choose_token(logits, {.temperature = temperature, .top_k = top_k}, uniform).value();
  };
  EXPECT_EQ(choose(0.0, 0, 0.99), 1);  // the first of equals
  EXPECT_EQ(choose(1.0, 2, 0.49), 1);
  EXPECT_EQ(choose(1.0, 2, 0.51), 2);
  EXPECT_EQ(choose(1.0, 2, 0.9999999), 2);
  EXPECT_EQ(choose(1.0, 0, 0.9999999), 0);
  // p(1) = e^2 / (2 e^2 + e + 1)
  const double first = std::exp(2.0) / (2.0 * std::exp(2.0) + std::exp(1.0) + 1.0);
  EXPECT_EQ(choose(1.0, 0, first - 1e-6), 1);
  EXPECT_EQ(choose(1.0, 0, first + 1e-6), 2);
  const std::vector<float> damaged = {0.0F, NAN};
  EXPECT_EQ(choose_token(damaged, {}, 0.5).error().code, ExitCode::numerics);
}

}  // namespace
}  // namespace holdfast::test
