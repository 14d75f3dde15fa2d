#include "checkpoint/lineage.h"

#include <gmock/gmock.h>

#include "checkpoint/candidates.h"
#include "checkpoint/find_checkpoint.h"
#include "tests/checkpoint/saved_state.h"
#include "tests/support/temporary_directory.h"

namespace holdfast::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
namespace fs = std::filesystem;

// 0 until step 100, then 1 until 150, where 2 went on; 3 went back to step 120 of 1.
Lineage branched() {
  return {.run_id = std::string(32, '7'),
          .generations = {{.number = 1, .parent = {.generation = 0, .step = 100}, .settings = "s"},
                          {.number = 2, .parent = {.generation = 1, .step = 150}},
                          {.number = 3, .parent = {.generation = 1, .step = 120}, .reason = "\"why\"\n"}},
          .newest_checkpoint = ParentCheckpoint{.generation = 1, .step = 120}};
}

TEST(Lineage, DiscardsWhatTheRunHasLeft) {
  const Lineage lineage = branched();
  const struct {
    std::uint64_t generation, step;
    bool discarded;
  } cases[] = {{0, 0, false},   {0, 100, false}, {0, 101, true}, {1, 101, false},
               {1, 120, false}, {1, 121, true},  {2, 151, true}, {2, 1, true},
               {3, 121, false}, {3, 999, false}, {4, 1, false}};
  for (const auto& each : cases) {
    EXPECT_EQ(lineage.discards({.generation = each.generation, .step = each.step}), each.discarded)
        << each.generation << " " << each.step;
  }
  EXPECT_FALSE(Lineage{}.discards({.generation = 0, .step = 7}));
  // A run that was begun from a checkpoint of generation 5 in another directory.
  const Lineage forked{.run_id = std::string(32, '7'),
                       .generations = {{.number = 6, .parent = {.generation = 5, .step = 40}}}};
  EXPECT_FALSE(forked.discards({.generation = 5, .step = 40}));
  EXPECT_TRUE(forked.discards({.generation = 5, .step = 41}));
  EXPECT_TRUE(forked.discards({.generation = 2, .step = 41}));
}

// Goes on in generation 4, back at step 110 of generation 1 and without the data before sample 9,000.
Lineage rolled_back() {
  Lineage lineage = branched();
  lineage.roll_back({.parent = {.generation = 3, .step = 110},
                     .jump = DataJump{.at_step = 110, .data_cursor = 9'000},
                     .settings = "s",
                     .reason = "a spike"});
  return lineage;
}

TEST(Lineage, ARollbackDiscardsWhatIsNewer) {
  const Lineage lineage = rolled_back();
  EXPECT_EQ(lineage.current(), 4U);
  EXPECT_TRUE(lineage.generations.back().is_rollback);
  EXPECT_TRUE(lineage.goes_back_to_start());
  EXPECT_FALSE(branched().goes_back_to_start());
  Lineage goes_on = lineage;
  goes_on.newest_checkpoint = {.generation = 4, .step = 115};
  EXPECT_FALSE(goes_on.goes_back_to_start()) << "what it has published since is not given up";
  EXPECT_FALSE(lineage.discards({.generation = 3, .step = 110}));
  EXPECT_FALSE(lineage.discards({.generation = 1, .step = 110}));
  EXPECT_TRUE(lineage.discards({.generation = 1, .step = 111}));
  EXPECT_TRUE(lineage.discards({.generation = 3, .step = 121}));
  EXPECT_FALSE(lineage.discards({.generation = 4, .step = 111}));
  EXPECT_FALSE(lineage.newest_checkpoint.has_value());  // of step 120
}

TEST(Lineage, TheStartCountsWhereEveryCheckpointWasPublishedLater) {
  Lineage lineage;
  EXPECT_TRUE(lineage.start_counts(0));
  EXPECT_FALSE(lineage.start_counts(1)) << "it is not known";
  lineage.first_step = Lineage::none_published;
  EXPECT_TRUE(lineage.start_counts(1000));
  lineage.first_step = 40;
  EXPECT_TRUE(lineage.start_counts(39));
  EXPECT_FALSE(lineage.start_counts(40));
  lineage.roll_back({.parent = {.step = 39}});
  EXPECT_TRUE(lineage.goes_back_to_start());
  lineage.roll_back({.parent = {.generation = 1, .step = 41}});
  EXPECT_FALSE(lineage.goes_back_to_start()) << "the checkpoint of step 40 would be lost";
  lineage.first_step.reset();
  EXPECT_TRUE(lineage.goes_back_to_start()) << "of a program of before";
}

TEST(Lineage, JumpsAreThoseOfLaterGenerations) {
  Lineage lineage = rolled_back();
  const auto jumps_after = [&lineage](const ParentCheckpoint& state, std::vector<DataJump> jumps) {
    lineage.add_jumps_after(state, jumps);
    return jumps;
  };
  const DataJump at_110 = {.at_step = 110, .data_cursor = 9'000}, at_90 = {.at_step = 90, .data_cursor = 500};
  EXPECT_THAT(jumps_after({.generation = 1, .step = 100}, {at_90}), ElementsAre(at_90, at_110));
  EXPECT_THAT(jumps_after({.generation = 4, .step = 115}, {at_110}), ElementsAre(at_110));
  // The next one goes further back: what was decided at step 110 is left, but counts.
  const DataJump at_105 = {.at_step = 105, .data_cursor = 9'500};
  lineage.roll_back({.parent = {.generation = 4, .step = 105}, .jump = at_105});
  EXPECT_THAT(jumps_after({.generation = 1, .step = 100}, {at_90}),
              ElementsAre(at_90, DataJump{.at_step = 105, .data_cursor = 9'500, .times = 2}));
  // Another reason to go back, with all data.
  lineage.roll_back({.parent = {.generation = 5, .step = 95}});
  EXPECT_THAT(jumps_after({.generation = 1, .step = 93}, {at_90}), ElementsAre(at_90));
}

TEST(Lineage, GoesThroughItsText) {
  EXPECT_EQ(decode_lineage(encode_lineage(rolled_back()), "here").value(), rolled_back());
  EXPECT_EQ(decode_lineage(encode_lineage(branched()), "here").value(), branched());
  EXPECT_EQ(decode_lineage(encode_lineage({}), "here").value(), Lineage{});
  for (const std::uint64_t step : {std::uint64_t{12}, Lineage::none_published}) {
    const Lineage lineage = {.first_step = step};
    EXPECT_EQ(decode_lineage(encode_lineage(lineage), "here").value(), lineage);
  }
}

TEST(Lineage, DamageIsASentence) {
  const std::string text = encode_lineage(rolled_back());
  for (std::size_t length = 0; length + 1 < text.size(); ++length) {
    const Result<Lineage> read = decode_lineage(text.substr(0, length), "here");
    ASSERT_FALSE(read.ok()) << length;
    EXPECT_EQ(read.error().code, ExitCode::checkpoint);
    EXPECT_THAT(read.error().message, HasSubstr("here is damaged"));
  }
  for (const char* bad : {"[]", "null", "{\"holdfast_lineage\":2}", "{\"holdfast_lineage\":1,\"run_id\":3}",
                          "{\"holdfast_lineage\":1,\"run_id\":\"run\",\"generations\":[]}",
                          "{\"holdfast_lineage\":1,\"run_id\":\"\",\"generations\":[3]}",
                          "{\"holdfast_lineage\":1,\"run_id\":\"\",\"generations\":[{\"generation\":1}]}",
                          "{\"holdfast_lineage\":1,\"run_id\":\"\",\"generations\":[],"
                          "\"newest_checkpoint\":[]}",
                          "{\"holdfast_lineage\":1,\"run_id\":\"\",\"generations\":[],\"first_step\":-1}"}) {
    EXPECT_FALSE(decode_lineage(bad, "here").ok()) << bad;
  }
  Lineage unordered = branched();
  std::swap(unordered.generations[0], unordered.generations[2]);
  EXPECT_FALSE(decode_lineage(encode_lineage(unordered), "here").ok());
}

class LineageStoreTest : public testing::Test {
 protected:
  LineageStoreTest() : store(posix_env(), faults, directory / "run") {}
  std::string run() const { return directory / "run"; }
  void save_step(std::uint64_t generation, std::uint64_t step) {
    Manifest manifest = manifest_of_step(step);
    manifest.generation = generation;
    HF_ASSERT_OK(save_checkpoint(posix_env(), store, tiny_state(generation * 100 + step), manifest, 1));
  }
  // Generation 1 begins after step 20, while there are checkpoints up to step 40.
  void go_back() {
    for (const std::uint64_t step : {10, 20, 30, 40}) save_step(0, step);
    Lineage lineage = read_lineage(posix_env(), run()).value();
    EXPECT_EQ(lineage.newest_checkpoint, (ParentCheckpoint{.generation = 0, .step = 40}));
    lineage.generations.push_back({.number = 1, .parent = {.generation = 0, .step = 20}});
    HF_ASSERT_OK(write_lineage(posix_env(), run(), lineage));
  }
  std::uint64_t found_step() {
    const auto found = find_checkpoint(posix_env(), run());
    return found.ok() && found->has_value() ? (*found)->checkpoint.manifest().step : 0;
  }
  std::vector<std::string> visible() { return posix_env().list(run() + "/checkpoints").value(); }

  TemporaryDirectory directory;
  FaultPoints faults;
  CheckpointStore store;
};

TEST_F(LineageStoreTest, KnowsWhenTheFirstCheckpointWasPublished) {
  const auto first_step = [&] { return read_lineage(posix_env(), run())->first_step; };
  save_step(0, 20);
  EXPECT_EQ(first_step(), 20U);
  save_step(0, 10);
  EXPECT_EQ(first_step(), 10U);
  HF_ASSERT_OK(posix_env().remove_tree(store.checkpoint_directory(10)));
  HF_ASSERT_OK(store.record_rollback(manifest_of_step(20).run_id, {.parent = {.step = 12}}));
  save_step(1, 13);
  EXPECT_EQ(first_step(), 10U) << "it was published, whatever became of it";
}

TEST_F(LineageStoreTest, KnowsThatNothingWasPublishedBeforeARollback) {
  HF_ASSERT_OK(posix_env().make_directories(run()));
  const std::string run_id = manifest_of_step(5).run_id;
  HF_ASSERT_OK(store.record_rollback(run_id, {.parent = {.step = 4}}));
  EXPECT_EQ(read_lineage(posix_env(), run())->first_step, Lineage::none_published);
  save_step(1, 5);
  EXPECT_EQ(read_lineage(posix_env(), run())->first_step, 5U);
}

// As after a download, and with a record of a program of before.
TEST_F(LineageStoreTest, DoesNotKnowWhatWasPublishedElsewhere) {
  save_step(0, 20);
  HF_ASSERT_OK(write_lineage(posix_env(), run(), {}));
  save_step(0, 30);
  EXPECT_EQ(read_lineage(posix_env(), run())->first_step, std::nullopt);
  save_step(0, 40);
  EXPECT_EQ(read_lineage(posix_env(), run())->first_step, std::nullopt);
}

TEST_F(LineageStoreTest, TheNewestIsTheOneThatTheRunGoesOnFrom) {
  go_back();
  EXPECT_EQ(found_step(), 20U);
  EXPECT_EQ(store.newest_directory(), store.checkpoint_directory(20));
  std::vector<std::uint64_t> order;
  const std::vector<CheckpointCandidate> candidates = list_candidates(posix_env(), run()).value();
  for (const CheckpointCandidate& candidate : candidates) order.push_back(candidate.step);
  EXPECT_THAT(order, ElementsAre(20, 10, 40, 30));
  save_step(1, 25);
  EXPECT_EQ(found_step(), 25U);
  EXPECT_EQ(Checkpoint::open(posix_env(), store.checkpoint_directory(25))->manifest().parent,
            (ParentCheckpoint{.generation = 0, .step = 20}));
}

TEST_F(LineageStoreTest, ADiscardedOneOfTheSameStepIsReplaced) {
  go_back();
  save_step(1, 30);
  EXPECT_EQ(found_step(), 30U);
  EXPECT_EQ(Checkpoint::open(posix_env(), store.checkpoint_directory(30))->manifest().generation, 1U);
  EXPECT_EQ(visible().size(), 4U);
}

// Those of the run come first; what `keep` leaves free stays.
TEST_F(LineageStoreTest, RetentionRemovesDiscardedOnesFirst) {
  go_back();
  HF_ASSERT_OK(store.retain(2));
  EXPECT_THAT(visible(), ElementsAre("step-00000010", "step-00000020"));
}

TEST_F(LineageStoreTest, RetentionLeavesTheNewestDiscardedOneUntilTheRunIsThere) {
  go_back();
  HF_ASSERT_OK(store.retain(3));
  EXPECT_THAT(visible(), ElementsAre("step-00000010", "step-00000020", "step-00000040"));
  for (const std::uint64_t step : {25, 35}) {
    save_step(1, step);
    HF_ASSERT_OK(store.retain(3));
  }
  EXPECT_THAT(visible(), ElementsAre("step-00000025", "step-00000035", "step-00000040"));
  EXPECT_EQ(found_step(), 35U);
  save_step(1, 45);
  HF_ASSERT_OK(store.retain(3));
  EXPECT_THAT(visible(), ElementsAre("step-00000025", "step-00000035", "step-00000045"));
}

TEST_F(LineageStoreTest, RetentionLeavesNoDiscardedOneThatIsDamaged) {
  go_back();
  fs::remove(store.checkpoint_directory(40) + "/shard-00000.hfs");
  HF_ASSERT_OK(store.retain(3));
  EXPECT_THAT(visible(), ElementsAre("step-00000010", "step-00000020", "step-00000030"));
  for (const std::uint64_t step : {22, 24}) {
    save_step(1, step);
    HF_ASSERT_OK(store.retain(3));
  }
  EXPECT_THAT(visible(), ElementsAre("step-00000022", "step-00000024", "step-00000030"));
}

// One that is damaged has not brought the run to where it was.
TEST_F(LineageStoreTest, RetentionLeavesTheNewestDiscardedOneBesideADamagedOne) {
  go_back();
  save_step(1, 25);
  save_step(1, 45);
  fs::remove(store.checkpoint_directory(45) + "/shard-00000.hfs");
  HF_ASSERT_OK(store.retain(3));
  EXPECT_THAT(visible(), ElementsAre("step-00000020", "step-00000025", "step-00000040", "step-00000045"));
}

// Each left future had its newest one; the last that was left is the one to look at.
TEST_F(LineageStoreTest, RetentionLeavesTheNewestOfTheFutureThatWasLeftLast) {
  go_back();
  save_step(1, 35);
  Lineage lineage = read_lineage(posix_env(), run()).value();
  lineage.generations.push_back({.number = 2, .parent = {.generation = 0, .step = 10}});
  HF_ASSERT_OK(write_lineage(posix_env(), run(), lineage));
  for (const std::uint64_t step : {12, 14}) save_step(2, step);
  HF_ASSERT_OK(store.retain(3));
  EXPECT_THAT(visible(), ElementsAre("step-00000012", "step-00000014", "step-00000035"));
}

TEST_F(LineageStoreTest, DiscardedOnesAloneAreNothingToGoOnFrom) {
  go_back();
  fs::remove_all(store.checkpoint_directory(10));
  fs::remove_all(store.checkpoint_directory(20));
  const auto found = find_checkpoint(posix_env(), run());
  ASSERT_FALSE(found.ok());
  EXPECT_EQ(found.error().code, ExitCode::checkpoint);
  EXPECT_THAT(found.error().message, HasSubstr("up to step 40 of a future that the run has left"));
  EXPECT_TRUE(find_checkpoint(posix_env(), store.checkpoint_directory(40)).ok()) << "unless it is named";
}

TEST_F(LineageStoreTest, ARecordOfAnotherRunSaysNothing) {
  go_back();
  Lineage lineage = read_lineage(posix_env(), run()).value();
  lineage.run_id = std::string(32, 'a');
  HF_ASSERT_OK(write_lineage(posix_env(), run(), lineage));
  EXPECT_EQ(found_step(), 40U);
}

}  // namespace
}  // namespace holdfast::test
