#include "runtime/data/loader.h"

#include <gmock/gmock.h>

#include <map>
#include <set>

#include "tests/data/token_files.h"
#include "tests/support/faulty_env.h"
#include "tests/support/temporary_directory.h"

namespace holdfast::test {
namespace {

using testing::HasSubstr;

constexpr std::uint64_t seed = 7;
constexpr BatchShape shape = {
    .sequence_length = 8, .microbatch_size = 3, .microbatches_per_lane = 2, .lanes = 5};

// The lanes of rank `rank` of `ranks`, wave by wave.
std::vector<int> lanes_of(int rank, int ranks) {
  std::vector<int> lanes;
  for (int lane = rank; lane < shape.lanes; lane += ranks) lanes.push_back(lane);
  return lanes;
}

class LoaderTest : public testing::Test {
 protected:
  void SetUp() override {
    const std::string first = write_bytes(directory / "first", varied_text(8 * 400 + 5, 1));
    const std::string second = write_bytes(directory / "second", varied_text(8 * 51 + 1, 2));
    Result<std::shared_ptr<DataSet>> opened = DataSet::open(env, {{.path = first}, {.path = second}}, 8);
    HF_ASSERT_OK(opened);
    data = opened.value();
  }
  DataLoader loader(std::vector<int> lanes, std::uint64_t cursor, std::int64_t prefetch = 4) {
    return DataLoader(env, data, seed, shape, std::move(lanes), cursor, 256, prefetch);
  }

  TemporaryDirectory directory;
  FaultyEnv env{posix_env()};
  std::shared_ptr<DataSet> data;
};

TEST_F(LoaderTest, TheSetCountsWhatItHolds) {
  EXPECT_EQ(data->sample_count(), 451u);
  EXPECT_EQ(data->token_count(), 3205u + 409u);
  EXPECT_EQ(data->vocabulary_needed(), 256);
}

TEST_F(LoaderTest, BatchesHoldTheTokensOfTheirPositions) {
  const SampleOrder order = data->order(seed);
  const std::vector<int> lanes = lanes_of(1, 2);
  constexpr std::uint64_t cursor = 90;
  DataLoader rank = loader(lanes, cursor);
  std::vector<std::int32_t> tokens(9);
  for (std::uint64_t step = 0; step < 3; ++step) {
    for (const int lane : lanes) {
      for (std::uint64_t microbatch = 0; microbatch < 2; ++microbatch) {
        const Result<MicroBatch> batch = rank.next();
        HF_ASSERT_OK(batch);
        ASSERT_EQ(batch.value().inputs.size(), 24u);
        for (std::uint64_t row = 0; row < 3; ++row) {
          const std::uint64_t lane_first = static_cast<std::uint64_t>(lane) * 6;
          const SampleId id = order.at(cursor + step * 30 + lane_first + microbatch * 3 + row);
          ASSERT_EQ(batch.value().samples[row], id);
          HF_ASSERT_OK(data->read(id, tokens, 256));
          const auto is_row = [&](std::span<const std::int32_t> matrix, std::size_t shift) {
            return std::ranges::equal(matrix.subspan(row * 8, 8), std::span(tokens).subspan(shift, 8));
          };
          ASSERT_TRUE(is_row(batch.value().inputs, 0));
          ASSERT_TRUE(is_row(batch.value().targets, 1));
        }
      }
    }
  }
}

// The digest of a step does not know how many ranks there were, and it notices every change.
TEST_F(LoaderTest, StepDigestsAreTheSameForAnyNumberOfRanks) {
  constexpr std::uint64_t steps = 4;
  const auto digests = [&](int ranks, std::int64_t prefetch, std::uint64_t cursor) {
    std::vector<Digest> sums(steps);
    for (int rank = 0; rank < ranks; ++rank) {
      const std::vector<int> lanes = lanes_of(rank, ranks);
      DataLoader own = loader(lanes, cursor, prefetch);
      for (Digest& sum : sums) {
        for (std::size_t i = 0; i < lanes.size() * 2; ++i) {
          const Result<MicroBatch> batch = own.next();
          EXPECT_TRUE(batch.ok());
          sum += batch.value().digest;
        }
      }
    }
    return sums;
  };
  const std::vector<Digest> expected = digests(1, 1, 0);
  for (int ranks = 1; ranks <= 5; ++ranks) EXPECT_EQ(digests(ranks, ranks, 0), expected) << ranks;
  const std::vector<Digest> later = digests(2, 3, 30);
  for (std::size_t i = 0; i + 1 < steps; ++i) EXPECT_EQ(later[i], expected[i + 1]);
  EXPECT_NE(expected[0], expected[1]);
  EXPECT_NE(digests(1, 1, 1)[0], expected[0]);
}

TEST_F(LoaderTest, TheDigestTellsWhereInItsStepASampleStood) {
  constexpr BatchShape two = {
      .sequence_length = 8, .microbatch_size = 1, .microbatches_per_lane = 1, .lanes = 2};
  DataLoader second(env, data, seed, two, {1}, /*cursor=*/0, 256, 1),
      first(env, data, seed, two, {0}, /*cursor=*/1, 256, 1);
  const Result<MicroBatch> as_second = second.next(), as_first = first.next();
  HF_ASSERT_OK(as_second);
  HF_ASSERT_OK(as_first);
  ASSERT_EQ(as_second->samples[0], as_first->samples[0]);
  EXPECT_NE(as_second->digest, as_first->digest);
}

// A ledger over two epochs while the number of ranks changes with every step: each sample exactly once per
// epoch.
TEST_F(LoaderTest, EachSampleOncePerEpochThroughAnyChangeOfRanks) {
  std::map<std::tuple<std::uint64_t, std::uint32_t, std::uint64_t>, int> uses;
  std::uint64_t cursor = 0;
  const std::vector<int> degrees = {4, 4, 3, 5, 1, 2};
  for (std::size_t step = 0; cursor < 2 * data->sample_count(); ++step) {
    const int ranks = degrees[step % degrees.size()];
    for (int rank = 0; rank < ranks; ++rank) {
      DataLoader own = loader(lanes_of(rank, ranks), cursor);
      for (std::size_t i = 0; i < lanes_of(rank, ranks).size() * 2; ++i) {
        const Result<MicroBatch> batch = own.next();
        HF_ASSERT_OK(batch);
        for (const SampleId& id : batch.value().samples) ++uses[{id.epoch, id.source, id.sample}];
      }
    }
    cursor += shape.samples_per_step();
  }
  std::map<std::uint64_t, std::uint64_t> samples_of_epoch;
  for (const auto& [key, count] : uses) {
    ASSERT_EQ(count, 1);
    ++samples_of_epoch[std::get<0>(key)];
  }
  EXPECT_EQ(samples_of_epoch[0], 451u);
  EXPECT_EQ(samples_of_epoch[1], 451u);
}

// One epoch of both parts of two sources, weighted or not: together every sample once.
TEST_F(LoaderTest, TrainingAndValidationShareTheSamplesWithoutOverlap) {
  for (const double weight : {0.0, 1.0}) {
    SCOPED_TRACE(weight);
    const auto opened = DataSet::open(
        posix_env(),
        {{.path = directory / "first", .weight = weight}, {.path = directory / "second", .weight = weight}},
        8, {.documents = {}, .validation = {.fraction = 0.1, .seed = 2}});
    HF_ASSERT_OK(opened);
    const std::shared_ptr<DataSet> held_back = (*opened)->validation_part();
    EXPECT_EQ((*opened)->sample_count() + held_back->sample_count(), 451u);
    EXPECT_EQ(held_back->sample_count(), 45u);
    EXPECT_EQ((*opened)->fingerprint(), data->fingerprint());
    std::set<std::pair<std::uint32_t, std::uint64_t>> seen;
    for (const DataSet* part : {opened->get(), held_back.get()}) {
      const SampleOrder order = part->order(seed);
      std::set<std::pair<std::uint32_t, std::uint64_t>> own;
      // With weights a whole round of slots: many epochs of both sources.
      for (std::uint64_t i = 0; i < (weight > 0.0 ? SampleOrder::round_slots : part->sample_count()); ++i) {
        const SampleId id = order.at(i);
        const bool first_time = own.emplace(id.source, id.sample).second;
        ASSERT_TRUE(first_time || weight > 0.0);
      }
      EXPECT_EQ(own.size(), part->sample_count());
      for (const auto& sample : own) ASSERT_TRUE(seen.insert(sample).second);
    }
    EXPECT_EQ(seen.size(), 451u);
  }
}

TEST_F(LoaderTest, SourcesOfOneVocabularyAgreeOnIt) {
  const std::string shard = write_bytes(directory / "shard", llmc_v1(std::vector<std::uint16_t>(100, 3)));
  const std::string unknown =
      write_bytes(directory / "unknown", llmq_bytes(std::vector<std::int32_t>(100, 3), 1));
  const auto vocabulary = [&](const std::vector<SourceConfig>& sources) {
    return (*DataSet::open(posix_env(), sources, 8))->vocabulary_of_format();
  };
  const SourceConfig text = {.path = directory / "first"}, tokens = {.path = shard, .format = "llmc"};
  EXPECT_EQ(vocabulary({tokens, tokens}).value(), 50257);
  EXPECT_THAT(vocabulary({tokens, text}).error().message, HasSubstr("do not agree"));
  EXPECT_THAT(vocabulary({text, {.path = unknown, .format = "llmq"}}).error().message,
              HasSubstr("/unknown does not say how large its vocabulary is"));
  EXPECT_EQ(vocabulary({tokens, text}).error().code, ExitCode::config);
}

TEST_F(LoaderTest, FirstKeysComeWithTheRowsTheyBelongTo) {
  const std::string path = write_bytes(directory / "lines", [] {
    std::string text = varied_text(8 * 200 + 1);
    for (std::size_t i = 4; i < text.size(); i += 5) text[i] = '\n';
    return text;
  }());
  const auto lines = DataSet::open(posix_env(), {{.path = path}}, 8,
                                   {.documents = {.mask = true, .end_token = '\n'}, .validation = {}});
  HF_ASSERT_OK(lines);
  DataLoader rank(env, *lines, seed, shape, {0, 1}, 0, 256, 2);
  for (int i = 0; i < 8; ++i) {
    const Result<MicroBatch> batch = rank.next();
    HF_ASSERT_OK(batch);
    EXPECT_EQ(batch->counted_targets, 24u);
    ASSERT_EQ(batch->first_key.size(), 24u);
    for (std::size_t row = 0; row < 3; ++row) {
      std::int32_t begin = 0;
      for (std::size_t t = 0; t < 8; ++t) {
        if (t > 0 && batch->inputs[row * 8 + t - 1] == '\n') begin = static_cast<std::int32_t>(t);
        ASSERT_EQ(batch->first_key[row * 8 + t], begin);
      }
    }
  }
}

TEST_F(LoaderTest, ABatchStaysValidWhileTheThreadRunsAhead) {
  DataLoader rank = loader(lanes_of(0, 1), 0, 1);
  for (int i = 0; i < 50; ++i) {
    const Result<MicroBatch> batch = rank.next();
    HF_ASSERT_OK(batch);
    const std::vector<std::int32_t> copy(batch.value().inputs.begin(), batch.value().inputs.end());
    posix_env().sleep_us(200);
    ASSERT_TRUE(std::ranges::equal(copy, batch.value().inputs));
  }
}

TEST_F(LoaderTest, AnErrorComesAfterWhatWasReadBeforeIt) {
  env.inject({.operation = Operation::read, .at = 3 * 3 + 2, .reason = EACCES});
  DataLoader rank = loader(lanes_of(0, 1), 0);
  for (int i = 0; i < 3; ++i) HF_ASSERT_OK(rank.next());
  for (int i = 0; i < 2; ++i) {
    const Result<MicroBatch> batch = rank.next();
    ASSERT_FALSE(batch.ok());
    EXPECT_EQ(batch.error().code, ExitCode::data);
    EXPECT_THAT(batch.error().message, HasSubstr(directory.path()));
  }
}

TEST_F(LoaderTest, ATokenOutsideTheVocabularyReachesNext) {
  DataLoader rank(env, data, seed, shape, {0}, 0, 10, 2);
  const Result<MicroBatch> batch = rank.next();
  ASSERT_FALSE(batch.ok());
  EXPECT_THAT(batch.error().message, HasSubstr("but the vocabulary has 10 entries"));
}

TEST_F(LoaderTest, CanBeDroppedAtAnyTime) {
  for (int i = 0; i < 50; ++i) {
    DataLoader rank = loader(lanes_of(0, 3), 0, 3);
    for (int j = 0; j < i % 5; ++j) HF_ASSERT_OK(rank.next());
  }
}

TEST_F(LoaderTest, AllBadFilesAreNamedAtOnce) {
  write_bytes(directory / "empty", "");
  write_bytes(directory / "foreign", std::string(2000, 'a'));
  const auto opened = DataSet::open(posix_env(),
                                    {{.path = directory / "missing"},
                                     {.path = directory / "first"},
                                     {.path = directory / "empty"},
                                     {.path = directory / "foreign", .format = "llmc"}},
                                    8);
  ASSERT_FALSE(opened.ok());
  EXPECT_EQ(opened.error().code, ExitCode::data);
  for (const char* name :
       {"/missing does not exist", "/empty is empty", "/foreign is not an llm.c token shard"}) {
    EXPECT_THAT(opened.error().message, HasSubstr(name));
  }
  EXPECT_EQ(std::ranges::count(opened.error().message, '\n'), 2);
  EXPECT_FALSE(DataSet::open(posix_env(), {}, 8).ok());
}

TEST_F(LoaderTest, WeightsThatWouldSilenceASourceAreRefused) {
  for (const double weight : {1e-9, -1.0}) {
    const auto opened = DataSet::open(
        posix_env(),
        {{.path = directory / "first", .weight = 1.0}, {.path = directory / "second", .weight = weight}}, 8);
    ASSERT_FALSE(opened.ok());
    EXPECT_THAT(opened.error().message, HasSubstr("/second"));
    EXPECT_THAT(opened.error().message, HasSubstr("weight"));
  }
}

TEST_F(LoaderTest, TheFingerprintFollowsTheContentNotThePath) {
  const auto fingerprint = [&](const std::string& a, const std::string& b) {
    const auto opened = DataSet::open(posix_env(), {{.path = directory / a}, {.path = directory / b}}, 8);
    EXPECT_TRUE(opened.ok());
    return opened.value()->fingerprint();
  };
  EXPECT_EQ(fingerprint("first", "second"), data->fingerprint());
  EXPECT_NE(fingerprint("second", "first"), data->fingerprint());
  std::filesystem::rename(directory / "first", directory / "moved");
  EXPECT_EQ(fingerprint("moved", "second"), data->fingerprint());
  write_bytes(directory / "moved", varied_text(8 * 400 + 5, 3));
  EXPECT_NE(fingerprint("moved", "second"), data->fingerprint());
}

}  // namespace
}  // namespace holdfast::test
