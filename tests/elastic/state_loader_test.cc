// Runs whose user goes back to an older checkpoint or goes on with other settings, while the future that is
// left still lies on the disk, in RAM, or on a host that comes back later.
#include "runtime/elastic/state_loader.h"
#include "runtime/core/json.h"

#include <fmt/core.h>
#include <gmock/gmock.h>

#include <filesystem>

#include "checkpoint/ram_tier.h"
#include "runtime/os/machine_facts.h"
#include "tests/elastic/recovery_fixture.h"

namespace holdfast::test {
namespace {

namespace fs = std::filesystem;

StartPoint start_of(std::uint64_t generation, std::uint64_t step, Lineage lineage = {.run_id = "run"}) {
  return {.checkpoint = "x", .generation = generation, .step = step, .lineage = std::move(lineage)};
}

TEST(ChooseGeneration, GoesOnInThatOfTheState) {
  const RunState state{.run_id = "run", .generation = 2, .step = 7};
  const GenerationChoice choice = choose_generation(start_of(2, 7), state, "", "s");
  EXPECT_FALSE(choice.begins);
  EXPECT_EQ(choice.generation, 2U);
  const StartPoint fresh{};
  EXPECT_FALSE(choose_generation(fresh, {.run_id = "new"}, "", "s").begins);
}

TEST(ChooseGeneration, OtherSettingsBeginOne) {
  const RunState state{.run_id = "run", .generation = 0, .step = 7};
  const GenerationChoice choice = choose_generation(start_of(0, 7), state, "optimizer.learning_rate", "s");
  ASSERT_TRUE(choice.begins);
  EXPECT_EQ(choice.generation, 1U);
  EXPECT_EQ(choice.lineage.find(1)->parent, (ParentCheckpoint{.generation = 0, .step = 7}));
  EXPECT_EQ(choice.lineage.find(1)->settings, "s");
  // Again from there, nothing of it being left: the same one. With others than those: another one.
  const StartPoint again = start_of(0, 7, choice.lineage);
  EXPECT_FALSE(choose_generation(again, state, "optimizer.learning_rate", "s").begins);
  EXPECT_EQ(choose_generation(again, state, "optimizer.learning_rate", "s").generation, 1U);
  EXPECT_EQ(choose_generation(again, state, "", "t").generation, 2U);
}

// Generation 1 began after step 7; with that state gone, what comes again from step 5 has other settings.
TEST(ChooseGeneration, AStateFromBeforeItsBeginIsABranch) {
  const Lineage lineage{
      .run_id = "run",
      .generations = {{.number = 1, .parent = {.generation = 0, .step = 7}, .settings = "s"}}};
  const GenerationChoice choice =
      choose_generation(start_of(0, 5, lineage), {.run_id = "run", .generation = 0, .step = 5}, "", "s");
  EXPECT_TRUE(choice.begins);
  EXPECT_EQ(choice.generation, 2U);
}

// A roll-back goes on from whatever is left of the states that count, and computes the rest again.
TEST(ChooseGeneration, ARollbackGoesOnFromAnyOlderState) {
  Lineage lineage{.run_id = "run"};
  lineage.roll_back({.parent = {.generation = 0, .step = 7},
                     .jump = DataJump{.at_step = 7, .data_cursor = 90},
                     .settings = "s"});
  for (const std::uint64_t step : {0u, 5u, 7u}) {
    const RunState state{.run_id = "run", .step = step};
    const GenerationChoice choice = choose_generation(start_of(0, step, lineage), state, "", "s");
    EXPECT_FALSE(choice.begins) << step;
    EXPECT_EQ(choice.generation, 1U);
    EXPECT_EQ(choice.jumps, (std::vector<DataJump>{{.at_step = 7, .data_cursor = 90}}));
  }
  const RunState state{.run_id = "run", .step = 5};
  EXPECT_TRUE(choose_generation(start_of(0, 5, lineage), state, "optimizer.learning_rate", "t").begins);
}

TEST(ChooseGeneration, AnotherRunHasNoPast) {
  StartPoint fresh{.lineage = {.run_id = "old",
                               .generations = {{.number = 4}},
                               .newest_checkpoint = ParentCheckpoint{.generation = 3, .step = 9}},
                   .begins = "the checkpoint of step 9 was removed"};
  const GenerationChoice choice = choose_generation(fresh, {.run_id = "new"}, "", "s");
  EXPECT_FALSE(choice.begins);
  EXPECT_EQ(choice.generation, 0U);
}

class GenerationTest : public RecoveryTest {
 protected:
  void SetUp() override {
    if (const std::string removal = shared_memory_removal(posix_env()); !removal.empty())
      GTEST_SKIP() << removal;
  }
  ~GenerationTest() override {
    for (const std::string& run : runs_)
      static_cast<void>(remove_snapshots(posix_env(), digest_of_run(run)).ok());
  }
  Digest digest_of_run(const std::string& run) const {
    const Result<std::string> id = posix_env().read_text(RunPaths{run_directory(run)}.run_id());
    return digest_of(id.ok() ? *id : "none");
  }
  std::string checkpoint(const std::string& run, int step) const {
    return fmt::format("{}/checkpoints/step-{:08}", run_directory(run), step);
  }
  Lineage lineage(const std::string& run) const {
    return read_lineage(posix_env(), run_directory(run)).value();
  }

  static std::vector<std::string> with_tiers(std::vector<std::string> more) {
    more.insert(more.begin(),
                {"checkpoint.every_steps=5", "checkpoint.ram_every_steps=2", "checkpoint.replicas=off"});
    return more;
  }
  // Two ranks on two hosts. Ends as a run does whose data
  // cannot be read from `step` of this start on: checkpoints and snapshots stay.
  void die_in(const std::string& run, int step, std::vector<std::string> overrides = {}) {
    runs_.push_back(run);
    testing::internal::CaptureStderr();
    const RunEnd end = train({.run = run,
                              .ranks = 2,
                              .overrides = with_tiers(std::move(overrides)),
                              .hosts = hosts_,
                              .data_ends_in_step = step});
    static_cast<void>(testing::internal::GetCapturedStderr());
    ASSERT_EQ(end.code, ExitCode::communication) << end.message;
  }
  // To its end; how it has resumed.
  std::string resume(const std::string& run, std::vector<std::string> overrides) {
    testing::internal::CaptureStdout();
    const RunEnd end =
        train({.run = run, .ranks = 2, .overrides = with_tiers(std::move(overrides)), .hosts = hosts_});
    reported_ = testing::internal::GetCapturedStdout();
    EXPECT_EQ(end.code, ExitCode::done) << end.message;
    const Json last = events(run, "start").back();
    return fmt::format("{} {}, generation {}", last.value("resumed_from", "not"),
                       last["resumed_from_step"].is_null() ? 0 : last["resumed_from_step"].get<int>(),
                       last["generation"].get<int>());
  }
  // A run with another learning rate from step `step` on, and nothing else.
  std::string lowered_after(int step) {
    const std::string run = fmt::format("lowered-{}", step);
    EXPECT_EQ(train({.run = run, .stop_after_steps = step}).code, ExitCode::saved);
    EXPECT_EQ(train({.run = run, .overrides = {lower}}).code, ExitCode::done);
    return digest(run);
  }

  static constexpr const char* lower = "optimizer.learning_rate=1e-3";
  std::vector<std::string> hosts_ = {"a", "b"};
  std::vector<std::string> runs_;
  std::string reported_;
};

// What people do when a run has diverged: the newest checkpoint away, another learning rate, back to an older
// one. Each alone is enough, whatever is left of the future in RAM.
TEST_F(GenerationTest, TheUsersOwnRollBackWins) {
  const std::string lowered = lowered_after(5), end = reference();
  const struct {
    const char* what;
    bool removed, named, lower;
    const char* resumed;
  } cases[] = {{"all", true, true, true, "disk 5, generation 1"},
               {"removed", true, false, false, "disk 5, generation 1"},
               {"named", false, true, false, "disk 5, generation 1"},
               {"removed-lower", true, false, true, "disk 5, generation 1"},
               {"named-lower", false, true, true, "disk 5, generation 1"}};
  for (const auto& each : cases) {
    SCOPED_TRACE(each.what);
    const std::string run = each.what;
    die_in(run, 14);
    if (each.removed) fs::remove_all(checkpoint(run, 10));
    std::vector<std::string> overrides;
    if (each.named) overrides.push_back("run.resume=" + checkpoint(run, 5));
    if (each.lower) overrides.emplace_back(lower);
    EXPECT_EQ(resume(run, overrides), each.resumed);
    EXPECT_EQ(digest(run), each.lower ? lowered : end);
    EXPECT_THAT(reported_, testing::HasSubstr("generation 1 begins after step 5 ("));
  }
}

// Dead in the first step, when the new generation has made nothing yet; the checkpoint of the old one stands.
// Whoever starts again, with the same path or none, is in the generation that has begun.
TEST_F(GenerationTest, ADeathRightAfterARollBackBringsNothingBack) {
  const std::string lowered = lowered_after(5);
  for (const bool named : {false, true}) {
    const std::string run = fmt::format("again-{}", named);
    die_in(run, 14);
    const std::string path = "run.resume=" + checkpoint(run, 5);
    die_in(run, 1, {path, lower});
    EXPECT_TRUE(fs::exists(checkpoint(run, 10)));
    EXPECT_EQ(resume(run, named ? std::vector<std::string>{path, lower} : std::vector<std::string>{lower}),
              "disk 5, generation 1");
    EXPECT_EQ(digest(run), lowered);
    EXPECT_EQ(lineage(run).generations.size(), 1U);
  }
}

// The same path counts once: what the new generation has made is not given up by it.
TEST_F(GenerationTest, APathCountsOnce) {
  const std::string lowered = lowered_after(5);
  for (const int dies_in : {4, 9}) {
    const std::string run = fmt::format("once-{}", dies_in);
    die_in(run, 14);
    const std::string path = "run.resume=" + checkpoint(run, 5);
    die_in(run, dies_in, {path, lower});
    const std::string resumed = resume(run, {path, lower});
    EXPECT_THAT(resumed, testing::StartsWith("ram ")) << "from a snapshot of the new generation";
    EXPECT_THAT(resumed, testing::EndsWith(", generation 1"));
    EXPECT_EQ(digest(run), lowered);
  }
  // With other settings it counts anew.
  const std::string run = "twice";
  die_in(run, 14);
  const std::string path = "run.resume=" + checkpoint(run, 5);
  die_in(run, 4, {path, "optimizer.learning_rate=2e-3"});
  EXPECT_EQ(resume(run, {path, lower}), "disk 5, generation 2");
  EXPECT_EQ(digest(run), lowered);
}

// Both hosts come back with what they had when the run was at step 12: slots and replicas.
TEST_F(GenerationTest, AnOldSetThatComesBackIsNotTaken) {
  const std::string lowered = lowered_after(5), run = "returned";
  die_in(run, 14, {"checkpoint.replicas=on"});
  std::map<std::string, std::string> old;
  for (const char* host : {"a", "b"}) {
    FaultyEnv env(posix_env());
    env.move_to_host(host);
    for (const FoundSnapshot& found : list_snapshots(env, digest_of_run(run))) {
      const auto bytes = posix_env().open_shared_memory(found.name).value();
      old[found.name] = {reinterpret_cast<const char*>(bytes->bytes().data()), bytes->bytes().size()};
    }
  }
  ASSERT_GE(old.size(), 2U);
  die_in(run, 4, {"run.resume=" + checkpoint(run, 5), lower});
  for (const auto& [name, text] : old) {
    static_cast<void>(posix_env().remove_shared_memory(name).ok());
    const auto memory = posix_env().create_shared_memory(name, text.size()).value();
    std::ranges::copy(std::as_bytes(std::span(text)), memory->bytes().begin());
  }
  const std::string resumed = resume(run, {lower});
  EXPECT_THAT(resumed, testing::AnyOf("ram 6, generation 1", "ram 8, generation 1"));
  EXPECT_EQ(lineage(run).generations.size(), 1U);
  EXPECT_EQ(digest(run), lowered);
}

// The state that it begins from is in RAM alone: it is on the disk before the first step.
TEST_F(GenerationTest, OtherSettingsBeginOneFromRam) {
  const std::string run = "numeric";
  die_in(run, 14);
  die_in(run, 1, {lower});
  const int step = events(run, "start").back()["resumed_from_step"];
  EXPECT_GT(step, 10);
  EXPECT_EQ(Checkpoint::open(posix_env(), checkpoint(run, step))->manifest().generation, 1U);
  static_cast<void>(remove_snapshots(posix_env(), digest_of_run(run)).ok());
  EXPECT_EQ(resume(run, {lower}), fmt::format("disk {}, generation 1", step));
  EXPECT_EQ(digest(run), lowered_after(step));
}

// What is discarded may be named, and is the run again.
TEST_F(GenerationTest, ADiscardedFutureCanBeNamed) {
  const std::string end = reference(), run = "named-again";
  die_in(run, 14);
  die_in(run, 1, {"run.resume=" + checkpoint(run, 5), lower});
  EXPECT_EQ(resume(run, {"run.resume=" + checkpoint(run, 10)}), "disk 10, generation 2");
  EXPECT_EQ(digest(run), end);
}

// A rank dies in place: while the generation is about to begin, when it has begun, and in its first steps.
TEST_F(GenerationTest, ARecoveryStaysInTheGeneration) {
  const std::string lowered = lowered_after(5);
  hosts_.clear();
  int number = 0;
  for (const char* fault :
       {"generation.before_publish@1:1=kill", "generation.before_publish@1:0=kill",
        "generation.after_publish@1:0=kill", "step.before_vote@1:1=kill", "step.before_vote@4:0=kill"}) {
    SCOPED_TRACE(fault);
    const std::string run = fmt::format("in-place-{}", ++number);
    die_in(run, 14);
    EXPECT_EQ(survive({.run = run,
                       .ranks = 2,
                       .overrides = with_tiers({"run.resume=" + checkpoint(run, 5), lower}),
                       .faults = fault}),
              1);
    EXPECT_EQ(digest(run), lowered);
    EXPECT_EQ(lineage(run).current(), 1U);
  }
}

}  // namespace
}  // namespace holdfast::test
