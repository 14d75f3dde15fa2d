// Runs whose moments are bf16 (optimizer.moments), and runs that keep an average of the weights (optimizer.ema): the same
// bits in every layout and after every death, and what becomes of a state that has others, or none. And weight decay by the
// names of tensors, which every layout has, too.
#include <fmt/core.h>
#include <gmock/gmock.h>

#include <bit>
#include <cstring>
#include <filesystem>
#include <set>
#include <tuple>

#include "checkpoint/ram_tier.h"
#include "runtime/interop/checkpoint_contents.h"
#include "runtime/interop/tensor_reader.h"
#include "tests/elastic/recovery_fixture.h"

namespace holdfast::test {
namespace {

namespace fs = std::filesystem;

using Overrides = std::vector<std::string>;

Overrides joined(Overrides one, const Overrides& other) {
  one.insert(one.end(), other.begin(), other.end());
  return one;
}

// Tensors of several blocks, each in two slices.
Overrides model(const char* moments, Overrides more = {}) {
  return joined({fmt::format("optimizer.moments={}", moments), "model.width=64", "model.feed_forward=192",
                 "parallel.tensor_lanes=2"},
                more);
}

class MomentsTest : public RecoveryTest {
 protected:
  ~MomentsTest() override {
    for (const std::string& run : runs_) {
      const Result<std::string> id = posix_env().read_text(RunPaths{run_directory(run)}.run_id());
      if (id.ok()) static_cast<void>(remove_snapshots(posix_env(), digest_of(*id)).ok());
    }
  }
  void expect_done(const Launch& launch) {
    const RunEnd end = train(launch);
    ASSERT_EQ(end.code, ExitCode::done) << launch.run << ": " << end.message;
  }
  std::string checkpoint_of_step_8(const std::string& run) const {
    return run_directory(run) + "/checkpoints/step-00000008";
  }
  // Ends with a checkpoint of step 8.
  void train_to_step_8(const std::string& run, const char* moments, const Overrides& more = {}) {
    ASSERT_EQ(train({.run = run, .ranks = 2, .stop_after_steps = 8, .overrides = model(moments, more)}).code,
              ExitCode::saved);
  }
  // Ends as a run does whose data cannot be read: step 8 is in RAM alone.
  void die_after_step_8(const std::string& run, const char* moments, const Overrides& more = {}) {
    runs_.push_back(run);
    testing::internal::CaptureStderr();
    const RunEnd end =
        train({.run = run,
               .ranks = 2,
               .overrides =
                   joined(model(moments, {"checkpoint.ram_every_steps=4", "checkpoint.replicas=off"}), more),
               .data_ends_in_step = 11});
    static_cast<void>(testing::internal::GetCapturedStderr());
    ASSERT_EQ(end.code, ExitCode::communication);
  }
  // `run` is a copy of the run directory `source`, as if it had been trained there; nothing of it is in RAM.
  void copy(const std::string& source, const std::string& run) const {
    fs::copy(run_directory(source), run_directory(run), fs::copy_options::recursive);
    fs::remove(RunPaths{run_directory(run)}.run_id());
    fs::remove(RunPaths{run_directory(run)}.run_place());
  }
  // The state of a checkpoint by kind and tensor, widened to fp32, with its types by kind.
  struct State {
    std::map<std::pair<std::string, std::string>, std::vector<float>> values = {};
    std::map<std::string, std::set<DType>> types = {};
  };
  State state_of(const std::string& directory) const {
    State state;
    Result<Checkpoint> checkpoint = Checkpoint::open(posix_env(), directory);
    EXPECT_TRUE(checkpoint.ok()) << checkpoint.error().message;
    const Config config = config_of_checkpoint(posix_env(), *checkpoint).value();
    TensorReader reader(*checkpoint, parameter_specs(make_model_spec(config)));
    for (const auto& [key, whole] : reader.tensors()) {
      const auto& [tensor, kind] = key;
      state.types[kind].insert(whole.dtype);
      std::vector<std::byte> bytes(whole.tensor_elements() * bytes_of(whole.dtype));
      EXPECT_TRUE(reader.read(tensor, kind, 0, bytes).ok());
      std::vector<float>& values = state.values[{kind, tensor}];
      values.resize(whole.tensor_elements());
      for (std::size_t i = 0; i < values.size(); ++i) {
        if (whole.dtype == DType::fp32) {
          std::memcpy(&values[i], bytes.data() + i * sizeof(float), sizeof(float));
        } else {
          BFloat16 narrow;
          std::memcpy(&narrow, bytes.data() + i * sizeof(narrow), sizeof(narrow));
          values[i] = to_float(narrow);
        }
      }
    }
    return state;
  }

  // Returns the digest of a run that was stopped and resumed with other numbers of ranks.
  std::string digest_after_changes(const std::string& run, const Overrides& what) {
    for (const int ranks : {4, 1, 3}) {
      const RunEnd end =
          train({.run = run, .ranks = ranks, .stop_after_steps = ranks == 3 ? 0 : 6, .overrides = what});
      EXPECT_EQ(end.code, ranks == 3 ? ExitCode::done : ExitCode::saved) << end.message;
    }
    return digest(run);
  }

  // Survives deaths of several kinds, with the digest of a run that was not disturbed.
  void expect_survives(const Overrides& what, const std::string& expected) {
    const std::string ram = "checkpoint.ram_every_steps=1";
    const struct {
      const char* what;
      int ranks, newcomers;
      Overrides overrides;
      const char* faults;
    } cases[] = {
        {"from the snapshots", 3, 0, {ram}, "step.before_vote@5:1=kill"},
        {"from the replica of a snapshot", 2, 0, {ram, "checkpoint.replicas=on"}, "step.after_vote@7:0=kill"},
        {"from the disk", 2, 0, {"checkpoint.every_steps=4"}, "step.before_vote@6:1=kill"},
        {"and grows back",
         4,
         1,
         {ram, "elastic.grow_after=0s", "elastic.memory_timeout=0s"},
         "step.before_vote@5:2=kill"},
        {"a stage", 4, 0, {ram, "parallel.pipeline=2"}, "step.before_vote@5:3=kill"},
    };
    int number = 0;
    for (const auto& each : cases) {
      SCOPED_TRACE(each.what);
      const std::string run = fmt::format("killed-{}", ++number);
      EXPECT_EQ(survive({.run = run,
                         .ranks = each.ranks,
                         .overrides = joined(what, each.overrides),
                         .faults = each.faults},
                        {.newcomers = each.newcomers}),
                1);
      EXPECT_EQ(digest(run), expected);
    }
  }

  std::vector<std::string> runs_;
};

// The line of the weights.
std::string weights_of(const std::string& digest) {
  const std::size_t begin = digest.find("weights ");
  return digest.substr(begin, digest.find('\n', begin) - begin);
}

const std::string average = "optimizer.ema=0.9";

// Promise 1. Moments in fp32 give other bits, or these would not say much.
TEST_F(MomentsTest, BFloat16HasTheSameBitsInEveryLayout) {
  for (const char* precision : {"fp32", "bf16"}) {
    const Overrides what = model("bf16", {fmt::format("training.precision={}", precision)});
    const auto trained = [&](const std::string& name, int ranks, const Overrides& layout = {}) {
      const std::string run = fmt::format("{}-{}", precision, name);
      expect_done({.run = run, .ranks = ranks, .overrides = joined(what, layout)});
      return digest(run);
    };
    const std::string expected = trained("alone", 1);
    for (const int ranks : {2, 3, 4}) EXPECT_EQ(trained(fmt::format("d{}", ranks), ranks), expected);
    EXPECT_EQ(trained("tensor", 2, {"parallel.tensor=2"}), expected);
    EXPECT_EQ(trained("pipeline", 2, {"parallel.pipeline=2"}), expected);
    EXPECT_EQ(trained("all", 8, {"parallel.tensor=2", "parallel.pipeline=2"}), expected);
    EXPECT_EQ(trained("sharded", 4, {"optimizer.shard_gradients=true", "threads=2"}), expected);
    EXPECT_NE(trained("wide", 1, {"optimizer.moments=fp32"}), expected);
    EXPECT_EQ(digest_after_changes(fmt::format("{}-changing", precision), what), expected);
  }
}

TEST_F(MomentsTest, BFloat16SurvivesDeathsAndGrowth) {
  if (const std::string removal = shared_memory_removal(posix_env()); !removal.empty())
    GTEST_SKIP() << removal;
  expect_done({.run = "whole", .overrides = model("bf16")});
  expect_survives(model("bf16"), digest("whole"));
}

// A change on resume converts the moments once, to the nearest where they become bf16, and begins a generation. From
// the disk and from RAM, in any layout, and through a death in the first step after it, the bits are the same.
TEST_F(MomentsTest, OfTheOtherTypeAreConvertedOnResume) {
  if (const std::string removal = shared_memory_removal(posix_env()); !removal.empty())
    GTEST_SKIP() << removal;
  const std::pair<const char*, const char*> changes[] = {{"fp32", "bf16"}, {"bf16", "fp32"}};
  for (const auto& [from, to] : changes) {
    SCOPED_TRACE(fmt::format("{} to {}", from, to));
    const auto name = [&, from = from](const char* run) { return fmt::format("{}-from-{}", run, from); };
    const std::string first = name("first");
    train_to_step_8(first, from);
    std::string expected;
    const auto resume = [&, to = to](const char* run, int ranks, const Overrides& layout) {
      SCOPED_TRACE(run);
      copy(first, name(run));
      expect_done({.run = name(run), .ranks = ranks, .overrides = joined(model(to), layout)});
      if (expected.empty()) expected = digest(name(run));
      EXPECT_EQ(digest(name(run)), expected);
      EXPECT_EQ(events(name(run), "start").back()["generation"], 1);
    };
    resume("one", 1, {});
    resume("data", 3, {});
    resume("all", 4, {"parallel.tensor=2", "parallel.pipeline=2"});
    copy(first, name("killed"));
    EXPECT_EQ(survive({.run = name("killed"),
                       .ranks = 2,
                       .overrides = model(to),
                       .faults = "step.before_vote@1:0=kill"}),
              1);
    EXPECT_EQ(digest(name("killed")), expected) << "converted twice";

    die_after_step_8(name("ram"), from);
    expect_done({.run = name("ram"), .ranks = 3, .overrides = model(to, {"checkpoint.keep=9"})});
    EXPECT_EQ(events(name("ram"), "start").back()["resumed_from"], "ram");
    EXPECT_EQ(digest(name("ram")), expected);
    // The converted state was saved before the first step.
    const State before = state_of(checkpoint_of_step_8(first)),
                after = state_of(checkpoint_of_step_8(name("ram")));
    const DType type = std::strcmp(to, "bf16") == 0 ? DType::bf16 : DType::fp32;
    for (const char* kind : {"moment1", "moment2"})
      EXPECT_THAT(after.types.at(kind), testing::ElementsAre(type)) << kind;
    ASSERT_EQ(after.values.size(), before.values.size());
    for (const auto& [key, values] : after.values) {
      const std::vector<float>& read = before.values.at(key);
      ASSERT_EQ(values.size(), read.size());
      for (std::size_t i = 0; i < values.size(); ++i) {
        const bool rounds = type == DType::bf16 && key.first != "weight";
        const float expected_value = rounds ? to_float(to_bfloat16(read[i])) : read[i];
        ASSERT_EQ(std::bit_cast<std::uint32_t>(values[i]), std::bit_cast<std::uint32_t>(expected_value))
            << key.first << " of " << key.second << ", element " << i;
      }
    }
  }
}

const std::string lion = "optimizer.name=lion";

TEST_F(MomentsTest, LionHasTheSameBitsInEveryLayout) {
  const std::tuple<const char*, const char*, Overrides> cases[] = {
      {"fp32", "fp32", {}},
      {"bf16", "bf16", {average, R"(optimizer.weight_decay_groups=["embedding.*=0.5"])"}}};
  for (const auto& [precision, moments, more] : cases) {
    const Overrides what =
        model(moments, joined({lion, fmt::format("training.precision={}", precision)}, more));
    const auto trained = [&, precision = precision](const std::string& name, int ranks,
                                                    const Overrides& layout = {}) {
      const std::string run = fmt::format("{}-{}", precision, name);
      expect_done({.run = run, .ranks = ranks, .overrides = joined(what, layout)});
      return digest(run);
    };
    const std::string expected = trained("alone", 1);
    for (const int ranks : {2, 3, 4}) EXPECT_EQ(trained(fmt::format("d{}", ranks), ranks), expected);
    EXPECT_EQ(trained("tensor", 2, {"parallel.tensor=2"}), expected);
    EXPECT_EQ(trained("pipeline", 2, {"parallel.pipeline=2"}), expected);
    EXPECT_EQ(trained("all", 8, {"parallel.tensor=2", "parallel.pipeline=2"}), expected);
    EXPECT_EQ(trained("sharded", 4, {"optimizer.shard_gradients=true", "threads=2"}), expected);
    EXPECT_NE(trained("adamw", 1, {"optimizer.name=adamw"}), expected);
    EXPECT_EQ(digest_after_changes(fmt::format("{}-changing", precision), what), expected);
  }
}

TEST_F(MomentsTest, LionSurvivesDeathsAndGrowth) {
  if (const std::string removal = shared_memory_removal(posix_env()); !removal.empty())
    GTEST_SKIP() << removal;
  for (const char* moments : {"fp32", "bf16"}) {
    SCOPED_TRACE(moments);
    const std::string whole = fmt::format("whole-{}", moments);
    expect_done({.run = whole, .overrides = model(moments, {lion})});
    expect_survives(model(moments, {lion}), digest(whole));
    for (int number = 1; number <= 5; ++number)
      fs::remove_all(run_directory(fmt::format("killed-{}", number)));
  }
}

// It goes on from the disk and from RAM with the bits of a run that was not stopped, and no state has a second moment.
TEST_F(MomentsTest, LionGoesOnFromOneMoment) {
  if (const std::string removal = shared_memory_removal(posix_env()); !removal.empty())
    GTEST_SKIP() << removal;
  expect_done({.run = "whole", .overrides = model("fp32", {lion})});
  train_to_step_8("first", "fp32", {lion});
  std::set<std::string> kinds;
  for (const auto& [key, values] : state_of(checkpoint_of_step_8("first")).values) kinds.insert(key.first);
  EXPECT_THAT(kinds, testing::ElementsAre("moment1", "weight"));
  expect_done({.run = "first", .ranks = 3, .overrides = model("fp32", {lion})});
  EXPECT_EQ(digest("first"), digest("whole"));
  die_after_step_8("ram", "fp32", {lion});
  expect_done({.run = "ram", .ranks = 3, .overrides = model("fp32", {lion})});
  EXPECT_EQ(events("ram", "start").back()["resumed_from"], "ram");
  EXPECT_EQ(digest("ram"), digest("whole"));
}

TEST_F(MomentsTest, AMomentOfLionThatChangesInMemoryIsFound) {
  if (const std::string removal = shared_memory_removal(posix_env()); !removal.empty())
    GTEST_SKIP() << removal;
  const Overrides what = model("fp32", {lion, "checkpoint.ram_every_steps=1"});
  expect_done({.run = "whole", .overrides = what});
  EXPECT_EQ(
      survive(
          {.run = "flipped", .ranks = 2, .overrides = what, .faults = "step.begin@7:1=flip:moment1:20:100"}),
      1);
  EXPECT_EQ(digest("flipped"), digest("whole"));
  ASSERT_EQ(events("flipped", "verdict").size(), 1U);
}

// The moments of a rule are none of another.
TEST_F(MomentsTest, TheRuleOfUpdatesCannotChangeOnResume) {
  for (const auto& [from, to] : {std::pair("adamw", "lion"), std::pair("lion", "adamw")}) {
    const auto rule = [](const char* name) { return fmt::format("optimizer.name={}", name); };
    train_to_step_8(from, "fp32", {rule(from)});
    const RunEnd end = train({.run = from, .ranks = 2, .overrides = model("fp32", {rule(to)})});
    EXPECT_EQ(end.code, ExitCode::config);
    EXPECT_THAT(end.message, testing::HasSubstr(fmt::format("optimizer.name: \"{}\" -> \"{}\"", from, to)));
    EXPECT_THAT(end.message, testing::HasSubstr("start a new run in another run.directory"));
  }
}

// Averages are saved like all state, and the weights are those of a run without them.
TEST_F(MomentsTest, AveragesHaveTheSameBitsInEveryLayout) {
  for (const char* precision : {"fp32", "bf16"}) {
    const Overrides what = model("bf16", {average, fmt::format("training.precision={}", precision)});
    const auto trained = [&](const std::string& name, int ranks, const Overrides& layout = {}) {
      const std::string run = fmt::format("{}-{}", precision, name);
      expect_done({.run = run, .ranks = ranks, .overrides = joined(what, layout)});
      return digest(run);
    };
    const std::string expected = trained("alone", 1);
    EXPECT_EQ(trained("d3", 3), expected);
    EXPECT_EQ(trained("all", 8, {"parallel.tensor=2", "parallel.pipeline=2"}), expected);
    const std::string other = trained("other", 2, {"optimizer.ema=0.5"}),
                      none = trained("none", 2, {"optimizer.ema=0"});
    EXPECT_NE(other, expected);
    EXPECT_NE(none, expected);
    for (const std::string& each : {other, none}) EXPECT_EQ(weights_of(each), weights_of(expected));
    EXPECT_EQ(digest_after_changes(fmt::format("{}-changing", precision), what), expected);
  }
}

TEST_F(MomentsTest, AveragesSurviveDeathsAndGrowth) {
  if (const std::string removal = shared_memory_removal(posix_env()); !removal.empty())
    GTEST_SKIP() << removal;
  const Overrides what = model("fp32", {average});
  expect_done({.run = "whole", .overrides = what});
  expect_survives(what, digest("whole"));
}

// The update that reads it finds it, the rank leaves, and the others go back: the bits are those of the undisturbed run.
TEST_F(MomentsTest, AnAverageThatChangesInMemoryIsFound) {
  if (const std::string removal = shared_memory_removal(posix_env()); !removal.empty())
    GTEST_SKIP() << removal;
  const Overrides what = model("fp32", {average, "checkpoint.ram_every_steps=1"});
  expect_done({.run = "whole", .overrides = what});
  EXPECT_EQ(
      survive({.run = "flipped", .ranks = 2, .overrides = what, .faults = "step.begin@7:1=flip:ema:20:100"}),
      1);
  EXPECT_EQ(digest("flipped"), digest("whole"));
  const std::vector<Json> verdicts = events("flipped", "verdict");
  ASSERT_EQ(verdicts.size(), 1U);
  EXPECT_EQ(verdicts[0]["kind"], "corruption");
  EXPECT_EQ(verdicts[0]["rank"], 1);
}

// An average that is new to a run begins with the weights of the step that it goes on from, from the disk and from RAM, in
// any layout. One that a run no longer keeps is gone.
TEST_F(MomentsTest, AveragesBeginAndEndOnResume) {
  if (const std::string removal = shared_memory_removal(posix_env()); !removal.empty())
    GTEST_SKIP() << removal;
  train_to_step_8("first", "fp32");
  train_to_step_8("averaged", "fp32", {average});
  std::string expected;
  const auto resume = [&](const char* from, const char* run, int ranks, const Overrides& more) {
    SCOPED_TRACE(run);
    copy(from, run);
    expect_done({.run = run, .ranks = ranks, .overrides = joined(model("fp32"), more)});
    if (expected.empty()) expected = digest(run);
    EXPECT_EQ(digest(run), expected);
    EXPECT_EQ(events(run, "start").back()["generation"], 1);
  };
  resume("first", "one", 1, {average});
  resume("first", "all", 4, {average, "parallel.tensor=2", "parallel.pipeline=2"});
  die_after_step_8("ram", "fp32");
  expect_done({.run = "ram", .ranks = 3, .overrides = model("fp32", {average, "checkpoint.keep=9"})});
  EXPECT_EQ(events("ram", "start").back()["resumed_from"], "ram");
  EXPECT_EQ(digest("ram"), expected);
  const State begun = state_of(checkpoint_of_step_8("ram"));  // saved before the first step
  std::size_t averages = 0;
  for (const auto& [key, values] : begun.values) {
    if (key.first != "ema") continue;
    ++averages;
    EXPECT_EQ(values, begun.values.at({"weight", key.second})) << key.second;
  }
  EXPECT_GT(averages, 5U);

  expected.clear();
  resume("averaged", "ended", 3, {});
  resume("averaged", "ended-in-stages", 4, {"parallel.tensor=2", "parallel.pipeline=2"});
  die_after_step_8("ended-in-ram", "fp32", {average});
  expect_done({.run = "ended-in-ram", .ranks = 3, .overrides = model("fp32")});
  EXPECT_EQ(digest("ended-in-ram"), expected);
  expect_done({.run = "never", .overrides = model("fp32")});
  EXPECT_EQ(digest("never"), expected);
}

// Groups decide over a tensor that is cut, one whose layer is on one stage alone, and one that is not cut.
TEST_F(MomentsTest, WeightDecayGroupsHaveTheSameBitsInEveryLayout) {
  const auto groups = [](const char* list) {
    return model("fp32",
                 {fmt::format("optimizer.weight_decay_groups={}", list), "optimizer.weight_decay=0.3"});
  };
  const Overrides what = groups(R"(["embedding.*=0", "layers.1.*=0.9", "final_norm*=0.5"])");
  const auto trained = [&](const char* run, int ranks, const Overrides& layout = {}) {
    expect_done({.run = run, .ranks = ranks, .overrides = joined(what, layout)});
    return digest(run);
  };
  const std::string expected = trained("alone", 1);
  EXPECT_EQ(trained("d3", 3), expected);
  EXPECT_EQ(trained("all", 8, {"parallel.tensor=2", "parallel.pipeline=2"}), expected);
  EXPECT_EQ(digest_after_changes("changing", what), expected);
  expect_done({.run = "without", .overrides = groups("[]")});
  EXPECT_NE(digest("without"), expected);
}

TEST_F(MomentsTest, AWeightDecayGroupOfNoTensorIsRefused) {
  for (const char* layout : {"parallel.pipeline=1", "parallel.pipeline=2"}) {
    const RunEnd end =
        train({.run = "refused",
               .ranks = 2,
               .overrides = model("fp32", {layout, R"(optimizer.weight_decay_groups=["*=0", "*.none=0"])"})});
    EXPECT_EQ(end.code, ExitCode::config);
    EXPECT_THAT(end.message, testing::HasSubstr("\"*.none\" matches no tensor of the model"));
    EXPECT_THAT(end.message,
                testing::HasSubstr("layers.*.attention.qkv.weight, layers.*.attention.output.weight"));
  }
}

}  // namespace
}  // namespace holdfast::test
