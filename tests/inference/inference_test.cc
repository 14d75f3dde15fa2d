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
#include "tests/support/forwarding_env.h"

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
                                       const InferenceOptions& options = {.cached_sequences = 3}) {
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

  // Returns the texts of all prompts.
  static std::vector<std::string> sampled_texts(InferenceModel& model, const SampleOptions& options) {
    std::vector<std::string> texts;
    const Result<std::int64_t> made = sample(model, options, [&](std::size_t prompt, std::string_view part) {
      if (prompt == texts.size()) texts.emplace_back();
      ASSERT_EQ(prompt + 1, texts.size()) << "prompts come one after another";
      texts.back() += part;
    });
    EXPECT_TRUE(made.ok()) << made.error().message;
    EXPECT_EQ(texts.size(), options.prompts.size());
    return texts;
  }
  static std::string sampled(InferenceModel& model, const SampleOptions& options) {
    return sampled_texts(model, options).front();
  }

  // Returns the logits of the token that follows.
  static std::vector<float> logits_after(InferenceModel& model, const std::vector<std::int32_t>& tokens,
                                         int sequence = 0) {
    model.clear(sequence);
    const std::span<const float> logits = model.append(sequence, tokens).value();
    return {logits.begin(), logits.end()};
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
  EXPECT_EQ(sampled(*model, {.prompts = {"abc"}, .tokens = 5, .temperature = 0.0}), "abcdefgh");
  // Past the window of 8 tokens it goes on.
  EXPECT_EQ(sampled(*model, {.prompts = {""}, .tokens = 40, .temperature = 0.0}).substr(21),
            " !\"#$%&'()*+,-./012");
  const std::vector<float> logits = logits_after(*model, {65, 10});
  EXPECT_NEAR(logits[11], certainty, 0.1);
  EXPECT_NEAR(logits[10], 0.0, 1e-6);
}

// A machine that has so much memory.
class MachineOf final : public ForwardingEnv {
 public:
  explicit MachineOf(std::uint64_t KiB) : ForwardingEnv(posix_env()), KiB_(KiB) {}
  Result<std::string> read_text(const std::string& path) override {
    if (path == "/proc/meminfo") return fmt::format("MemTotal: {0} kB\nMemAvailable: {0} kB\n", KiB_);
    return posix_env().read_text(path);
  }

 private:
  std::uint64_t KiB_;
};

TEST_F(InferenceTest, HoldsAsManySequencesAsFit) {
  const std::string run = write_checkpoint(directory_ / "run", counting(256, 256));
  Result<Checkpoint> checkpoint = Checkpoint::open(posix_env(), run);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message;
  constexpr std::int64_t length = 1 << 12;  // of which a sequence has 8 MiB in the cache
  const auto loaded = [&](std::uint64_t MiB) {
    MachineOf machine(MiB << 10);
    return InferenceModel::load(machine, *checkpoint, {.sequence_length = length, .cached_sequences = 64});
  };
  const Result<std::unique_ptr<InferenceModel>> some = loaded(256);
  ASSERT_TRUE(some.ok()) << some.error().message;
  EXPECT_GT((*some)->sequences_at_once(), 1);
  EXPECT_LT((*some)->sequences_at_once(), 32);
  std::vector<std::string> prompts(40, "a");
  EXPECT_EQ(sampled_texts(**some, {.prompts = prompts, .tokens = 3, .temperature = 0.0}),
            std::vector<std::string>(40, "abcd"));
  const Result<std::unique_ptr<InferenceModel>> none = loaded(8);
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.error().code, ExitCode::does_not_fit);
  EXPECT_THAT(none.error().message,
              HasSubstr("the model does not fit: in fp32, for sequences of 4096 tokens, it takes "));
}

TEST_F(InferenceTest, SpeaksTokenIdsWhereTheVocabularyIsNotBytes) {
  const auto model = load("run", counting(50, 64));  // 50 is padded to 64: padding is never chosen
  EXPECT_EQ(sampled(*model, {.prompts = {"3, 47"}, .tokens = 4, .temperature = 0.0}), "3, 47 48 49 0 1");
  const SampleOptions wild{.prompts = {"1"}, .tokens = 200, .temperature = 1000.0, .top_k = 0};
  const Result<std::vector<std::int32_t>> tokens = parse_prompt(sampled(*model, wild), 50);
  ASSERT_TRUE(tokens.ok()) << tokens.error().message;
  EXPECT_EQ(tokens->size(), 201u);
}

TEST_F(InferenceTest, SamplesAreReproducible) {
  const auto model = load("run", random());
  const SampleOptions options{.prompts = {"x"}, .tokens = 60, .temperature = 1.0, .top_k = 0, .seed = 5};
  const std::string text = sampled(*model, options);
  EXPECT_GE(text.size(), 58u);  // the last byte may begin a character
  EXPECT_LE(text.size(), 61u);
  const auto other_layout = load("other", random(/*ranks=*/4), {.threads = 2, .cached_sequences = 1});
  EXPECT_EQ(sampled(*other_layout, options), text);
  SampleOptions other_seed = options;
  other_seed.seed = 6;
  EXPECT_NE(sampled(*model, other_seed), text);
}

// A family of blocks, and slices of a layer.
TEST_F(InferenceTest, TokensOneByOneHaveTheLogitsOfAllAtOnce) {
  const std::pair<std::string, int> models[] = {{"style = \"gpt2\"\n", 1},
                                                {"kv_heads = 1\n", 1},
                                                {"style = \"qwen3\"\n", 1},
                                                {"style = \"qwen2\"\n", 1},
                                                {"style = \"mistral\"\n", 1},
                                                {"style = \"gpt2\"\n", 2},
                                                {"", 2}};
  for (const auto& [more, slices] : models) {
    SCOPED_TRACE(fmt::format("{}{} slices", more, slices));
    CheckpointContent content{.config = resolved_config(model_text(300, 64, more)),
                              .state = example_state(),
                              .ranks = 1,
                              .fill = fill_random};
    content.config.parallel.tensor_lanes = slices;
    const std::string name = fmt::format("run{}", &slices - &models[0].second);
    const auto model = load(name, content);
    const auto alone = load(name + "-alone", content, {.cached_sequences = 1});
    const std::vector<std::int32_t> tokens = {7, 299, 3, 3, 150, 42, 9, 256};
    for (int sequence = 0; sequence < 3; ++sequence) model->clear(sequence);
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      // Sequence 2 is two tokens behind the others, and sequence 0 is the only one that has them so.
      std::vector<InferenceModel::NextToken> next = {{.sequence = 1, .token = tokens[tokens.size() - 1 - i]},
                                                     {.sequence = 0, .token = tokens[i]}};
      if (i >= 2) next.push_back({.sequence = 2, .token = tokens[i - 2]});
      const std::span<const float> all = model->append(next).value();
      ASSERT_EQ(all.size(), next.size() * 300);
      const std::vector<float> of_first(all.begin() + 300, all.begin() + 600);
      const std::vector<float> of_last(all.end() - 300, all.end());
      const auto end = tokens.begin() + static_cast<std::ptrdiff_t>(i) + 1;
      EXPECT_EQ(logits_after(*alone, {tokens.begin(), end}), of_first);
      if (i < 2) continue;
      EXPECT_EQ(logits_after(*alone, {tokens.begin(), end - 2}), of_last);
    }
    EXPECT_EQ(model->room(0), 0);
    EXPECT_EQ(model->room(2), 2);
  }
}

// Five prompts in three sequences, which end at different times.
TEST_F(InferenceTest, ATextIsTheSameWhateverIsBesideIt) {
  const auto model = load("run", random());
  SampleOptions options{.prompts = {"one", "and two", "", "four", "fifth"},
                        .tokens = 30,
                        .temperature = 1.0,
                        .stops = {"e", "\xff"}};
  const std::vector<std::string> texts = sampled_texts(*model, options);
  const auto alone = load("alone", random(), {.cached_sequences = 1});
  EXPECT_EQ(sampled_texts(*alone, options), texts);
  options.prompts.resize(1);
  EXPECT_EQ(sampled(*model, options), texts[0]);
  options.prompts = {"one", "one"};
  options.stops.clear();
  const std::vector<std::string> twins = sampled_texts(*model, options);
  EXPECT_NE(twins[0], twins[1]) << "each prompt has random numbers of its own";
}

// A full context is read anew from its last three quarters on, and every token is made from what is known then.
TEST_F(InferenceTest, AFullContextGoesOnFromItsLastThreeQuarters) {
  const auto model = load("run", random());
  const SampleOptions options{.prompts = {"ab"}, .tokens = 30, .temperature = 0.0};
  const std::string text = sampled(*model, options);
  std::vector<std::int32_t> tokens = {'a', 'b'};
  std::size_t seen = 0;
  std::string expected = "ab";
  for (int i = 0; i < 30; ++i) {
    seen = i == 0 ? 2 : seen == 8 ? 6 : seen + 1;
    const std::vector<float> logits =
        logits_after(*model, {tokens.end() - static_cast<std::ptrdiff_t>(seen), tokens.end()});
    tokens.push_back(choose_token(logits, options, 0.0).value());
    expected += static_cast<char>(tokens.back());
  }
  EXPECT_TRUE(expected.starts_with(text));
  EXPECT_GE(text.size(), expected.size() - 3);
}

TEST_F(InferenceTest, ATextEndsBeforeAStop) {
  const auto model = load("run", counting(256, 256));
  const SampleOptions options{.prompts = {"abc"}, .tokens = 20, .temperature = 0.0, .stops = {"zz", "hij"}};
  std::vector<std::string> parts;
  const Result<std::int64_t> made =
      sample(*model, options, [&](std::size_t, std::string_view part) { parts.emplace_back(part); });
  ASSERT_TRUE(made.ok());
  EXPECT_EQ(*made, 7);  // h, i and j are made, and not shown
  EXPECT_EQ(parts, (std::vector<std::string>{"abc", "d", "e", "f", "g"}));
}

TEST_F(InferenceTest, LossIsTheOneOfTheLogits) {
  const auto model = load("run", random());
  const std::string text = "some text, long enough";  // 22 bytes: 2 windows of 8
  double expected = 0.0;
  for (std::size_t window = 0; window < 2; ++window) {
    std::vector<std::int32_t> seen;
    for (std::size_t i = 0; i < 8; ++i) {
      seen.push_back(text[window * 8 + i]);
      const std::vector<float> logits = logits_after(*model, seen);
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
    const Result<std::int64_t> outcome = sample(*model, options, [](std::size_t, std::string_view) {});
    EXPECT_FALSE(outcome.ok());
    return outcome.ok() ? std::string() : outcome.error().message;
  };
  EXPECT_THAT(message({.prompts = {"1 50"}}), HasSubstr("'50'"));
  EXPECT_THAT(message({.prompts = {"hello"}}), HasSubstr("from 0 to 49"));
  EXPECT_THAT(message({.prompts = {" "}}), HasSubstr("the prompt is empty"));
  EXPECT_THAT(message({.prompts = {"1", "2 hello"}}), HasSubstr("prompt 2: the prompt holds 'hello'"));
  EXPECT_THAT(message({.prompts = {"1"}, .tokens = 0}),
              HasSubstr("tokens = 0 makes no text. Give 1 or more"));
  EXPECT_THAT(message({.prompts = {"1"}, .temperature = -1.0}), HasSubstr("temperature"));
  EXPECT_THAT(message({.prompts = {"1"}, .top_k = -3}), HasSubstr("top-k"));
  for (const double top_p : {0.0, -0.5, 1.5, static_cast<double>(NAN)})
    EXPECT_THAT(message({.prompts = {"1"}, .top_p = top_p}), HasSubstr("top-p"));
  EXPECT_THAT(message({.prompts = {"1"}, .stops = {"a", ""}}), HasSubstr("a text to stop at is empty"));
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
  // The two likeliest have 0.80 of the probability together, the three likeliest 0.95.
  const auto choose_within = [&](double top_p, double uniform) {
    return choose_token(logits, {.temperature = 1.0, .top_k = 0, .top_p = top_p}, uniform).value();
  };
  EXPECT_EQ(choose_within(0.1, 0.9999999), 1);
  EXPECT_EQ(choose_within(0.75, 0.49), 1);
  EXPECT_EQ(choose_within(0.75, 0.9999999), 2);
  EXPECT_EQ(choose_within(0.9, 0.9999999), 3);
  EXPECT_EQ(choose_within(0.99, 0.9999999), 0);
  const std::vector<float> damaged = {0.0F, NAN};
  EXPECT_EQ(choose_token(damaged, {}, 0.5).error().code, ExitCode::numerics);
}

}  // namespace
}  // namespace holdfast::test
