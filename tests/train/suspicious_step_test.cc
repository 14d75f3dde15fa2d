// That a step whose numbers are suspicious is computed again from live state, and that what follows leaves the
// bits that it should.
#include <gmock/gmock.h>

#include <atomic>
#include <cmath>
#include <limits>
#include <map>
#include <mutex>

#include "kernels/matmul.h"
#include "tests/support/worker_rig.h"

namespace holdfast::test {
namespace {

// Spoiler makes products of one rank's device wrong: it changes the first element of the next so many results.
class Spoiler {
 public:
  // Returns what becomes of the element.
  using Change = std::function<float(float)>;
  explicit Spoiler(Change change) : change_(std::move(change)) {}

  std::unique_ptr<Device> device() {
    auto left = std::make_shared<std::atomic<int>>(0);
    std::unique_ptr<Device> made =
        make_cpu_device({.threads = 1, .after = [left, change = change_](OpId id, const void* arguments) {
                           if (id != OpId::matmul || left->load() == 0) return;
                           left->fetch_sub(1);
                           float& first = static_cast<float*>(static_cast<const Matmul*>(arguments)->c)[0];
                           first = change(first);
                         }});
    const std::scoped_lock lock(mutex_);
    left_[made.get()] = left;
    return made;
  }
  // The next so many products on the worker's device are wrong.
  void spoil(Worker& worker, int products) {
    const std::scoped_lock lock(mutex_);
    left_.at(&worker.rank().device)->store(products);
  }

 private:
  Change change_;
  std::mutex mutex_;
  std::map<const Device*, std::shared_ptr<std::atomic<int>>> left_;
};

constexpr int all_products = 1'000'000;
float not_a_number(float) {
  return std::numeric_limits<float>::quiet_NaN();
}
// A wrong number that no verdict on loss and norm notices.
float slightly_more(float value) {
  return value * 1.001F + 1e-6F;
}

// The same, from a unit that computes the integers of known products right.
float fractions_slightly_more(float value) {
  return std::abs(value - std::round(value)) > 0.0F ? slightly_more(value) : value;
}

struct Outcome {
  Digest weights = {}, loss = {};
  std::vector<std::uint64_t> skipped = {};
  std::vector<VerdictEvent> verdicts = {};
  std::uint64_t ended_at = 0;  // step whose verdict ended the run; 0: none
  std::vector<int> leaving_ranks = {};
  std::optional<Rollback> rollback = {};
  std::vector<HardwareRecord> hardware = {};  // by rank
};

struct Disturbed {
  int ranks = 1;
  int steps = 1;
  Spoiler::Change change = not_a_number;
  std::int64_t audit_every_steps = 0;
  int tensor = 1, pipeline = 1;
  std::int64_t findings_window_ms = 60'000;
  std::function<void(Config&)> settings = [](Config&) {};
  // Called before each step.
  std::function<void(Spoiler&, Worker&, int step)> spoil = [](Spoiler&, Worker&, int) {};
};

// Makes steps, and ends with the step whose verdict ends the run.
Outcome make_steps(const Disturbed& run) {
  Outcome outcome;
  Spoiler spoiler(run.change);
  Config config = two_layers(4);
  config.verdict.audit_every_steps = run.audit_every_steps;
  config.verdict.findings_window_ms = run.findings_window_ms;
  config.parallel.tensor = run.tensor;
  config.parallel.tensor_lanes = 2;
  config.parallel.pipeline = run.pipeline;
  run.settings(config);
  WorkerRig rig(config, run.ranks);
  rig.run_on([&] { return spoiler.device(); },
             [&](Worker& worker) -> Result<void> {
               const bool first = worker.rank().communicator.rank() == 0;
               for (int step = 1; step <= run.steps; ++step) {
                 run.spoil(spoiler, worker, step);
                 HF_TRY(const StepOutcome made, run_step(worker, {}));
                 spoiler.spoil(worker, 0);
                 HF_TRY_VOID(made.gathers);
                 if (first && made.verdict.has_value()) outcome.verdicts.push_back(*made.verdict);
                 if (first && made.ends_steps) {
                   outcome.ended_at = made.step;
                   outcome.leaving_ranks = made.leaving_ranks;
                   outcome.rollback = made.rollback;
                 }
                 if (made.ends_steps) break;
               }
               HF_TRY_VOID(worker.parameter_gather().finish());
               if (!first) return {};
               const std::size_t bytes =
                   worker.workload().buckets.parameter_elements() * bytes_of(worker.workload().spec.dtype);
               outcome.weights = digest_of(std::span(worker.stage().parameters(), bytes));
               outcome.loss = worker.state().loss_digest;
               outcome.skipped = worker.state().numbers.skipped();
               return {};
             });
  outcome.hardware = rig.hardware();
  return outcome;
}

Outcome undisturbed(int ranks, int steps) {
  return make_steps({.ranks = ranks, .steps = steps});
}

TEST(SuspiciousStep, IsComputedAgainWithTheBitsOfTheUndisturbedRun) {
  const Outcome expected = undisturbed(1, 6);
  EXPECT_TRUE(expected.verdicts.empty());
  for (const int ranks : {1, 2}) {
    const Outcome found =
        make_steps({.ranks = ranks, .steps = 6, .spoil = [&](Spoiler& spoiler, Worker& worker, int step) {
                      if (step == 4 && worker.rank().communicator.rank() == ranks - 1)
                        spoiler.spoil(worker, 1);
                    }});
    EXPECT_EQ(found.weights, expected.weights);
    EXPECT_EQ(found.loss, expected.loss);
    ASSERT_EQ(found.verdicts.size(), 1);
    const VerdictEvent& verdict = found.verdicts[0];
    EXPECT_EQ(verdict.step, 4);
    EXPECT_EQ(verdict.what, "corruption");
    EXPECT_EQ(verdict.action, "redo");
    EXPECT_EQ(verdict.attempts, 3);
    EXPECT_EQ(verdict.rank, ranks - 1) << verdict.reason;
    EXPECT_THAT(verdict.reason, testing::HasSubstr("do not all have the same bits"));
    EXPECT_TRUE(found.skipped.empty());
  }
}

// Returns what the ranks have noted, which is the same on all of them.
std::vector<HardwareFinding> findings_of(const Outcome& outcome, const char* device = "cpu") {
  for (const HardwareRecord& record : outcome.hardware) EXPECT_EQ(record, outcome.hardware[0]);
  const std::vector<DeviceFindings>& devices = outcome.hardware[0].devices;
  if (devices.empty()) return {};
  EXPECT_EQ(devices.size(), 1U);
  EXPECT_EQ(devices[0].host, posix_env().host_name());
  EXPECT_EQ(devices[0].device, device);
  return devices[0].findings;
}

TEST(SuspiciousStep, SendsAwayARankAtTheSecondFindingAboutItsDevice) {
  const auto spoil = [](Spoiler& spoiler, Worker& worker, int step) {
    if ((step == 4 || step == 5) && worker.rank().communicator.rank() == 1) spoiler.spoil(worker, 1);
  };
  const Outcome found = make_steps({.ranks = 2, .steps = 6, .spoil = spoil});
  ASSERT_EQ(found.verdicts.size(), 2);
  EXPECT_EQ(found.verdicts[0].action, "redo");
  EXPECT_EQ(found.verdicts[0].device, "cpu");
  EXPECT_EQ(found.verdicts[0].earlier_findings, 0U);
  EXPECT_EQ(found.verdicts[1].what, "corruption");
  EXPECT_EQ(found.verdicts[1].action, "evict");
  EXPECT_EQ(found.verdicts[1].rank, 1);
  EXPECT_EQ(found.verdicts[1].earlier_findings, 1U);
  EXPECT_THAT(found.verdicts[1].reason,
              testing::ContainsRegex("that rank leaves the run, which goes on without it; this is the second "
                                     "finding about cpu of host .* since .* UTC$"));
  EXPECT_EQ(found.ended_at, 5);
  EXPECT_THAT(found.leaving_ranks, testing::ElementsAre(1));
  EXPECT_EQ(found.weights, undisturbed(2, 4).weights);
  const std::vector<HardwareFinding> findings = findings_of(found);
  ASSERT_EQ(findings.size(), 2U);
  EXPECT_EQ(findings[0].step, 4U);
  EXPECT_EQ(findings[0].what, "once");
  EXPECT_EQ(findings[1].step, 5U);
}

TEST(SuspiciousStep, KeepsARankThatNobodyCanReplaceHoweverOftenItIsFound) {
  const Outcome expected = undisturbed(1, 6);
  const auto spoil = [](Spoiler& spoiler, Worker& worker, int step) {
    if (step > 3) spoiler.spoil(worker, 1);
  };
  const Outcome found = make_steps({.steps = 6, .spoil = spoil});
  EXPECT_EQ(found.weights, expected.weights);
  ASSERT_EQ(found.verdicts.size(), 3);
  EXPECT_EQ(found.verdicts[2].action, "redo");
  EXPECT_THAT(found.verdicts[2].reason, testing::HasSubstr("this is finding 3 about cpu of host"));
}

// Changes a parameter of the first layer that the rank owns, or does not own, in its memory.
void change_parameter(Worker& worker, bool owned, float (*change)(float)) {
  EXPECT_TRUE(worker.parameter_gather().finish().ok());
  const BucketPlan& buckets = worker.workload().buckets;
  const int replica = worker.rank().coordinate.data;
  for (int bucket = 0; bucket < buckets.local_count(); ++bucket) {
    const ElementRange range = buckets.parameter_range(bucket, owned ? replica : 1 - replica);
    const bool of_layer =
        buckets.buckets()[static_cast<std::size_t>(bucket)].tensors[0].name.starts_with("layers.0.");
    if (!of_layer || range.begin == range.end) continue;
    float& value = reinterpret_cast<float*>(worker.stage().parameters())[range.begin];
    value = change(value);
    return;
  }
  FAIL() << "no parameter to change";
}

TEST(SuspiciousStep, HealsParametersThatHaveChangedInMemory) {
  const Outcome expected = undisturbed(2, 6);
  const auto spoil = [](Spoiler&, Worker& worker, int step) {
    if (step == 4 && worker.rank().communicator.rank() == 1) change_parameter(worker, false, not_a_number);
  };
  const Outcome found = make_steps({.ranks = 2, .steps = 6, .spoil = spoil});
  EXPECT_EQ(found.weights, expected.weights);
  EXPECT_EQ(found.loss, expected.loss);
  ASSERT_EQ(found.verdicts.size(), 1);
  EXPECT_EQ(found.verdicts[0].action, "redo");
  EXPECT_EQ(found.verdicts[0].rank, 1) << found.verdicts[0].reason;
  EXPECT_THAT(found.verdicts[0].reason, testing::HasSubstr("with parameters that had changed in its memory"));
}

TEST(SuspiciousStep, SkipsNoStepForWeightsThatHaveChangedInMemory) {
  for (const int ranks : {1, 2}) {
    const auto spoil = [&](Spoiler&, Worker& worker, int step) {
      if (step == 4 && worker.rank().communicator.rank() == ranks - 1)
        change_parameter(worker, true, not_a_number);
    };
    const Outcome found = make_steps({.ranks = ranks, .steps = 6, .spoil = spoil});
    EXPECT_TRUE(found.skipped.empty());
    EXPECT_EQ(found.ended_at, 4);
    ASSERT_EQ(found.verdicts.size(), 1);
    EXPECT_EQ(found.verdicts[0].step, 4);
    EXPECT_EQ(found.verdicts[0].action, ranks == 1 ? "rollback" : "evict");
    EXPECT_EQ(found.verdicts[0].rank, ranks - 1) << found.verdicts[0].reason;
  }
}

TEST(SuspiciousStep, IsSkippedWhereAllAttemptsAreNotFinite) {
  const auto spoil = [](Spoiler& spoiler, Worker& worker, int step) {
    if (step == 3 && worker.rank().communicator.rank() == 0) spoiler.spoil(worker, all_products);
  };
  const Outcome found = make_steps({.steps = 5, .spoil = spoil});
  ASSERT_EQ(found.verdicts.size(), 1);
  EXPECT_EQ(found.verdicts[0].what, "nonfinite");
  EXPECT_EQ(found.verdicts[0].action, "skip");
  EXPECT_EQ(found.verdicts[0].differing_ranks, 0);
  EXPECT_EQ(found.verdicts[0].lane, 0);
  EXPECT_EQ(found.verdicts[0].microbatch, 0);
  EXPECT_THAT(found.verdicts[0].samples.value_or(""), testing::HasSubstr("train.txt sample"));
  EXPECT_THAT(found.skipped, testing::ElementsAre(3));
  const Outcome expected = undisturbed(1, 5);
  EXPECT_NE(found.weights, expected.weights);
}

// A layout, the rank whose products are wrong, and where the first of them is.
struct Origin {
  int ranks = 1, tensor = 1, pipeline = 1;
  int wrong_rank = 0, lane = 0;
  const char* layer = "layers.0.attention";
};

void expect_origin(const Origin& origin, const std::function<void(Config&)>& settings) {
  SCOPED_TRACE(fmt::format("{} ranks, tensor {}, pipeline {}", origin.ranks, origin.tensor, origin.pipeline));
  const Outcome found = make_steps({.ranks = origin.ranks,
                                    .steps = 2,
                                    .tensor = origin.tensor,
                                    .pipeline = origin.pipeline,
                                    .settings = settings,
                                    .spoil = [&](Spoiler& spoiler, Worker& worker, int step) {
                                      if (step == 2 && worker.rank().communicator.rank() == origin.wrong_rank)
                                        spoiler.spoil(worker, all_products);
                                    }});
  ASSERT_EQ(found.verdicts.size(), 1);
  const VerdictEvent& verdict = found.verdicts[0];
  EXPECT_EQ(verdict.action, "skip") << verdict.reason;
  EXPECT_EQ(verdict.attempts, 2) << "none is made for the checks alone";
  EXPECT_EQ(verdict.op, "matmul") << verdict.reason;
  EXPECT_EQ(verdict.layer, origin.layer);
  EXPECT_EQ(verdict.pass, "forward");
  EXPECT_EQ(verdict.lane, origin.lane);
  EXPECT_EQ(verdict.microbatch, 0);
  EXPECT_THAT(verdict.reason, testing::HasSubstr(fmt::format("the first result that is not finite is of "
                                                             "matmul in {}, forward",
                                                             origin.layer)));
}

TEST(SuspiciousStep, NamesTheFirstOpThatIsNotFinite) {
  const Origin second_stage = {.ranks = 2, .pipeline = 2, .wrong_rank = 1, .layer = "layers.1.attention"};
  const Origin second_replica = {.ranks = 2, .wrong_rank = 1, .lane = 1};
  for (const Origin& origin :
       {Origin{}, second_replica, second_stage, Origin{.ranks = 2, .tensor = 2, .wrong_rank = 1},
        Origin{.ranks = 4, .pipeline = 2, .wrong_rank = 3, .lane = 1, .layer = "layers.1.attention"}})
    expect_origin(origin, [](Config&) {});
  expect_origin(second_stage, [](Config& config) { config.training.recompute = "full"; });
  expect_origin(second_replica, [](Config& config) { config.training.precision = "bf16"; });
}

TEST(SuspiciousStep, NamesAnOpOfABackwardBeforeLaterLanes) {
  constexpr int first_wrong = 30;  // product of a step; in the backward of lane 0
  int products = 0, of_step = 0;
  const auto change = [&](float value) {
    const bool is_right = of_step == 0 || products++ % of_step < first_wrong;
    if (of_step == 0) ++products;
    return is_right ? value : std::numeric_limits<float>::quiet_NaN();
  };
  const Outcome found =
      make_steps({.steps = 2, .change = change, .spoil = [&](Spoiler& spoiler, Worker& worker, int step) {
                    if (step == 2) of_step = std::exchange(products, 0);
                    spoiler.spoil(worker, all_products);
                  }});
  ASSERT_EQ(found.verdicts.size(), 1);
  const VerdictEvent& verdict = found.verdicts[0];
  EXPECT_EQ(verdict.of, "loss") << "that of lane 1 is not finite";
  EXPECT_EQ(verdict.op, "matmul");
  EXPECT_THAT(verdict.layer.value_or(""), testing::StartsWith("layers.1."));
  EXPECT_EQ(verdict.pass, "backward");
  EXPECT_EQ(verdict.lane, 0);
}

TEST(SuspiciousStep, NamesTheTensorOfASpike) {
  constexpr int steps = 36;  // 32 of them are not judged
  std::optional<std::string> tensor;
  double share = 0.0;
  for (const auto& [ranks, pipeline] : {std::pair{1, 1}, {2, 1}, {2, 2}}) {
    const Outcome found =
        make_steps({.ranks = ranks, .steps = steps, .pipeline = pipeline, .settings = [](Config& config) {
                      config.optimizer.learning_rate = 1e-9;  // so that norms go up and down
                      config.verdict.norm_score = 0.01;
                    }});
    ASSERT_FALSE(found.verdicts.empty());
    const VerdictEvent& verdict = found.verdicts[0];
    EXPECT_EQ(verdict.what, "spike");
    EXPECT_EQ(verdict.attempts, 2);
    ASSERT_TRUE(verdict.tensor.has_value());
    EXPECT_GT(verdict.share, 0.0);
    EXPECT_LE(verdict.share, 1.0);
    EXPECT_THAT(verdict.reason, testing::HasSubstr(*verdict.tensor + " has "));
    if (ranks > 1) {
      EXPECT_EQ(verdict.tensor, tensor) << "in every layout";
      EXPECT_EQ(verdict.share, share);
    }
    tensor = verdict.tensor;
    share = verdict.share;
  }
}

// Numbers that are not finite from the third step on.
Outcome stay_bad(const std::function<void(Config&)>& settings) {
  return make_steps(
      {.steps = 8, .settings = settings, .spoil = [](Spoiler& spoiler, Worker& worker, int step) {
         if (step > 2) spoiler.spoil(worker, all_products);
       }});
}

TEST(SuspiciousStep, GoesBackWhereTooManyWereSkipped) {
  const Outcome found = stay_bad([](Config& config) { config.verdict.rollback_steps = 1; });
  EXPECT_THAT(found.skipped, testing::ElementsAre(3, 4, 5));
  EXPECT_EQ(found.ended_at, 6);
  ASSERT_EQ(found.verdicts.size(), 4);
  EXPECT_EQ(found.verdicts.back().action, "rollback");
  EXPECT_THAT(
      found.verdicts.back().reason,
      testing::HasSubstr("goes back to step 1 and on from there without the batches of steps 2 to 6"));
  EXPECT_EQ(found.rollback->trusted_step, 1U) << "the last but one before step 3";
  EXPECT_EQ(found.rollback->data_cursor, 6U * 2U * 4U);
}

TEST(SuspiciousStep, EndsTheRunWhereTooManyWereSkippedAndItMayNotGoBack) {
  for (const char* key : {"rollbacks_max", "on_nonfinite"}) {
    const Outcome found = stay_bad([&](Config& config) {
      if (key == std::string_view("rollbacks_max")) config.verdict.rollbacks_max = 0;
      if (key == std::string_view("on_nonfinite")) config.verdict.on_nonfinite = "stop";
    });
    EXPECT_EQ(found.ended_at, 6);
    ASSERT_EQ(found.verdicts.size(), 4);
    EXPECT_EQ(found.verdicts.back().action, "stop");
    EXPECT_THAT(found.verdicts.back().reason, testing::HasSubstr("expected finite numbers"));
    EXPECT_FALSE(found.rollback.has_value());
    EXPECT_EQ(found.weights, undisturbed(1, 2).weights);
  }
}

TEST(SuspiciousStep, SaysWhichKeyEndsTheRun) {
  const Outcome found = stay_bad([](Config& config) { config.verdict.on_nonfinite = "save_and_stop"; });
  EXPECT_EQ(found.verdicts.back().action, "save_and_stop");
  EXPECT_THAT(found.verdicts.back().reason,
              testing::HasSubstr("the state before it is saved, and the run ends here "
                                 "(verdict.on_nonfinite = \"save_and_stop\")"));
}

// Products that are much too large give a loss that is finite, and of which no update is made.
TEST(SuspiciousStep, IsSkippedWhereItsNumbersExplode) {
  const auto change = [](float) { return 1e9F; };
  const auto spoil = [](Spoiler& spoiler, Worker& worker, int step) {
    if (step == 3) spoiler.spoil(worker, all_products);
  };
  const Outcome found = make_steps({.steps = 3, .change = change, .spoil = spoil});
  ASSERT_EQ(found.verdicts.size(), 1);
  EXPECT_EQ(found.verdicts[0].what, "exploded") << found.verdicts[0].reason;
  EXPECT_EQ(found.verdicts[0].action, "skip");
  EXPECT_TRUE(found.verdicts[0].tensor.has_value());
  EXPECT_EQ(found.weights, undisturbed(1, 2).weights);
}

TEST(LaneAudit, FindsNothingInACleanRunAndChangesNoBit) {
  const Outcome expected = make_steps({.steps = 5});
  for (const auto& [ranks, tensor, pipeline] :
       {std::array{1, 1, 1}, {2, 1, 1}, {4, 1, 1}, {4, 2, 1}, {4, 1, 2}, {8, 2, 2}}) {
    const Outcome found = make_steps(
        {.ranks = ranks, .steps = 5, .audit_every_steps = 1, .tensor = tensor, .pipeline = pipeline});
    EXPECT_EQ(found.loss, expected.loss);
    EXPECT_TRUE(found.verdicts.empty()) << found.verdicts[0].reason;
  }
}

// Stages of two chunks, and one microbatch a lane.
void interleave(Config& config) {
  config.parallel.pipeline_schedule = "interleaved";
  config.parallel.pipeline_chunks = 2;
  config.training.microbatches_per_lane = 1;
}

TEST(LaneAudit, ComesToInterleavedPipelinesWithFewerMicrobatchesThanStages) {
  const auto spoil = [](Spoiler& spoiler, Worker& worker, int step) {
    if (step >= 4 && worker.rank().coordinate.data == 1 && worker.rank().coordinate.pipeline == 0)
      spoiler.spoil(worker, all_products);
  };
  const Disturbed clean = {
      .ranks = 6, .steps = 4, .audit_every_steps = 1, .pipeline = 2, .settings = interleave};
  const Outcome expected =
      make_steps({.steps = 4, .settings = [](Config& config) { config.training.microbatches_per_lane = 1; }});
  const Outcome found = make_steps(clean);
  EXPECT_EQ(found.loss, expected.loss);
  EXPECT_TRUE(found.verdicts.empty()) << found.verdicts[0].reason;
  Disturbed wrong = clean;
  wrong.change = fractions_slightly_more;
  wrong.spoil = spoil;
  const Outcome ended = make_steps(wrong);
  ASSERT_EQ(ended.verdicts.size(), 1);
  EXPECT_EQ(ended.ended_at, 4);
  EXPECT_EQ(ended.verdicts[0].action, "evict") << ended.verdicts[0].reason;
  EXPECT_THAT(ended.leaving_ranks, testing::ElementsAre(2, 3)) << "the copy of the model";
}

TEST(LaneAudit, FindsAWrongNumberThatHappenedOnceAndKeepsTheRightOnes) {
  const Outcome expected = undisturbed(2, 6);
  // The audit of step 3 is of lane 0, which rank 0 runs, by rank 1, and the other way round of lane 1. Each runs the
  // other one's lane first. The first element of the first product is of a query that sees one key alone, so it
  // changes nothing.
  constexpr int as_auditor = 4, as_owner = 40;
  for (const auto& [wrong_rank, products] :
       {std::pair{0, as_auditor}, {0, as_owner}, {1, as_auditor}, {1, as_owner}}) {
    const Outcome found = make_steps(
        {.ranks = 2,
         .steps = 6,
         .change = slightly_more,
         .audit_every_steps = 3,
         .spoil = [rank = wrong_rank, count = products](Spoiler& spoiler, Worker& worker, int step) {
           if (step == 3 && worker.rank().communicator.rank() == rank) spoiler.spoil(worker, count);
         }});
    EXPECT_EQ(found.weights, expected.weights);
    EXPECT_EQ(found.loss, expected.loss);
    ASSERT_EQ(found.verdicts.size(), 1);
    EXPECT_EQ(found.verdicts[0].what, "corruption");
    EXPECT_EQ(found.verdicts[0].action, "redo");
    EXPECT_EQ(found.verdicts[0].rank, wrong_rank) << found.verdicts[0].reason;
  }
}

// Rank 1 is wrong as an auditor, before its own lanes.
TEST(LaneAudit, SendsAwayARankAtTheSecondFindingWithinTheWindow) {
  const auto spoil = [](Spoiler& spoiler, Worker& worker, int step) {
    if ((step == 3 || step == 5) && worker.rank().communicator.rank() == 1) spoiler.spoil(worker, 4);
  };
  Disturbed run = {.ranks = 2, .steps = 6, .change = slightly_more, .audit_every_steps = 1, .spoil = spoil};
  const Outcome found = make_steps(run);
  ASSERT_EQ(found.verdicts.size(), 2);
  EXPECT_EQ(found.verdicts[0].action, "redo");
  EXPECT_EQ(found.verdicts[1].action, "evict") << found.verdicts[1].reason;
  EXPECT_THAT(found.leaving_ranks, testing::ElementsAre(1));
  EXPECT_EQ(found.weights, undisturbed(2, 4).weights);
  EXPECT_EQ(findings_of(found).size(), 2U);

  run.findings_window_ms = 0;
  const Outcome told = make_steps(run);
  EXPECT_EQ(told.weights, undisturbed(2, 6).weights);
  ASSERT_EQ(told.verdicts.size(), 2);
  EXPECT_EQ(told.verdicts[1].action, "redo");
  EXPECT_THAT(told.verdicts[1].reason, testing::Not(testing::HasSubstr("second finding")));
  EXPECT_EQ(findings_of(told).size(), 2U) << "they are noted all the same";
}

TEST(LaneAudit, HealsParametersThatHaveChangedInMemory) {
  const Outcome expected = undisturbed(2, 6);
  for (const int wrong_rank : {0, 1}) {
    const auto spoil = [&](Spoiler&, Worker& worker, int step) {
      if (step == 3 && worker.rank().communicator.rank() == wrong_rank)
        change_parameter(worker, false, slightly_more);
    };
    const Outcome found = make_steps({.ranks = 2, .steps = 6, .audit_every_steps = 3, .spoil = spoil});
    EXPECT_EQ(found.weights, expected.weights);
    ASSERT_EQ(found.verdicts.size(), 1);
    EXPECT_EQ(found.verdicts[0].action, "redo");
    EXPECT_EQ(found.verdicts[0].rank, wrong_rank) << found.verdicts[0].reason;
  }
}

TEST(LaneAudit, FindsThatWeightsHaveChangedInMemory) {
  const auto spoil = [](Spoiler&, Worker& worker, int step) {
    if (step == 3 && worker.rank().communicator.rank() == 1) change_parameter(worker, true, slightly_more);
  };
  const Outcome found = make_steps({.ranks = 2, .steps = 6, .audit_every_steps = 3, .spoil = spoil});
  ASSERT_EQ(found.verdicts.size(), 1);
  EXPECT_EQ(found.verdicts[0].of, "state");
  EXPECT_THAT(found.leaving_ranks, testing::ElementsAre(1));
}

TEST(LaneAudit, SendsAwayAnyRankWhoseNumbersAreWrongForGood) {
  // Rank r is audited by rank r + 1, and in the second attempt by rank r + 2.
  const auto spoil = [](Spoiler& spoiler, Worker& worker, int step) {
    if (step >= 2 && worker.rank().communicator.rank() == 1) spoiler.spoil(worker, all_products);
  };
  const Outcome found =
      make_steps({.ranks = 4, .steps = 6, .change = slightly_more, .audit_every_steps = 2, .spoil = spoil});
  EXPECT_EQ(found.ended_at, 2);
  ASSERT_EQ(found.verdicts.size(), 1);
  EXPECT_EQ(found.verdicts[0].attempts, 2);
  EXPECT_EQ(found.verdicts[0].action, "evict") << found.verdicts[0].reason;
  EXPECT_THAT(found.verdicts[0].reason, testing::HasSubstr("weights may be wrong since step 0"));
  EXPECT_THAT(found.leaving_ranks, testing::ElementsAre(1));
  EXPECT_EQ(found.weights, undisturbed(4, 1).weights);
}

TEST(LaneAudit, SendsAwayTheRankWhoseNumbersAreWrongForGood) {
  const auto spoil = [](Spoiler& spoiler, Worker& worker, int step) {
    if (step >= 2 && worker.rank().communicator.rank() == 0) spoiler.spoil(worker, all_products);
  };
  const Outcome found =
      make_steps({.ranks = 4, .steps = 6, .change = slightly_more, .audit_every_steps = 2, .spoil = spoil});
  EXPECT_EQ(found.ended_at, 2);
  ASSERT_EQ(found.verdicts.size(), 1);
  EXPECT_EQ(found.verdicts[0].action, "evict") << found.verdicts[0].reason;
  EXPECT_THAT(found.leaving_ranks, testing::ElementsAre(0));
  EXPECT_EQ(found.weights, undisturbed(4, 1).weights);
}

TEST(LaneAudit, KnownProductsSayWhichOfTwoReplicasIsWrong) {
  const auto spoil = [](Spoiler& spoiler, Worker& worker, int step) {
    if (step >= 2 && worker.rank().communicator.rank() == 0) spoiler.spoil(worker, all_products);
  };
  const Outcome found =
      make_steps({.ranks = 2, .steps = 6, .change = slightly_more, .audit_every_steps = 2, .spoil = spoil});
  EXPECT_EQ(found.ended_at, 2);
  ASSERT_EQ(found.verdicts.size(), 1);
  EXPECT_EQ(found.verdicts[0].action, "evict") << found.verdicts[0].reason;
  EXPECT_THAT(found.leaving_ranks, testing::ElementsAre(0));
}

TEST(LaneAudit, ProductsOfSeveralRanksAreFindingsAboutEach) {
  const auto spoil = [](Spoiler& spoiler, Worker& worker, int step) {
    if (step >= 2 && worker.rank().communicator.rank() >= 2) spoiler.spoil(worker, all_products);
  };
  const Outcome found =
      make_steps({.ranks = 4, .steps = 6, .change = slightly_more, .audit_every_steps = 2, .spoil = spoil});
  ASSERT_EQ(found.verdicts.size(), 1);
  EXPECT_THAT(found.verdicts[0].reason,
              testing::ContainsRegex("rank 2 .* computed a product .*, rank 3 .* computed a product"));
  EXPECT_EQ(findings_of(found).size(), 2U) << found.verdicts[0].reason;
}

TEST(LaneAudit, EndsTheRunWhereNobodyKnowsWhoseNumbersAreRight) {
  const auto spoil = [](Spoiler& spoiler, Worker& worker, int step) {
    if (step >= 2 && worker.rank().communicator.rank() == 0) spoiler.spoil(worker, all_products);
  };
  const Outcome found = make_steps(
      {.ranks = 2, .steps = 6, .change = fractions_slightly_more, .audit_every_steps = 2, .spoil = spoil});
  EXPECT_EQ(found.ended_at, 2);
  ASSERT_EQ(found.verdicts.size(), 1);
  EXPECT_EQ(found.verdicts[0].action, "stop") << found.verdicts[0].reason;
  EXPECT_THAT(found.leaving_ranks, testing::IsEmpty());
}

}  // namespace
}  // namespace holdfast::test
