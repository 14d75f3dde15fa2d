// Promise 1: the same bits, whatever the number of ranks and threads, and wherever a run was stopped and
// resumed.
#include <fmt/core.h>

#include <cstdio>
#include <map>
#include <set>
#include <sstream>

#include "runtime/core/json.h"
#include "runtime/data/loader.h"
#include "tests/train/training_fixture.h"

namespace holdfast::test {
namespace {

class LayoutTest : public SameBitsTest {};

TEST_F(LayoutTest, AnyNumberOfRanks) {
  for (const int ranks : {2, 3, 4}) expect_same_bits({.run = fmt::format("d{}", ranks), .ranks = ranks}, {});
}

TEST_F(LayoutTest, AnyNumberOfThreads) {
  for (const int threads : {2, 3}) {
    expect_same_bits(
        {.run = fmt::format("t{}", threads), .ranks = 2, .overrides = {fmt::format("threads={}", threads)}},
        {});
  }
}

TEST_F(LayoutTest, Gpt2StyleInBf16WithSeveralMicrobatches) {
  const std::vector<std::string> what = {"model.style=gpt2", "model.kv_heads=4", "training.precision=bf16",
                                         "training.microbatches_per_lane=2"};
  for (const int ranks : {2, 3}) expect_same_bits({.run = fmt::format("d{}", ranks), .ranks = ranks}, what);
}

TEST_F(LayoutTest, LanesThatNoRankCountDivides) {
  const std::vector<std::string> what = {"parallel.lanes=5"};
  for (const int ranks : {2, 3, 4, 5})
    expect_same_bits({.run = fmt::format("d{}", ranks), .ranks = ranks}, what);
}

// Blocks inside a wave, over two and over several; in gradients of a place each, in shared places, and of both ends of
// a tied weight.
TEST_F(LayoutTest, BlocksOfLanes) {
  const std::vector<std::string> what = {"parallel.lanes=6", "parallel.lane_block=2", "model.layers=4",
                                         "model.style=gpt2", "model.kv_heads=4",      "model.head=tied"};
  for (const int ranks : {2, 3, 4, 5, 6}) {
    expect_same_bits({.run = fmt::format("d{}", ranks), .ranks = ranks}, what);
    expect_same_bits({.run = fmt::format("sharded{}", ranks),
                      .ranks = ranks,
                      .overrides = {"optimizer.shard_gradients=true"}},
                     what);
  }
  for (const char* schedule : {"1f1b", "zero_bubble"}) {
    expect_same_bits(
        {.run = fmt::format("stages-{}", schedule),
         .ranks = 8,
         .overrides = {"parallel.pipeline=2", fmt::format("parallel.pipeline_schedule={}", schedule)}},
        what);
  }
  expect_same_bits(
      {.run = "audited", .ranks = 4, .overrides = {"verdict.preset=guard", "verdict.audit_every_steps=1"}},
      what);
}

// Only sums of blocks leave a host (LaneExchange counts them), and the bits stay those of one rank.
TEST_F(LayoutTest, BlocksOfLanesAreSummedOnTheirHost) {
  const std::vector<std::string> what = {"parallel.lanes=6", "parallel.lane_block=2", "model.layers=4",
                                         "model.style=gpt2", "model.kv_heads=4",      "model.head=tied"};
  const auto on = [](const std::string& letters) {
    std::vector<std::string> hosts;
    for (const char letter : letters) hosts.emplace_back(1, letter);
    return hosts;
  };
  const auto expect = [&](const std::string& letters, std::vector<std::string> how = {}) {
    const auto run = fmt::format("{}{}", letters, how.empty() ? "" : how.front());
    expect_same_bits({.run = run,
                      .ranks = static_cast<int>(letters.size()),
                      .overrides = std::move(how),
                      .hosts = on(letters)},
                     what);
  };
  for (const char* letters : {"ab", "aab", "aabb", "aaabb", "aabbcc"}) {
    expect(letters);
    expect(letters, {"optimizer.shard_gradients=true"});
  }
  expect("aaaabb", {"parallel.pipeline=2"});
  expect("aabb", {"verdict.preset=guard", "verdict.audit_every_steps=1"});
  const auto bytes_to_other_hosts = [&](const std::string& block) {
    const std::string run = "block" + block;
    const RunEnd end =
        train({.run = run, .ranks = 4, .overrides = {"parallel.lane_block=" + block}, .hosts = on("aabb")});
    EXPECT_EQ(end.code, ExitCode::done) << end.message;
    const Result<std::string> text = posix_env().read_text(RunPaths{run_directory(run)}.events());
    std::istringstream lines(text.ok() ? *text : "");
    for (std::string line; std::getline(lines, line);)
      if (const Json event = Json::parse(line); event["event"] == "finish")
        return event["gradient_bytes_sent_to_other_hosts"].get<double>();
    return 0.0;
  };
  const double flat = bytes_to_other_hosts("1"), blocks = bytes_to_other_hosts("2");
  EXPECT_GT(blocks, 0.0);
  EXPECT_LT(blocks, 0.6 * flat) << "of rank 0, whose share of so few blocks of elements is uneven";
}

TEST_F(LayoutTest, BlocksOfLanesDecideBits) {
  for (const char* block : {"1", "2", "4"})
    ASSERT_EQ(train({.run = block, .overrides = {fmt::format("parallel.lane_block={}", block)}}).code,
              ExitCode::done);
  EXPECT_NE(digest("1"), digest("2"));
  EXPECT_EQ(digest("1"), digest("4")) << "one block of all";
  const RunEnd end = train({.run = "three", .overrides = {"parallel.lane_block=3"}});
  EXPECT_EQ(end.code, ExitCode::config);
  EXPECT_NE(end.message.find("parallel.lane_block = 3 does not divide parallel.lanes = 4"), std::string::npos)
      << end.message;
}

// With several waves and with one, whose sums are made in the gradient buffer; stopped and resumed in between.
TEST_F(LayoutTest, FrozenLayersAndEmbedding) {
  const std::vector<std::string> what = {"model.layers=4", "model.head=tied", "training.precision=bf16",
                                         "model.freeze=[\"embedding\", \"layers 0-1\"]"};
  for (const int ranks : {2, 3, 4})
    expect_same_bits({.run = fmt::format("d{}", ranks), .ranks = ranks}, what);
  for (const int ranks : {2, 1}) {
    const RunEnd end = train({.run = "changing", .ranks = ranks, .stop_after_steps = 5, .overrides = what});
    ASSERT_EQ(end.code, ExitCode::saved) << end.message;
  }
  expect_same_bits({.run = "changing", .ranks = 3, .overrides = {"optimizer.shard_gradients=true"}}, what);
}

TEST_F(LayoutTest, FrozenMatrices) {
  const std::vector<std::string> what = {"model.style=gpt2", "model.kv_heads=4",
                                         "training.microbatches_per_lane=2",
                                         "model.freeze=all but biases and norms"};
  for (const int ranks : {2, 3}) expect_same_bits({.run = fmt::format("d{}", ranks), .ranks = ranks}, what);
}

TEST_F(LayoutTest, Adapters) {
  const std::vector<std::string> what = {"model.layers=3", "training.microbatches_per_lane=2", "lora.rank=3",
                                         "lora.alpha=6"};
  for (const int ranks : {2, 3}) expect_same_bits({.run = fmt::format("d{}", ranks), .ranks = ranks}, what);
  for (const int ranks : {3, 1}) {
    const RunEnd end = train({.run = "changing", .ranks = ranks, .stop_after_steps = 5, .overrides = what});
    ASSERT_EQ(end.code, ExitCode::saved) << end.message;
  }
  expect_same_bits({.run = "changing", .ranks = 2, .overrides = {"optimizer.shard_gradients=true"}}, what);
}

TEST_F(LayoutTest, OtherAdaptersAreAnotherRun) {
  ASSERT_EQ(train({.run = "one", .stop_after_steps = 2, .overrides = {"lora.rank=2"}}).code, ExitCode::saved);
  const RunEnd end = train({.run = "one", .overrides = {"lora.rank=3"}});
  EXPECT_EQ(end.code, ExitCode::config);
  EXPECT_NE(end.message.find("lora.rank: 2 -> 3"), std::string::npos) << end.message;
}

TEST_F(LayoutTest, AnotherFreezeListIsAnotherRun) {
  ASSERT_EQ(train({.run = "one", .stop_after_steps = 2, .overrides = {"model.freeze=embedding"}}).code,
            ExitCode::saved);
  const RunEnd end = train({.run = "one", .overrides = {"model.freeze=layer 0"}});
  EXPECT_EQ(end.code, ExitCode::config);
  EXPECT_NE(end.message.find("model.freeze: [\"embedding\"] -> [\"layer 0\"]"), std::string::npos)
      << end.message;
}

TEST_F(LayoutTest, NormsOfHeads) {
  const std::vector<std::string> what = {"model.style=qwen3",
                                         "model.head_size=12",
                                         "model.rope_scaling=llama3",
                                         "model.rope_factor=4",
                                         "model.rope_original_positions=20",
                                         "training.microbatches_per_lane=2"};
  for (const int ranks : {2, 3})
    expect_same_bits(
        {.run = fmt::format("d{}", ranks), .ranks = ranks, .overrides = {"optimizer.shard_gradients=true"}},
        what);
}

TEST_F(LayoutTest, AnotherRotaryScalingIsAnotherRun) {
  const std::vector<std::string> llama3 = {"model.rope_scaling=llama3", "model.rope_factor=4",
                                           "model.rope_original_positions=16"};
  ASSERT_EQ(train({.run = "scaled", .overrides = llama3}).code, ExitCode::done);
  ASSERT_EQ(train({.run = "plain"}).code, ExitCode::done);
  EXPECT_NE(digest("scaled"), digest("plain"));
  ASSERT_EQ(train({.run = "one", .stop_after_steps = 2}).code, ExitCode::saved);
  const RunEnd end = train({.run = "one", .overrides = llama3});
  EXPECT_EQ(end.code, ExitCode::config);
  for (const char* words : {"model.rope_scaling: \"none\" -> \"llama3\"", "model.rope_factor: 1.0 -> 4.0",
                            "model.rope_original_positions: 0 -> 16"})
    EXPECT_NE(end.message.find(words), std::string::npos) << end.message;
}

class WindowTest : public LayoutTest, public testing::WithParamInterface<const char*> {};

TEST_P(WindowTest, SlidingWindowWithSinks) {
  const std::vector<std::string> what = {"model.attention_window=5", "model.attention_sinks=2",
                                         fmt::format("training.precision={}", GetParam())};
  for (const int ranks : {2, 3})
    expect_same_bits({.run = fmt::format("d{}", ranks),
                      .ranks = ranks,
                      .overrides = {"threads=2", "training.recompute=full"}},
                     what);
  for (const int ranks : {2, 1}) {
    const RunEnd end = train({.run = "changing", .ranks = ranks, .stop_after_steps = 5, .overrides = what});
    ASSERT_EQ(end.code, ExitCode::saved) << end.message;
  }
  expect_same_bits({.run = "changing", .ranks = 3}, what);
}

INSTANTIATE_TEST_SUITE_P(Precisions, WindowTest, testing::Values("fp32", "bf16"),
                         [](const auto& each) { return std::string(each.param); });

TEST_F(LayoutTest, AWindowOfTheWholeSequenceIsNone) {
  const auto digest_of_window = [&](const char* window) {
    EXPECT_EQ(train({.run = window, .overrides = {fmt::format("model.attention_window={}", window)}}).code,
              ExitCode::done);
    return digest(window);
  };
  const std::string plain = digest_of_window("0");
  EXPECT_EQ(digest_of_window("4096"), plain);
  EXPECT_NE(digest_of_window("5"), plain);
}

TEST_F(LayoutTest, AnotherWindowIsAnotherRun) {
  ASSERT_EQ(train({.run = "one", .stop_after_steps = 2, .overrides = {"model.attention_window=5"}}).code,
            ExitCode::saved);
  const RunEnd end =
      train({.run = "one", .overrides = {"model.attention_window=6", "model.attention_sinks=1"}});
  EXPECT_EQ(end.code, ExitCode::config);
  for (const char* words : {"model.attention_window: 5 -> 6", "model.attention_sinks: 0 -> 1"})
    EXPECT_NE(end.message.find(words), std::string::npos) << end.message;
}

TEST_F(LayoutTest, WeightsOfAModelWithoutAWindowMayGetOne) {
  ASSERT_EQ(train({.run = "base"}).code, ExitCode::done);
  const RunEnd end = train({.run = "tuned",
                            .overrides = {"model.attention_window=5", "model.attention_sinks=1",
                                          "run.initialize_from=" + run_directory("base")}});
  EXPECT_EQ(end.code, ExitCode::done) << end.message;
}

TEST_F(LayoutTest, AnyRecompute) {
  for (const char* mode : {"selective", "full"}) {
    for (const int ranks : {1, 3}) {
      expect_same_bits({.run = fmt::format("{}{}", mode, ranks),
                        .ranks = ranks,
                        .overrides = {fmt::format("training.recompute={}", mode)}},
                       {});
    }
  }
}

TEST_F(LayoutTest, RecomputeChangesBetweenResumes) {
  const std::vector<std::string> what = {"model.style=gpt2", "model.kv_heads=4", "training.precision=bf16",
                                         "training.microbatches_per_lane=2"};
  for (const char* mode : {"full", "none", "selective"}) {
    Launch launch{.run = "changing", .ranks = 2, .stop_after_steps = 5, .overrides = what};
    launch.overrides.push_back(fmt::format("training.recompute={}", mode));
    const RunEnd end = train(launch);
    ASSERT_EQ(end.code, ExitCode::saved) << end.message;
  }
  expect_same_bits({.run = "changing", .overrides = {"training.recompute=full"}}, what);
}

TEST_F(LayoutTest, RanksChangeBetweenResumes) {
  const int ranks[] = {4, 1, 3, 2};
  for (const int rank_count : ranks) {
    const RunEnd end = train({.run = "changing", .ranks = rank_count, .stop_after_steps = 5});
    ASSERT_EQ(end.code, rank_count == 2 ? ExitCode::done : ExitCode::saved) << end.message;
  }
  expect_same_bits({.run = "changing", .ranks = 4}, {});  // finished: says so and changes nothing
}

TEST_F(LayoutTest, AnotherSeedGivesOtherBits) {
  ASSERT_EQ(train({.run = "one"}).message, "all steps are done");
  ASSERT_EQ(train({.run = "two", .overrides = {"run.seed=2"}}).message, "all steps are done");
  EXPECT_NE(digest("one"), digest("two"));
  const auto data_line = [](const std::string& text) {
    const std::size_t begin = text.find("data ");
    return begin == std::string::npos ? "" : text.substr(begin, text.find('\n', begin) - begin);
  };
  EXPECT_NE(data_line(digest("one")), data_line(digest("two"))) << "as many samples, but others";
}

// All layouts agree on what microbatches of a lane add up to; this is what it must be, but for rounding.
TEST_F(LayoutTest, MicrobatchesOfALaneAddUpAsLanesDo) {
  const auto gradient_norm = [this](const std::string& run) {
    const Result<std::string> text = posix_env().read_text(RunPaths{run_directory(run)}.events());
    std::istringstream lines(text.ok() ? *text : "");
    for (std::string line; std::getline(lines, line);) {
      if (const Json event = Json::parse(line); event["event"] == "step")
        return event["grad_norm"].get<double>();
    }
    return 0.0;
  };
  ASSERT_EQ(train({.run = "lanes", .overrides = {"parallel.lanes=3"}}).message, "all steps are done");
  ASSERT_EQ(
      train({.run = "microbatches", .overrides = {"parallel.lanes=1", "training.microbatches_per_lane=3"}})
          .message,
      "all steps are done");
  EXPECT_GT(gradient_norm("lanes"), 0.0);
  EXPECT_NEAR(gradient_norm("microbatches"), gradient_norm("lanes"), 1e-4 * gradient_norm("lanes"));
}

TEST_F(LayoutTest, ClippingScalesTheGradients) {
  for (const char* clip : {"0", "1e-3"}) {
    const RunEnd end = train({.run = clip, .overrides = {"optimizer.gradient_clip=" + std::string(clip)}});
    ASSERT_EQ(end.message, "all steps are done");
  }
  EXPECT_NE(digest("0"), digest("1e-3"));
}

// Promise 2, over a whole epoch and a bit of the next, with the number of ranks changing on the way.
TEST_F(LayoutTest, LedgerHoldsEverySampleOncePerEpoch) {
  const std::vector<std::string> overrides = {"data.ledger=true", "training.steps=120",
                                              "training.sequence_length=64", "evaluation.every_steps=0"};
  for (const int ranks : {3, 1, 4, 2}) {
    const RunEnd end =
        train({.run = "ledger", .ranks = ranks, .stop_after_steps = 31, .overrides = overrides});
    ASSERT_TRUE(end.code == ExitCode::saved || end.code == ExitCode::done) << end.message;
  }
  std::multiset<std::string> used;
  for (int rank = 0; rank < 4; ++rank) {
    const std::string path = fmt::format("{}/ledger-{:05d}.jsonl", run_directory("ledger"), rank);
    const Result<std::string> text = posix_env().read_text(path);
    ASSERT_TRUE(text.ok());
    for (std::size_t at = text->find("[["); at != std::string::npos; at = text->find('[', at + 1)) {
      const std::size_t begin = (*text)[at + 1] == '[' ? at + 1 : at;
      used.insert(text->substr(begin, text->find(']', begin) - begin));
      at = begin;
    }
  }
  const Result<std::shared_ptr<DataSet>> data =
      DataSet::open(posix_env(), {{.path = directory_ / "train.txt"}}, 64);
  ASSERT_TRUE(data.ok());
  const std::uint64_t samples = (*data)->sample_count();
  ASSERT_EQ(used.size(), 120U * 4U * 2U);
  std::map<std::uint64_t, std::uint64_t> used_in_epoch;
  for (const std::string& id : used) {
    EXPECT_EQ(used.count(id), 1U) << id;
    unsigned long long source = 1, sample = samples, epoch = 0;
    ASSERT_EQ(std::sscanf(id.c_str(), "[%llu,%llu,%llu", &source, &sample, &epoch), 3) << id;
    EXPECT_EQ(source, 0U) << id;
    EXPECT_LT(sample, samples) << id;
    ++used_in_epoch[epoch];
  }
  // Distinct, in range and as many as there are: each once. Only the last epoch is not complete.
  const std::uint64_t whole_epochs = used.size() / samples;
  ASSERT_GE(whole_epochs, 1U);
  ASSERT_NE(used.size() % samples, 0U);
  for (std::uint64_t epoch = 0; epoch < whole_epochs; ++epoch) EXPECT_EQ(used_in_epoch[epoch], samples);
  EXPECT_EQ(used_in_epoch[whole_epochs], used.size() % samples);
  EXPECT_EQ(used_in_epoch.size(), whole_epochs + 1);
}

}  // namespace
}  // namespace holdfast::test
