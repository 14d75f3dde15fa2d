// Parameters that ranks must hold alike: the terms of the vote, who is the suspect, and what becomes of a step before
// which a parameter has changed in the memory of one rank.
#include "runtime/integrity/parameter_check.h"

#include <gmock/gmock.h>

#include <atomic>
#include <bit>
#include <map>
#include <mutex>
#include <set>

#include "tests/support/worker_rig.h"

namespace holdfast::test {
namespace {

constexpr std::array<ParameterSet, parameter_set_count> all_sets = {
    ParameterSet::sliced, ParameterSet::replicated, ParameterSet::frozen_sliced,
    ParameterSet::frozen_replicated};

// Returns the sum of the terms of all ranks, where that of a rank is digest_of(set, coordinate).
using DigestOfRank = std::function<Digest(ParameterSet, const MeshCoordinate&)>;
Digest sum_of_terms(const MeshShape& shape, const DigestOfRank& digest_of) {
  Digest sum;
  for (int rank = 0; rank < shape.active(); ++rank) {
    const MeshCoordinate coordinate = Mesh(shape).coordinate_of(rank);
    for (const ParameterSet set : all_sets)
      sum += agreement_term(agreement_place(set, shape, coordinate), digest_of(set, coordinate));
  }
  return sum;
}

// Digests that are another one in each group.
Digest alike(ParameterSet set, const MeshCoordinate& at) {
  const auto key = static_cast<std::uint64_t>(set) * 100 + static_cast<std::uint64_t>(at.pipeline) * 10 +
                   (is_replicated(set) ? 0 : static_cast<std::uint64_t>(at.tensor));
  return {.high = (key + 1) * 0x123456789abcdefULL, .low = ~key * 0xfedcba987654321ULL};
}

constexpr MeshShape shapes[] = {{.data = 1},
                                {.data = 2},
                                {.data = 3},
                                {.data = 1, .pipeline = 2, .tensor = 2},
                                {.data = 2, .pipeline = 2, .tensor = 2},
                                {.data = 5, .pipeline = 1, .tensor = 4}};

TEST(ParameterTerms, AddUpToNothingWhereAllAgree) {
  for (const MeshShape& shape : shapes) EXPECT_EQ(sum_of_terms(shape, alike), Digest{}) << shape.active();
}

TEST(ParameterTerms, AreNothingForOneMember) {
  for (const ParameterSet set : all_sets)
    EXPECT_EQ(agreement_term(agreement_place(set, {}, {}), {.high = 1, .low = 2}), Digest{});
}

TEST(ParameterTerms, ShowEachBitOfEachMember) {
  for (const MeshShape& shape : shapes) {
    for (int wrong = 0; wrong < shape.active(); ++wrong) {
      const MeshCoordinate at = Mesh(shape).coordinate_of(wrong);
      for (const ParameterSet wrong_set : all_sets) {
        if (agreement_place(wrong_set, shape, at).members == 1) continue;
        for (int bit = 0; bit < 32; ++bit) {  // an element has so many
          const auto one_differs = [&](ParameterSet set, const MeshCoordinate& coordinate) {
            Digest digest = alike(set, coordinate);
            if (set == wrong_set && coordinate == at)
              digest += {.high = 1ULL << bit, .low = 0 - (1ULL << bit)};
            return digest;
          };
          const Digest sum = sum_of_terms(shape, one_differs);
          EXPECT_NE(sum.high, 0U) << wrong << " bit " << bit;
          EXPECT_NE(sum.low, 0U) << wrong << " bit " << bit;
        }
      }
    }
  }
}

TEST(ParameterTerms, DoNotCancelWhereTwoRanksDifferAlike) {
  const MeshShape shape{.data = 3, .pipeline = 2, .tensor = 2};
  for (int first = 0; first < shape.active(); ++first) {
    for (int second = 0; second < first; ++second) {
      for (const std::uint64_t sign : {std::uint64_t{1}, ~std::uint64_t{0}}) {
        const auto two_differ = [&](ParameterSet set, const MeshCoordinate& coordinate) {
          Digest digest = alike(set, coordinate);
          if (set != ParameterSet::sliced) return digest;
          const int rank = Mesh(shape).rank_at(coordinate);
          if (rank == first) digest += {.high = 4096, .low = 4096};
          if (rank == second) digest += {.high = 4096 * sign, .low = 4096 * sign};
          return digest;
        };
        EXPECT_NE(sum_of_terms(shape, two_differ), Digest{}) << first << " " << second;
      }
    }
  }
}

ParameterRecords records_of(const MeshShape& shape) {
  ParameterRecords records;
  for (int rank = 0; rank < shape.active(); ++rank) {
    const MeshCoordinate at = Mesh(shape).coordinate_of(rank);
    CheckRecord<HeldParameters>& record = records.emplace_back();
    record.rank = rank;
    record.data = at.data;
    record.pipeline = at.pipeline;
    record.tensor = at.tensor;
    for (const ParameterSet set : all_sets)
      record.found.sets[static_cast<std::size_t>(set)] = to_hex(alike(set, at));
  }
  return records;
}

TEST(ParameterSuspects, IsWithTheOneThatTheOthersContradict) {
  using testing::ElementsAre;
  ParameterRecords three = records_of({.data = 3});
  EXPECT_THAT(attribute(three).affected, testing::IsEmpty());
  three[1].found.sets[1] = "other";
  EXPECT_THAT(attribute(three).ranks, ElementsAre(1));
  EXPECT_THAT(attribute(three).affected, ElementsAre(0, 1, 2));
  EXPECT_FALSE(attribute(three).in_frozen);
  three[2].found.sets[1] = "another";
  EXPECT_THAT(attribute(three).ranks, testing::IsEmpty()) << "no majority";

  ParameterRecords grid = records_of({.data = 3, .pipeline = 2, .tensor = 2});
  grid[7].found.sets[0] = "other";
  EXPECT_THAT(attribute(grid).ranks, ElementsAre(7));
  EXPECT_THAT(attribute(grid).affected, ElementsAre(3, 7, 11)) << "of that slice";
  grid[7].found.sets[0] = grid[3].found.sets[0];
  grid[8].found.sets[1] = "other";
  EXPECT_THAT(attribute(grid).ranks, ElementsAre(8));
  EXPECT_THAT(attribute(grid).affected, ElementsAre(0, 1, 4, 5, 8, 9)) << "of that stage";
}

TEST(ParameterSuspects, OfTwoIsUnknownButForFrozenTensors) {
  using testing::ElementsAre;
  ParameterRecords two = records_of({.data = 2});
  two[0].found.sets[1] = "other";
  EXPECT_THAT(attribute(two).ranks, testing::IsEmpty());
  two = records_of({.data = 2});
  two[0].found.sets[3] = "other";
  EXPECT_TRUE(attribute(two).in_frozen);
  EXPECT_THAT(attribute(two).ranks, testing::IsEmpty());
  two[0].found.frozen_changed = true;
  EXPECT_THAT(attribute(two).ranks, ElementsAre(0));
  ParameterRecords one = records_of({.data = 1});
  one[0].found.frozen_changed = true;
  EXPECT_TRUE(attribute(one).in_frozen);
  EXPECT_THAT(attribute(one).ranks, ElementsAre(0));
}

// HeldRun is a run of a small model in which parameters of one rank change.
struct HeldRun {
  int ranks = 1, tensor = 1, pipeline = 1;
  int steps = 7;
  std::int64_t audit_every_steps = 3;
  std::string precision = "fp32";
  std::vector<std::string> freeze = {};
  std::string head = "untied";
  // Called on each rank before each step.
  std::function<void(Worker&, int step)> disturb = [](Worker&, int) {};
  // Returns whether the digests of this rank's device come out wrong in this step.
  std::function<bool(int rank, int step)> digests_wrong = [](int, int) { return false; };
};

struct HeldOutcome {
  Digest weights = {}, loss = {};
  std::vector<VerdictEvent> verdicts = {};
  std::uint64_t ended_at = 0;
  std::vector<int> leaving_ranks = {};
  std::optional<std::uint64_t> trusted_step = {};
  std::vector<HardwareRecord> hardware = {};
};

Config config_of(const HeldRun& run) {
  Config config;
  config.model.layers = 2;
  config.model.heads = 2;
  config.model.width = 32;
  config.model.freeze = run.freeze;
  config.model.head = run.head;
  config.training.steps = 100;
  config.training.sequence_length = 32;
  config.training.microbatch_size = 2;
  config.training.precision = run.precision;
  config.parallel.lanes = 4;
  config.parallel.tensor = run.tensor;
  config.parallel.tensor_lanes = 2;
  config.parallel.pipeline = run.pipeline;
  config.verdict.audit_every_steps = run.audit_every_steps;
  config.verdict.findings_window_ms = 60'000;
  return config;
}

// Devices whose digests are wrong while told so.
class WrongDigests {
 public:
  std::unique_ptr<Device> device() {
    auto wrong = std::make_shared<std::atomic<bool>>(false);
    std::unique_ptr<Device> made =
        make_cpu_device({.threads = 1, .after = [wrong](OpId id, const void* arguments) {
                           if (id == OpId::digest && wrong->load())
                             static_cast<const TensorDigest*>(arguments)->result->sum += 8;
                         }});
    const std::scoped_lock lock(mutex_);
    wrong_[made.get()] = wrong;
    return made;
  }
  void set(const Worker& worker, bool wrong) {
    const std::scoped_lock lock(mutex_);
    wrong_.at(&worker.rank().device)->store(wrong);
  }

 private:
  std::mutex mutex_;
  std::map<const Device*, std::shared_ptr<std::atomic<bool>>> wrong_;
};

HeldOutcome train_held(const HeldRun& run) {
  HeldOutcome outcome;
  WrongDigests digests;
  WorkerRig rig(config_of(run), run.ranks);
  rig.run_on([&] { return digests.device(); },
             [&](Worker& worker) -> Result<void> {
               const int rank = worker.rank().communicator.rank();
               for (int step = 1; step <= run.steps; ++step) {
                 run.disturb(worker, step);
                 digests.set(worker, run.digests_wrong(rank, step));
                 HF_TRY(const StepOutcome made, run_step(worker, {}));
                 HF_TRY_VOID(made.gathers);
                 if (rank == 0 && made.verdict.has_value()) outcome.verdicts.push_back(*made.verdict);
                 if (rank == 0 && made.ends_steps) {
                   outcome.ended_at = made.step;
                   outcome.leaving_ranks = made.leaving_ranks;
                   if (made.rollback.has_value()) outcome.trusted_step = made.rollback->trusted_step;
                 }
                 if (made.ends_steps) break;
               }
               HF_TRY_VOID(worker.parameter_gather().finish());
               if (rank != 0) return {};
               const std::size_t bytes =
                   worker.workload().buckets.parameter_elements() * bytes_of(worker.workload().spec.dtype);
               outcome.weights = digest_of(std::span(worker.stage().parameters(), bytes));
               outcome.loss = worker.state().loss_digest;
               return {};
             });
  outcome.hardware = rig.hardware();
  return outcome;
}

void flip_bytes(void* memory, std::size_t byte, unsigned char bits) {
  static_cast<unsigned char*>(memory)[byte] ^= bits;
}

// Flips the lowest bit of a parameter of the tensor, in the range that the rank itself owns, or in that of another
// replica. Returns false where there is none.
bool flip_parameter(Worker& worker, const std::string& name, bool owned) {
  EXPECT_TRUE(worker.parameter_gather().finish().ok());
  const BucketPlan& plan = worker.workload().buckets;
  std::vector<Segment> segments;
  for (int owner = 0; owner < plan.ranks(); ++owner) {
    if ((owner == worker.rank().coordinate.data) != owned) continue;
    for (const std::vector<Segment>& of_owner : {plan.segments(owner), plan.frozen_segments(owner)})
      segments.insert(segments.end(), of_owner.begin(), of_owner.end());
  }
  for (const Segment& segment : segments) {
    if (!plan.tensor(segment).name.starts_with(name)) continue;
    flip_bytes(worker.stage().parameters(),
               (segment.parameter_offset + segment.elements / 2) * bytes_of(worker.workload().spec.dtype), 1);
    return true;
  }
  return false;
}

// The audit of step 3 is of the first lane of each replica.
TEST(HeldParameters, OfEachRankAreFoundAtTheNextAuditAndHealed) {
  const struct {
    HeldRun run;
    int wrong_rank;
    const char* tensor;
  } cases[] = {{{.ranks = 2}, 0, "layers.1."},
               {{.ranks = 2}, 1, "layers.0."},
               {{.ranks = 3}, 2, "layers.0."},
               {{.ranks = 4, .precision = "bf16"}, 3, "layers.1."},
               {{.ranks = 4, .tensor = 2}, 3, "layers.0."},
               {{.ranks = 8, .tensor = 2}, 6, "layers.1."},
               {{.ranks = 6, .pipeline = 2}, 5, "layers.1."},
               {{.ranks = 6, .pipeline = 2, .head = "tied"}, 4, "embedding."}};
  for (const auto& each : cases) {
    HeldRun run = each.run;
    const HeldOutcome expected = train_held(run);
    EXPECT_TRUE(expected.verdicts.empty());
    run.disturb = [&](Worker& worker, int step) {
      if (step == 3 && worker.rank().communicator.rank() == each.wrong_rank) {
        EXPECT_TRUE(flip_parameter(worker, each.tensor, /*owned=*/false));
      }
    };
    const HeldOutcome found = train_held(run);
    SCOPED_TRACE(fmt::format("{} ranks, tensor {}, pipeline {}, rank {}", run.ranks, run.tensor, run.pipeline,
                             each.wrong_rank));
    EXPECT_EQ(found.weights, expected.weights);
    EXPECT_EQ(found.loss, expected.loss);
    ASSERT_EQ(found.verdicts.size(), 1);
    const VerdictEvent& verdict = found.verdicts[0];
    EXPECT_EQ(verdict.step, 3);
    EXPECT_EQ(verdict.what, "corruption");
    EXPECT_EQ(verdict.of, "state");
    EXPECT_EQ(verdict.action, "redo");
    EXPECT_EQ(verdict.attempts, 2);
    EXPECT_EQ(verdict.rank, each.wrong_rank) << verdict.reason;
    EXPECT_THAT(verdict.reason, testing::HasSubstr(fmt::format("changed in its memory: {}", each.tensor)));
    ASSERT_EQ(found.hardware[0].devices.size(), 1U);
    EXPECT_EQ(found.hardware[0].devices[0].findings[0].what, "memory");
  }
}

TEST(HeldParameters, OfARankThatIsFoundTwiceMakeItLeave) {
  HeldRun run{.ranks = 3, .disturb = [](Worker& worker, int step) {
                if (step % 3 == 0 && worker.rank().communicator.rank() == 2)
                  flip_parameter(worker, "layers.0.", /*owned=*/false);
              }};
  const HeldOutcome found = train_held(run);
  ASSERT_EQ(found.verdicts.size(), 2);
  EXPECT_EQ(found.verdicts[1].action, "evict");
  EXPECT_EQ(found.ended_at, 6);
  EXPECT_THAT(found.leaving_ranks, testing::ElementsAre(2));
  EXPECT_FALSE(found.trusted_step.has_value());
}

// The weights of the owner are compared with what was made or loaded, before a gather could spread them.
TEST(HeldParameters, ThatTheirOwnerHasChangedBeforeTheFirstUpdateTakeTheRunBackToItsBegin) {
  for (const int ranks : {2, 3}) {
    const HeldOutcome found =
        train_held({.ranks = ranks, .audit_every_steps = 1, .disturb = [](Worker& worker, int step) {
                      if (step == 1 && worker.rank().communicator.rank() == 1)
                        flip_parameter(worker, "layers.0.", /*owned=*/true);
                    }});
    EXPECT_EQ(found.ended_at, 1);
    EXPECT_EQ(found.trusted_step, 0U);
    ASSERT_EQ(found.verdicts.size(), 1);
    EXPECT_EQ(found.verdicts[0].action, "evict") << found.verdicts[0].reason;
    EXPECT_EQ(found.verdicts[0].rank, 1);
  }
}

TEST(HeldParameters, ThatDifferAgainMakeTheRankLeaveThatTheOthersContradict) {
  const auto wrong = [](int rank, int step) { return rank == 1 && step >= 6; };
  const HeldOutcome three = train_held({.ranks = 3, .digests_wrong = wrong});
  EXPECT_EQ(three.ended_at, 6);
  ASSERT_EQ(three.verdicts.size(), 1);
  EXPECT_EQ(three.verdicts[0].action, "evict") << three.verdicts[0].reason;
  EXPECT_EQ(three.verdicts[0].rank, 1);
  EXPECT_EQ(three.trusted_step, 3U);
  EXPECT_EQ(three.hardware[0].devices[0].findings[0].what, "lasts");
  const HeldOutcome two = train_held({.ranks = 2, .digests_wrong = wrong});
  ASSERT_EQ(two.verdicts.size(), 1);
  EXPECT_EQ(two.verdicts[0].action, "stop") << two.verdicts[0].reason;
  EXPECT_FALSE(two.verdicts[0].rank.has_value());
}

// They change after the audit of step 3, and no gather heals them.
TEST(HeldParameters, ThatAreFrozenTakeTheRunBackToTheLastAudit) {
  const struct {
    HeldRun run;
    int wrong_rank;
    bool owned;
    const char* action;
  } cases[] = {{{.ranks = 1}, 0, true, "rollback"},
               {{.ranks = 1, .precision = "bf16"}, 0, true, "rollback"},
               {{.ranks = 2}, 0, true, "evict"},
               {{.ranks = 2}, 1, false, "evict"},
               {{.ranks = 2, .tensor = 2}, 1, true, "rollback"},
               {{.ranks = 3, .precision = "bf16"}, 2, false, "evict"}};
  for (const auto& each : cases) {
    HeldRun run = each.run;
    run.freeze = {"layers 0-0"};
    EXPECT_TRUE(train_held(run).verdicts.empty());
    run.disturb = [&](Worker& worker, int step) {
      if (step == 5 && worker.rank().communicator.rank() == each.wrong_rank) {
        EXPECT_TRUE(flip_parameter(worker, "layers.0.", each.owned));
      }
    };
    const HeldOutcome found = train_held(run);
    SCOPED_TRACE(fmt::format("{} ranks, rank {}", run.ranks, each.wrong_rank));
    EXPECT_EQ(found.ended_at, 6);
    const bool is_state = each.owned && run.precision == "fp32";  // the optimizer's comparison says so
    EXPECT_EQ(found.trusted_step, is_state ? 2U : 3U);
    ASSERT_EQ(found.verdicts.size(), 1);
    EXPECT_EQ(found.verdicts[0].action, each.action);
    EXPECT_EQ(found.verdicts[0].rank, each.wrong_rank) << found.verdicts[0].reason;
    EXPECT_THAT(found.verdicts[0].reason,
                testing::ContainsRegex(is_state ? "changed in memory: .*: layers.0."
                                                : "changed in its memory: layers.0."));
    EXPECT_THAT(found.verdicts[0].reason,
                testing::HasSubstr(is_state ? "step 2 or before" : "step 3 or before"));
  }
}

}  // namespace
}  // namespace holdfast::test
