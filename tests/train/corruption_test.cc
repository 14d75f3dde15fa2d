// Wrong numbers that fault points make: which one is chosen, and that each of them really meets a run.
#include "runtime/train/corruption.h"

#include <bit>
#include <cmath>
#include <set>

#include "runtime/core/record.h"
#include "runtime/os/fault_point.h"
#include "tests/train/training_fixture.h"

namespace holdfast::test {
namespace {

std::vector<NumberRegion> three_regions() {
  return {{.tensor = "a", .elements = 3},
          {.tensor = "b", .elements = 0},
          {.tensor = "c", .elements = 5, .dtype = DType::bf16}};
}

TEST(Corruption, ChoosesWhatIsNamed) {
  const std::vector<NumberRegion> regions = three_regions();
  const struct {
    std::uint64_t named_element, named_bit;
    std::size_t region;
    std::uint64_t element, element_of_memory;
    int bit;
  } cases[] = {{0, 31, 0, 0, 0, 31},
               {2, 0, 0, 2, 2, 0},
               {3, 5, 2, 0, 3, 5},
               {7, 30, 2, 4, 7, 14},
               {8, 30, 0, 0, 0, 30}};
  for (const auto& each : cases) {
    const std::vector<ChosenNumber> chosen =
        choose_numbers({.bit = each.named_bit, .element = each.named_element}, regions);
    ASSERT_EQ(chosen.size(), 1U);
    EXPECT_EQ(chosen[0].region, each.region) << each.named_element;
    EXPECT_EQ(chosen[0].element, each.element) << each.named_element;
    EXPECT_EQ(chosen[0].element_of_memory, each.element_of_memory) << each.named_element;
    EXPECT_EQ(chosen[0].mask, 1U << each.bit) << "modulo the bits of the element";
  }
}

TEST(Corruption, ChoosesRunsAndSeveralBits) {
  const std::vector<NumberRegion> regions = three_regions();
  const std::vector<ChosenNumber> run =
      choose_numbers({.bit = 4, .element = 1, .numbers = 9, .stride = 3}, regions);
  ASSERT_EQ(run.size(), 3U) << "it ends with the memory";
  EXPECT_EQ(run[0].region, 0U);
  EXPECT_EQ(run[1].region, 2U);
  EXPECT_EQ(run[1].element, 1U);
  EXPECT_EQ(run[2].element_of_memory, 7U);
  EXPECT_EQ(choose_numbers({.bit = 4, .element = 0, .numbers = 2, .stride = 3}, regions).size(), 2U);
  std::set<std::uint32_t> masks;
  for (std::uint64_t draw = 0; draw < 100; ++draw) {
    const ChosenNumber wide = choose_numbers({.element = 0, .bits = 5, .draw = draw}, regions)[0];
    EXPECT_EQ(std::popcount(wide.mask), 5);
    masks.insert(wide.mask);
    const ChosenNumber narrow = choose_numbers({.element = 4, .bits = 16, .draw = draw}, regions)[0];
    EXPECT_EQ(narrow.mask, 0xffffU) << "all that a bf16 has";
  }
  EXPECT_GT(masks.size(), 90U);
}

TEST(Corruption, DrawsElementAndBit) {
  const std::vector<NumberRegion> regions = three_regions();
  std::set<std::uint64_t> elements;
  std::set<int> bits;
  for (std::uint64_t draw = 0; draw < 500; ++draw) {
    const ChosenNumber chosen = choose_numbers({.draw = draw}, regions)[0];
    const ChosenNumber again = choose_numbers({.draw = draw}, regions)[0];
    EXPECT_EQ(chosen.element_of_memory, again.element_of_memory);
    EXPECT_EQ(chosen.mask, again.mask);
    const int bit = std::countr_zero(chosen.mask);
    EXPECT_LT(bit, regions[chosen.region].dtype == DType::bf16 ? 16 : 32);
    elements.insert(chosen.element_of_memory);
    bits.insert(bit);
  }
  EXPECT_EQ(elements.size(), 8U) << "each comes";
  EXPECT_EQ(bits.size(), 32U);
}

TEST(Corruption, ChangesBitsOrAllToNaN) {
  const auto bits_of = [](float value) { return std::bit_cast<std::uint32_t>(value); };
  const auto flipped = [](std::uint32_t bits, DType dtype, std::uint32_t mask) {
    return changed_bits(bits, dtype, NumberChange::flip, mask);
  };
  EXPECT_EQ(flipped(bits_of(1.0F), DType::fp32, 1U << 31), bits_of(-1.0F));
  EXPECT_EQ(flipped(bits_of(1.0F), DType::fp32, 1U << 22), bits_of(1.5F));
  EXPECT_EQ(flipped(bits_of(1.0F), DType::fp32, 3U << 21), bits_of(1.75F));
  EXPECT_EQ(flipped(0x3f80, DType::bf16, 1U << 15), 0xbf80U);
  EXPECT_EQ(changed_bits(0b1010, DType::fp32, NumberChange::stuck_at_1, 0b0110), 0b1110U);
  EXPECT_EQ(changed_bits(0b1010, DType::fp32, NumberChange::stuck_at_0, 0b0110), 0b1000U);
  const std::uint32_t nan = changed_bits(bits_of(1.0F), DType::fp32, NumberChange::to_nan, 1);
  EXPECT_TRUE(std::isnan(std::bit_cast<float>(nan)));
  const std::uint32_t narrow_nan = changed_bits(0x3f80, DType::bf16, NumberChange::to_nan, 8);
  EXPECT_TRUE(std::isnan(to_float(BFloat16{static_cast<std::uint16_t>(narrow_nan)})));
}

// Names the file of HOLDFAST_FAULTS_LOG.
class LoggingEnv final : public ForwardingEnv {
 public:
  explicit LoggingEnv(std::string log) : ForwardingEnv(posix_env()), log_(std::move(log)) {}
  std::string variable(const std::string& name) override {
    return name == "HOLDFAST_FAULTS_LOG" ? log_ : ForwardingEnv::variable(name);
  }

 private:
  std::string log_;
};

class CorruptionTest : public TrainingTest {
 protected:
  // Runs it with a few steps, and with the log of its fault points.
  RunEnd train_shortly(Launch launch) {
    launch.overrides.insert(launch.overrides.begin(),
                            {"training.steps=6", "evaluation.every_steps=0", "verdict.preset=watch"});
    LoggingEnv env(directory_ / (launch.run + ".points"));
    return train(launch, env);
  }

  std::vector<FaultPointRecord> passed(const std::string& run) const {
    std::vector<FaultPointRecord> records;
    const Result<std::string> text = posix_env().read_text(directory_ / (run + ".points"));
    std::istringstream lines(text.ok() ? *text : "");
    for (std::string line; std::getline(lines, line);)
      records.push_back(record_from_text<FaultPointRecord>(line).value());
    return records;
  }

  // Returns the losses by step.
  std::map<std::uint64_t, double> losses(const std::string& run) const {
    std::map<std::uint64_t, double> found;
    std::istringstream lines(posix_env().read_text(RunPaths{run_directory(run)}.events()).value());
    for (std::string line; std::getline(lines, line);) {
      const Json event = Json::parse(line);
      if (event["event"] == "step") found[event["step"]] = event["loss"];
    }
    return found;
  }

  // Expects that the fault changes the bits of a run of these ranks, and that the log says what it changed.
  void expect_hit(const std::string& fault, int ranks) {
    const std::string clean = fmt::format("clean{}", ranks), run = fmt::format("run{}", ++runs_);
    if (!posix_env().read_text(RunPaths{run_directory(clean)}.events()).ok()) {
      ASSERT_EQ(train_shortly({.run = clean, .ranks = ranks}).code, ExitCode::done);
    }
    const RunEnd end = train_shortly({.run = run, .ranks = ranks, .faults = fault});
    ASSERT_EQ(end.code, ExitCode::done) << fault << ": " << end.message;
    const std::vector<FaultPointRecord> records = passed(run);
    ASSERT_EQ(records.size(), 1U) << fault;
    if (fault.find("flip") != std::string::npos) {
      ASSERT_TRUE(records.front().changed.has_value());
      const CorruptedNumber& changed = *records.front().changed;
      EXPECT_NE(changed.tensor, "") << fault;
      EXPECT_NE(changed.old_value, changed.new_value) << fault;
    }
    EXPECT_NE(digest(run), digest(clean)) << fault << " on " << ranks << " ranks";
  }

  int runs_ = 0;
};

TEST_F(CorruptionTest, EveryMemoryIsHit) {
  // Bit 22 is the highest one of the mantissa. Element 40 is of a tensor whose numbers are not 0.
  for (const char* const fault :
       {"step.begin@3:0=flip:weights:22:40", "step.before_backward@3:0=flip:weights:22:40",
        "step.end@3:0=flip:weights:22:40", "step.before_gather@3:0=flip:weights:22:40",
        "step.begin@3:0=flip:moment1:22:40", "step.before_update@3:0=flip:moment1:22:40",
        "step.before_vote@3:0=flip:moment2:22:40", "step.begin@3:0=flip:parameters:22:40",
        "step.before_reduce@3:0=flip:gradients:22:40", "step.before_vote@3:0=flip:gradients:22:40",
        "step.before_update@3:0=flip:gradients:22:40", "step.before_backward@3:0=flip:activations:22:40",
        "step.begin@3:0=flips:weights:3:40", "step.begin@3:0=flip_run:moment2:22:5:32:40",
        "step.before_update@3:0=stuck_at_1:gradients:22:64:40",
        "step.before_backward@3:0=stuck_at_0:activations:22:64:40"}) {
    for (const int ranks : {1, 2}) expect_hit(fault, ranks);
  }
  expect_hit("reduce.received@3:0=flip:gradients:22:40", 2);  // a rank alone receives none
}

TEST_F(CorruptionTest, EveryMemoryOfAPipelineAndOfSlicesIsHit) {
  for (const char* const layout : {"parallel.pipeline=2", "parallel.tensor=2"}) {
    for (const char* const fault :
         {"step.before_backward@3:1=flip:activations:22:40", "step.before_reduce@3:0=flip:gradients:22:40"}) {
      const Launch clean{.run = "clean", .ranks = 2, .overrides = {layout, "parallel.tensor_lanes=2"}};
      if (digest("clean").starts_with("no checkpoint")) {
        ASSERT_EQ(train_shortly(clean).code, ExitCode::done);
      }
      Launch hit = clean;
      hit.run = fmt::format("hit{}", ++runs_);
      hit.faults = fault;
      ASSERT_EQ(train_shortly(hit).code, ExitCode::done);
      EXPECT_EQ(passed(hit.run).size(), 1U);
      EXPECT_NE(digest(hit.run), digest("clean")) << layout << " " << fault;
    }
  }
}

TEST_F(CorruptionTest, InBf16TheMasterAndTheCopyAreTwoNumbers) {
  const std::vector<std::string> bf16 = {"training.precision=bf16"};
  ASSERT_EQ(train_shortly({.run = "clean", .overrides = bf16}).code, ExitCode::done);
  for (const char* const fault : {"step.begin@3=flip:weights:22:40", "step.begin@3=flip:parameters:22:40",
                                  "step.before_backward@3=flip:activations:22:40"}) {
    const std::string run = fmt::format("run{}", ++runs_);
    ASSERT_EQ(train_shortly({.run = run, .overrides = bf16, .faults = fault}).code, ExitCode::done) << fault;
    EXPECT_NE(digest(run), digest("clean")) << fault;
  }
}

TEST_F(CorruptionTest, ProductsAndRatesAreHit) {
  for (const char* const fault :
       {"step.begin@3:0=wrong_product", "step.before_backward@2:0=wrong_product",
        "step.begin@3:0=wrong_product_always", "step.before_update@3:0=scale_rate:3"}) {
    for (const int ranks : {1, 2}) expect_hit(fault, ranks);
  }
}

TEST_F(CorruptionTest, ANaNEndsTheStep) {
  for (const char* const fault : {"step.begin@3=nan:parameters:40", "step.before_reduce@9=nan:gradients:40",
                                  "step.before_backward@9=nan:activations"}) {
    const std::string run = fmt::format("run{}", ++runs_);
    const RunEnd end = train_shortly({.run = run, .faults = fault});
    EXPECT_EQ(end.code, ExitCode::numerics) << fault;
    EXPECT_NE(end.message.find("step 3: "), std::string::npos) << fault << ": " << end.message;
    ASSERT_EQ(passed(run).size(), 1U);
    EXPECT_EQ(passed(run).front().changed->new_value, "nan");
  }
}

// The step has 8 samples, so sample 20 is one of step 3.
TEST_F(CorruptionTest, ABadSampleIsBadInEveryLayout) {
  const struct {
    int ranks;
    std::vector<std::string> overrides;
  } layouts[] = {{1, {}},
                 {2, {}},
                 {3, {}},
                 {2, {"parallel.pipeline=2"}},
                 {2, {"parallel.pipeline=2", "parallel.pipeline_schedule=zero_bubble"}},
                 {2, {"parallel.tensor=2"}},
                 {1, {"training.microbatch_size=1", "training.microbatches_per_lane=2"}}};
  for (const auto& layout : layouts) {
    std::vector<std::string> overrides = layout.overrides;
    overrides.push_back("parallel.tensor_lanes=2");
    for (const int sample : {17, 20, 24}) {
      const std::string run = fmt::format("run{}", ++runs_);
      const RunEnd end = train_shortly({.run = run,
                                        .ranks = layout.ranks,
                                        .overrides = overrides,
                                        .faults = fmt::format("data.sample@{}=nan", sample)});
      EXPECT_EQ(end.code, ExitCode::numerics) << sample << " on " << layout.ranks;
      EXPECT_NE(end.message.find("step 3: "), std::string::npos) << end.message;
      const std::vector<FaultPointRecord> records = passed(run);
      ASSERT_FALSE(records.empty());
      EXPECT_EQ(records.front().hit, static_cast<std::uint64_t>(sample));
    }
  }
}

TEST_F(CorruptionTest, ABadSampleIsTheSameOneAfterAResume) {
  Launch launch{.run = "resumed", .stop_after_steps = 2, .faults = "data.sample@20=nan"};
  EXPECT_EQ(train_shortly(launch).code, ExitCode::saved);
  EXPECT_TRUE(passed(launch.run).empty());
  launch.stop_after_steps = 0;
  launch.ranks = 2;
  const RunEnd end = train_shortly(launch);
  EXPECT_EQ(end.code, ExitCode::numerics);
  EXPECT_NE(end.message.find("step 3: "), std::string::npos) << end.message;
}

TEST_F(CorruptionTest, AScrambledSampleGivesTheSameBitsInEveryLayout) {
  const auto run = [this](const std::string& name, int ranks, std::vector<std::string> overrides,
                          std::string faults) {
    overrides.insert(overrides.end(), {"training.steps=20", "evaluation.every_steps=0"});
    const RunEnd end =
        train({.run = name, .ranks = ranks, .overrides = overrides, .faults = std::move(faults)});
    EXPECT_EQ(end.code, ExitCode::done) << end.message;
    return digest(name);
  };
  const std::string clean = run("clean", 1, {}, ""),
                    scrambled = run("one", 1, {}, "data.sample@130=scramble");
  EXPECT_NE(clean, scrambled);
  EXPECT_EQ(run("two", 2, {}, "data.sample@130=scramble"), scrambled);
  EXPECT_EQ(run("stages", 2, {"parallel.pipeline=2"}, "data.sample@130=scramble"), scrambled);
  const std::map<std::uint64_t, double> before = losses("clean"), after = losses("one");
  for (std::uint64_t step = 1; step <= 16; ++step) EXPECT_EQ(before.at(step), after.at(step));
  EXPECT_GT(after.at(17), before.at(17) + 0.1) << "the sample is unlikely";
}

// With the default verdicts: what becomes of the faults above.
class GuardedTest : public CorruptionTest {
 protected:
  RunEnd train_guarded(Launch launch) {
    launch.overrides.insert(launch.overrides.begin(), {"training.steps=12", "evaluation.every_steps=0"});
    return train(launch);
  }
  std::vector<Json> events(const std::string& run, const char* kind) const {
    std::vector<Json> found;
    std::istringstream lines(posix_env().read_text(RunPaths{run_directory(run)}.events()).value());
    for (std::string line; std::getline(lines, line);) {
      Json event = Json::parse(line);
      if (event["event"] == kind) found.push_back(std::move(event));
    }
    return found;
  }
  std::vector<Json> verdicts(const std::string& run) const { return events(run, "verdict"); }
  // Returns the step that the run went on from after its only recovery.
  int resumed_step(const std::string& run) const {
    const std::vector<Json> recoveries = events(run, "recovery");
    return recoveries.size() == 1 ? recoveries[0]["resumed_from_step"].get<int>() : -1;
  }
};

// One rank alone goes back by itself, to a state that is older than the damage.
TEST_F(GuardedTest, DamagedStateIsFoundAndReachesNoCheckpoint) {
  ASSERT_EQ(train_guarded({.run = "clean"}).code, ExitCode::done);
  for (const char* const memory : {"weights", "moment1", "moment2"}) {
    for (const int bit : {0, 22, 30, 31}) {
      const std::string run = fmt::format("{}{}", memory, bit);
      Launch launch{.run = run,
                    .overrides = {"checkpoint.every_steps=1"},
                    .faults = fmt::format("step.begin@6=flip:{}:{}", memory, bit)};
      const RunEnd end = train_guarded(launch);
      EXPECT_EQ(end.code, ExitCode::done) << end.message;
      ASSERT_EQ(verdicts(run).size(), 1U) << run;
      EXPECT_EQ(verdicts(run)[0]["kind"], "corruption");
      // The first update that reads the damage; before it, where the loss of step 6 is in doubt.
      EXPECT_THAT(verdicts(run)[0]["step"].get<int>(), testing::AnyOf(5, 6));
      EXPECT_EQ(verdicts(run)[0]["rank"], 0);
      EXPECT_LE(resumed_step(run), 4) << "the state of step 5 was damaged in memory";
      const std::string newest = posix_env().list(run_directory(run) + "/checkpoints")->back();
      const Result<Manifest> manifest =
          read_manifest(posix_env(), run_directory(run) + "/checkpoints/" + newest);
      EXPECT_EQ(manifest.value().values.at("checked_step"), std::to_string(manifest->step));
      EXPECT_EQ(digest(run), digest("clean")) << run;
    }
  }
}

// State that was loaded or made has digests, too.
TEST_F(GuardedTest, DamageBeforeTheFirstUpdateIsFoundByIt) {
  ASSERT_EQ(train_guarded({.run = "clean"}).code, ExitCode::done);
  for (const char* const memory : {"weights", "moment1", "moment2"}) {
    const std::string run = memory;
    Launch launch{.run = run,
                  .stop_after_steps = 8,
                  .overrides = {"checkpoint.every_steps=1"},
                  .faults = fmt::format("step.begin@1=flip:{}:3:40", memory)};
    ASSERT_EQ(train_guarded(launch).code, ExitCode::saved);
    ASSERT_EQ(verdicts(run).size(), 1U) << run;
    EXPECT_EQ(verdicts(run)[0]["step"], 1);
    EXPECT_EQ(verdicts(run)[0]["rank"], 0);
    EXPECT_EQ(resumed_step(run), 0);
    launch.stop_after_steps = 0;  // and once more, after a resume
    ASSERT_EQ(train_guarded(launch).code, ExitCode::done);
    ASSERT_EQ(verdicts(run).size(), 2U) << run;
    const Json verdict = verdicts(run)[1];
    EXPECT_EQ(verdict["kind"], "corruption");
    EXPECT_EQ(verdict["of"], "state");
    EXPECT_EQ(verdict["step"].get<int>(), verdict["back_to_step"].get<int>() + 1)
        << "the checkpoint that it was resumed from is sound";
    EXPECT_NE(verdict["reason"].get<std::string>().find("elements 0 to "), std::string::npos);
    EXPECT_EQ(events(run, "recovery").back()["resumed_from_step"], verdict["back_to_step"]);
    EXPECT_EQ(digest(run), digest("clean")) << run;
  }
}

TEST_F(GuardedTest, DamageOfFrozenWeightsIsFoundByAnAuditAndBeforeASave) {
  const std::string frozen = "model.freeze=[\"embedding\", \"layer 0\"]";
  ASSERT_EQ(train_guarded({.run = "clean", .overrides = {frozen}}).code, ExitCode::done);
  const struct {
    const char* point;
    int audit_every_steps, save_every_steps, step, back_to_step, resumed_step;
  } cases[] = {{"step.begin@7", 3, 0, 9, 5, 0},          // sound at step 6, when an audit looked
               {"step.before_gather@5", 4, 2, 6, 3, 2},  // the save of step 4 looked
               {"step.begin@2", 1000, 4, 4, 0, 0},       // the first save found it
               {"step.end@12", 1000, 4, 12, 7, 4}};
  for (const auto& each : cases) {
    const std::string run = fmt::format("run{}", ++runs_);
    // The last owned weights are the frozen ones.
    const RunEnd end = train_guarded(
        {.run = run,
         .overrides = {frozen, fmt::format("verdict.audit_every_steps={}", each.audit_every_steps),
                       fmt::format("checkpoint.every_steps={}", each.save_every_steps)},
         .faults = fmt::format("{}=flip:weights:1:20000", each.point)});
    ASSERT_EQ(end.code, ExitCode::done) << end.message;
    ASSERT_EQ(verdicts(run).size(), 1U) << each.point;
    const Json verdict = verdicts(run)[0];
    EXPECT_EQ(verdict["kind"], "corruption");
    EXPECT_EQ(verdict["step"], each.step) << each.point;
    EXPECT_EQ(verdict["back_to_step"], each.back_to_step) << each.point;
    EXPECT_EQ(resumed_step(run), each.resumed_step) << each.point;
    EXPECT_EQ(digest(run), digest("clean")) << each.point;
  }
}

TEST_F(GuardedTest, DamageThatOnlyTheLastUpdateReadsIsFoundBeforeTheEnd) {
  ASSERT_EQ(train_guarded({.run = "clean"}).code, ExitCode::done);
  for (const char* const point : {"step.begin@12", "step.end@12"}) {
    const std::string run = fmt::format("run{}", ++runs_);
    EXPECT_EQ(train_guarded({.run = run, .faults = fmt::format("{}=flip:weights:20", point)}).code,
              ExitCode::done);
    ASSERT_EQ(verdicts(run).size(), 1U);
    EXPECT_EQ(verdicts(run)[0]["of"], "state");
    EXPECT_EQ(digest(run), digest("clean")) << point;
  }
}

// The update that reads them finds them, wherever they lie and whatever made them; all ranks go back.
TEST_F(GuardedTest, SumsOfGradientsThatChangeAfterTheirNormAreFound) {
  const struct {
    int ranks;
    std::vector<std::string> what, how;
    const char *point, *change;
  } cases[] = {
      {1, {}, {}, "step.before_update@12:0", "flip:gradients:0"},  // of the last update
      {1,
       {"training.microbatch_size=1", "training.microbatches_per_lane=2", "training.precision=bf16"},
       {},
       "step.after_vote@1:0",
       "flips:gradients:2"},
      {2, {"optimizer.gradient_clip=0.01"}, {}, "step.before_update@6:1", "stuck_at_1:gradients:30:1"},
      {4, {}, {}, "step.before_vote@6:3", "flip_run:gradients:31:2:64:0"},
      {2, {}, {"optimizer.shard_gradients=true"}, "step.before_update@6:1", "flip:gradients:31"},
      {2,
       {"model.style=gpt2", "model.kv_heads=4", "model.head=tied"},
       {"parallel.pipeline=2"},
       "step.before_update@6:0",
       "flip:gradients:22"},
      {2, {"parallel.tensor_lanes=2"}, {"parallel.tensor=2"}, "step.before_update@6:1", "flip:gradients:1"}};
  for (const auto& each : cases) {
    const std::string run = fmt::format("run{}", ++runs_), clean = "clean" + run;
    ASSERT_EQ(train_guarded({.run = clean, .overrides = each.what}).code, ExitCode::done);
    std::vector<std::string> overrides = each.what;
    overrides.insert(overrides.end(), each.how.begin(), each.how.end());
    overrides.insert(overrides.end(), {"checkpoint.every_steps=1", "elastic.min_data_parallel=4"});
    const RunEnd end = train_guarded({.run = run,
                                      .ranks = each.ranks,
                                      .overrides = overrides,
                                      .faults = fmt::format("{}={}", each.point, each.change)});
    EXPECT_EQ(end.code, each.ranks == 1 ? ExitCode::done : ExitCode::communication) << end.message;
    if (each.ranks > 1) {
      EXPECT_EQ(train_guarded({.run = run, .ranks = each.ranks, .overrides = overrides}).code,
                ExitCode::done);
    }
    ASSERT_EQ(verdicts(run).size(), 1U) << each.point;
    const Json verdict = verdicts(run)[0];
    EXPECT_EQ(verdict["of"], "state");
    EXPECT_EQ(fmt::format("{}:{}", verdict["step"].get<int>(), verdict["rank"].get<int>()),
              std::string(each.point).substr(std::string(each.point).find('@') + 1));
    EXPECT_THAT(verdict["reason"].get<std::string>(),
                testing::HasSubstr("sums of gradients changed in memory before the update"));
    EXPECT_EQ(digest(run), digest(clean)) << each.point;
  }
}

// The fifth step is made twice: hits 5 and 6 of its points.
TEST_F(GuardedTest, SumsOfGradientsThatNoUpdateReadsAreNotCompared) {
  ASSERT_EQ(train_guarded({.run = "clean"}).code, ExitCode::done);
  ASSERT_EQ(train_guarded({.run = "skips", .faults = "data.sample@36=nan"}).code, ExitCode::done);
  const struct {
    const char *fault, *like, *action;
  } cases[] = {{"data.sample@36=nan,step.after_vote@6=flip:gradients:3", "skips", "skip"},
               {"step.before_reduce@17=nan:gradients,step.before_vote@5=flip:gradients:3", "clean", "redo"}};
  for (const auto& each : cases) {
    const std::string run = fmt::format("run{}", ++runs_);
    ASSERT_EQ(train_guarded({.run = run, .faults = each.fault}).code, ExitCode::done);
    ASSERT_EQ(verdicts(run).size(), 1U) << each.fault;
    EXPECT_EQ(verdicts(run)[0]["action"], each.action);
    EXPECT_EQ(digest(run), digest(each.like)) << each.fault;
  }
}

// The rank whose update it was is named by the next step, or before the last save; all ranks go back.
TEST_F(GuardedTest, AnUpdateWithAnotherRateIsTakenBack) {
  ASSERT_EQ(train_guarded({.run = "clean"}).code, ExitCode::done);
  for (const int ranks : {1, 2}) {
    for (const int step : {6, 12}) {
      const std::string run = fmt::format("run{}", ++runs_);
      // The vote of the next step finds it where the state is not saved at once.
      const int every = step == 6 ? 100 : 1;
      const Launch launch{
          .run = run,
          .ranks = ranks,
          .overrides = {fmt::format("checkpoint.every_steps={}", every),
                        fmt::format("checkpoint.ram_every_steps={}", every), "elastic.min_data_parallel=2"},
          .faults = fmt::format("step.before_update@{}:{}=scale_rate:1.5", step, ranks - 1)};
      const RunEnd end = train_guarded(launch);
      EXPECT_EQ(end.code, ranks == 1 ? ExitCode::done : ExitCode::communication) << end.message;
      if (ranks > 1) {
        EXPECT_EQ(train_guarded({.run = run, .ranks = ranks}).code, ExitCode::done);
      }
      ASSERT_EQ(verdicts(run).size(), 1U) << run;
      EXPECT_EQ(verdicts(run)[0]["kind"], "corruption");
      EXPECT_EQ(verdicts(run)[0]["of"], "update");
      EXPECT_EQ(verdicts(run)[0]["step"], step);
      EXPECT_EQ(verdicts(run)[0]["rank"], ranks - 1);
      EXPECT_THAT(verdicts(run)[0]["reason"].get<std::string>(), testing::HasSubstr("the learning rate was"));
      EXPECT_LT(resumed_step(run), step);
      EXPECT_EQ(digest(run), digest("clean")) << run;
    }
  }
}

// A rank alone finds with products of known results that its hardware is broken for good, and the next start
// goes back to before that.
TEST_F(GuardedTest, ARankAloneFindsThatItsProductsAreWrong) {
  for (const char* const precision : {"fp32", "bf16"}) {
    const std::string run = fmt::format("run{}", ++runs_), clean = fmt::format("clean_{}", precision);
    const std::vector<std::string> overrides = {"training.steps=30", "checkpoint.every_steps=1",
                                                "checkpoint.keep=100", "verdict.audit_every_steps=1",
                                                fmt::format("training.precision={}", precision)};
    ASSERT_EQ(train_guarded({.run = clean, .overrides = overrides}).code, ExitCode::done);
    const RunEnd end =
        train_guarded({.run = run, .overrides = overrides, .faults = "step.begin@3:0=wrong_product_always"});
    EXPECT_EQ(end.code, ExitCode::numerics) << end.message;
    ASSERT_EQ(verdicts(run).size(), 1U) << run;
    EXPECT_EQ(verdicts(run)[0]["kind"], "corruption");
    EXPECT_EQ(verdicts(run)[0]["action"], "stop");
    EXPECT_EQ(verdicts(run)[0]["rank"], 0);
    EXPECT_EQ(verdicts(run)[0]["op"], "matmul");
    EXPECT_THAT(end.message, testing::HasSubstr("whose result is known, and again when it was made again"));
    EXPECT_EQ(train_guarded({.run = run, .overrides = overrides}).code, ExitCode::done);
    EXPECT_EQ(digest(run), digest(clean)) << run;
  }
}

TEST_F(GuardedTest, ABadSampleIsSkippedAlikeInEveryLayoutAndAfterAStop) {
  const struct {
    int ranks, stop_after_steps;
    std::vector<std::string> overrides;
  } layouts[] = {
      {1, 0, {}}, {2, 0, {}}, {4, 0, {}}, {2, 0, {"parallel.pipeline=2"}}, {2, 0, {"parallel.tensor=2"}},
      {2, 2, {}}, {1, 4, {}}};
  std::string expected;
  for (const auto& layout : layouts) {
    const std::string run = fmt::format("run{}", ++runs_);
    Launch launch{.run = run,
                  .ranks = layout.ranks,
                  .stop_after_steps = layout.stop_after_steps,
                  .overrides = layout.overrides,
                  .faults = "data.sample@20=nan"};
    launch.overrides.push_back("parallel.tensor_lanes=2");
    RunEnd end = train_guarded(launch);
    if (layout.stop_after_steps > 0) {
      EXPECT_EQ(end.code, ExitCode::saved);
      launch.stop_after_steps = 0;
      launch.ranks = 3 - layout.ranks;
      end = train_guarded(launch);
    }
    EXPECT_EQ(end.code, ExitCode::done) << end.message;
    if (expected.empty()) expected = digest(run);
    EXPECT_EQ(digest(run), expected) << run;
    ASSERT_EQ(verdicts(run).size(), 1U);
    EXPECT_EQ(verdicts(run)[0]["action"], "skip");
    EXPECT_EQ(verdicts(run)[0]["step"], 3);
    EXPECT_EQ(verdicts(run)[0]["lane"], 1) << "samples 19 and 20 of 8 a step in 4 lanes";
  }
  ASSERT_EQ(train_guarded({.run = "clean", .overrides = {"parallel.tensor_lanes=2"}}).code, ExitCode::done);
  EXPECT_NE(digest("clean"), expected);
}

}  // namespace
}  // namespace holdfast::test
