// Runs that are cut anew on resume: other lanes, other tensor lanes, and what stays as it was.
#include <fmt/core.h>
#include <gmock/gmock.h>

#include <filesystem>
#include <set>

#include "checkpoint/lineage.h"
#include "checkpoint/ram_tier.h"
#include "runtime/core/json.h"
#include "runtime/inference/inference.h"
#include "runtime/interop/checkpoint_contents.h"
#include "runtime/interop/checkpoint_diff.h"
#include "runtime/os/machine_facts.h"
#include "tests/elastic/recovery_fixture.h"

namespace holdfast::test {
namespace {

namespace fs = std::filesystem;

struct Shape {
  int lanes, slices;
  int block = 1;  // lanes of one
};
std::vector<std::string> overrides_of(const Shape& shape, std::vector<std::string> more = {}) {
  more.push_back(fmt::format("parallel.lanes={}", shape.lanes));
  more.push_back(fmt::format("parallel.lane_block={}", shape.block));
  more.push_back(fmt::format("parallel.tensor_lanes={}", shape.slices));
  return more;
}

class RecutTest : public RecoveryTest {
 protected:
  ~RecutTest() override {
    for (const std::string& run : runs_) {
      const Result<std::string> id = posix_env().read_text(RunPaths{run_directory(run)}.run_id());
      if (id.ok()) static_cast<void>(remove_snapshots(posix_env(), digest_of(*id)).ok());
    }
  }
  // `run` is a copy of the run directory `source`, as if it had been trained there; nothing of it is in RAM.
  void copy(const std::string& source, const std::string& run) const {
    fs::copy(run_directory(source), run_directory(run), fs::copy_options::recursive);
    fs::remove(RunPaths{run_directory(run)}.run_id());
    fs::remove(RunPaths{run_directory(run)}.run_place());
  }
  void train_to(const std::string& run, int step, const Shape& shape, int ranks = 1) {
    ASSERT_EQ(train({.run = run,
                     .ranks = ranks,
                     .stop_after_steps = step,
                     .overrides = overrides_of(shape, {"data.ledger=true"})})
                  .code,
              ExitCode::saved);
  }
  // Ends as a run does whose data cannot be read; step 8 is in RAM alone, of two ranks on two hosts.
  void die_after_step_8(const std::string& run, const Shape& shape) {
    runs_.push_back(run);
    testing::internal::CaptureStderr();
    ASSERT_EQ(shape.lanes, 4) << "what data_ends_in_step counts";
    const RunEnd end = train(
        {.run = run,
         .ranks = 2,
         // Replicas are off: one is sent at a time, which may keep the snapshot of step 8 from being made.
         .overrides = overrides_of(
             shape, {"checkpoint.ram_every_steps=4", "checkpoint.replicas=off", "data.ledger=true"}),
         .hosts = {"a", "b"},
         .data_ends_in_step = 11});
    static_cast<void>(testing::internal::GetCapturedStderr());
    ASSERT_EQ(end.code, ExitCode::communication);
  }
  // The samples of all steps, each as often as it was used; of a step that was computed again the last line.
  std::multiset<std::string> samples(const std::string& run) const {
    std::map<int, std::map<std::string, std::string>> of_step;  // by step and file
    for (const fs::directory_entry& entry : fs::directory_iterator(run_directory(run))) {
      if (!entry.path().filename().string().starts_with("ledger-")) continue;
      std::istringstream lines(posix_env().read_text(entry.path()).value());
      for (std::string line; std::getline(lines, line);) {
        const Json json = Json::parse(line);
        of_step[json["step"]][entry.path()] = json["samples"].dump();
      }
    }
    std::multiset<std::string> all;
    for (const auto& [step, files] : of_step) {
      for (const auto& [file, text] : files) {
        for (const Json& sample : Json::parse(text)) all.insert(sample.dump());
      }
    }
    return all;
  }
  // How many elements differ, and of how many tensors, whatever the slices are.
  void expect_same_tensors(const std::string& a, const std::string& b) const {
    Result<Checkpoint> one = Checkpoint::open(posix_env(), a), other = Checkpoint::open(posix_env(), b);
    ASSERT_TRUE(one.ok() && other.ok());
    const Config config = config_of_checkpoint(posix_env(), *one).value();
    TensorReader left(*one, parameter_specs(make_model_spec(config)));
    TensorReader right(*other, parameter_specs(make_model_spec(config)));
    const Result<std::vector<TensorDiff>> diffs = diff_checkpoints(left, right);
    ASSERT_TRUE(diffs.ok()) << diffs.error().message;
    std::set<std::string> kinds;
    for (const TensorDiff& diff : *diffs) {
      EXPECT_TRUE(diff.is_equal()) << diff.tensor << " " << diff.kind << " " << diff.mismatch
                                   << diff.differing;
      kinds.insert(diff.kind);
    }
    EXPECT_THAT(kinds, testing::ElementsAre("moment1", "moment2", "weight"));
  }

  std::vector<std::string> runs_;
};

constexpr Shape cuts[][2] = {
    {{4, 1}, {4, 2}}, {{4, 2}, {8, 1}}, {{4, 1}, {2, 2}}, {{4, 1}, {4, 1, 2}}, {{4, 1, 2}, {6, 1, 3}}};

// In any layout, and through any death after the cut, the bits are those of the same cut on one rank.
TEST_F(RecutTest, TheBitsDoNotDependOnTheLayout) {
  int number = 0;
  for (const auto& [from, to] : cuts) {
    SCOPED_TRACE(fmt::format("{} x {} / {} to {} x {} / {}", from.lanes, from.slices, from.block, to.lanes,
                             to.slices, to.block));
    const std::string first = fmt::format("first-{}", ++number);
    train_to(first, 8, from, 2);
    std::string expected;
    const auto resume = [&](const std::string& name, int ranks, std::vector<std::string> layout) {
      SCOPED_TRACE(name);
      const std::string run = fmt::format("{}-{}", name, number);
      copy(first, run);
      const RunEnd end =
          train({.run = run, .ranks = ranks, .overrides = overrides_of(to, std::move(layout))});
      ASSERT_EQ(end.code, ExitCode::done) << end.message;
      if (expected.empty()) expected = digest(run);
      EXPECT_EQ(digest(run), expected);
      EXPECT_EQ(events(run, "start").back()["generation"], 1);
    };
    resume("one", 1, {});
    resume("data", 2, {});
    resume("stages", 2, {"parallel.pipeline=2"});
    if (to.slices == 2) resume("tensor", 2, {"parallel.tensor=2"});
    if (to.slices == 2) resume("all", 4, {"parallel.tensor=2", "parallel.pipeline=2"});
    const std::string killed = fmt::format("killed-{}", number);
    copy(first, killed);
    EXPECT_EQ(survive({.run = killed,
                       .ranks = 2,
                       .overrides = overrides_of(to, {"checkpoint.ram_every_steps=3"}),
                       .faults = "step.before_vote@6:1=kill"}),
              1);
    EXPECT_EQ(digest(killed), expected);
    const std::string at_once = fmt::format("at-once-{}", number);
    copy(first, at_once);
    EXPECT_EQ(survive({.run = at_once,
                       .ranks = 2,
                       .overrides = overrides_of(to),
                       .faults = "step.before_vote@1:0=kill"}),
              1);
    EXPECT_EQ(digest(at_once), expected) << "read twice in the old cut";
  }
}

// From the snapshots of two hosts, in the same and in other layouts: the same bits as from the disk. The cut
// state is saved before its first step, and no element of it is another than before.
TEST_F(RecutTest, IsReadFromRamAndKeepsEveryElement) {
  if (const std::string removal = shared_memory_removal(posix_env()); !removal.empty())
    GTEST_SKIP() << removal;
  int number = 0;
  for (const auto& [from, to] : cuts) {
    SCOPED_TRACE(fmt::format("{} x {} / {} to {} x {} / {}", from.lanes, from.slices, from.block, to.lanes,
                             to.slices, to.block));
    const std::string first = fmt::format("first-{}", ++number), disk = fmt::format("disk-{}", number);
    train_to(first, 8, from);
    copy(first, disk);
    ASSERT_EQ(train({.run = disk, .overrides = overrides_of(to)}).code, ExitCode::done);
    const std::string expected = digest(disk);
    for (const std::vector<std::string>& hosts :
         std::vector<std::vector<std::string>>{{"a", "b"}, {"b", "a"}, {"a", "b", "b"}}) {
      if (hosts.size() > static_cast<std::size_t>(to.lanes)) continue;
      const std::string run = fmt::format("ram-{}-{}-{}", number, hosts.front(), hosts.size());
      die_after_step_8(run, from);
      const RunEnd end = train({.run = run,
                                .ranks = static_cast<int>(hosts.size()),
                                .overrides = overrides_of(to, {"checkpoint.keep=9"}),
                                .hosts = hosts});
      ASSERT_EQ(end.code, ExitCode::done) << end.message;
      EXPECT_EQ(events(run, "start").back()["resumed_from"], "ram");
      ASSERT_EQ(events(run, "start").back()["resumed_from_step"], 8);
      EXPECT_EQ(digest(run), expected);
      expect_same_tensors(run_directory(run) + "/checkpoints/step-00000008",
                          run_directory(first) + "/checkpoints/step-00000008");
    }
  }
}

TEST_F(RecutTest, EachSampleIsUsedOnce) {
  train_to("growing", 6, {.lanes = 2, .slices = 1}, 2);
  ASSERT_EQ(train({.run = "growing",
                   .ranks = 4,
                   .overrides = overrides_of({.lanes = 4, .slices = 1}, {"data.ledger=true"})})
                .code,
            ExitCode::done);
  const std::multiset<std::string> used = samples("growing");
  EXPECT_EQ(used.size(), (6U * 2 + 14 * 4) * 2);
  EXPECT_EQ(std::set<std::string>(used.begin(), used.end()).size(), used.size()) << "in the first epoch";
  const std::vector<Json> steps = events("growing", "step");
  EXPECT_EQ(steps.back()["tokens"], used.size() * 24);
  // On one rank with four lanes, the other way round.
  train_to("alone", 6, {.lanes = 2, .slices = 1});
  ASSERT_EQ(train({.run = "alone", .overrides = overrides_of({.lanes = 4, .slices = 1})}).code,
            ExitCode::done);
  EXPECT_EQ(digest("alone"), digest("growing"));
}

TEST_F(RecutTest, WithoutTheKeysTheStoredOnesHold) {
  const Shape shape = {.lanes = 2, .slices = 2}, none = {.lanes = 0, .slices = 0};
  ASSERT_EQ(train({.run = "whole", .overrides = overrides_of(shape)}).code, ExitCode::done);
  train_to("left-out", 8, shape);
  ASSERT_EQ(train({.run = "left-out", .overrides = overrides_of(none)}).code, ExitCode::done);
  EXPECT_EQ(digest("left-out"), digest("whole"));
  EXPECT_EQ(events("left-out", "start").back()["generation"], 0);
  train_to("same", 8, shape);
  ASSERT_EQ(train({.run = "same", .overrides = overrides_of(shape)}).code, ExitCode::done);
  EXPECT_EQ(events("same", "start").back()["generation"], 0);
}

TEST_F(RecutTest, WhatDoesNotFitIsASentenceAndChangesNothing) {
  train_to("kept", 8, {.lanes = 4, .slices = 1});
  const std::string before = digest("kept");
  const RunEnd heads = train({.run = "kept", .overrides = overrides_of({.lanes = 4, .slices = 4})});
  EXPECT_EQ(heads.code, ExitCode::config);
  EXPECT_THAT(heads.message, testing::HasSubstr("parallel.tensor_lanes = 4"));
  EXPECT_THAT(heads.message, testing::HasSubstr("model.kv_heads = 2"));
  const RunEnd lanes =
      train({.run = "kept", .ranks = 3, .overrides = overrides_of({.lanes = 2, .slices = 1})});
  EXPECT_EQ(lanes.code, ExitCode::config);
  EXPECT_THAT(lanes.message, testing::HasSubstr("parallel.lanes = 2"));
  EXPECT_EQ(digest("kept"), before);
  EXPECT_TRUE(read_lineage(posix_env(), run_directory("kept"))->generations.empty());
}

}  // namespace
}  // namespace holdfast::test
