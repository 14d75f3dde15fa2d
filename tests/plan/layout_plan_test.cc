// What a plan says of a layout: bytes are the running rank's, time follows from the prices, and the search
// finds what fits.
#include "runtime/plan/layout_plan.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>

#include "runtime/device/counting_device.h"
#include "runtime/plan/layout_search.h"
#include "runtime/plan/plan_report.h"
#include "tests/support/worker_rig.h"

namespace holdfast::test {
namespace {

Config small_config() {
  Config config;
  config.model.layers = 4;
  config.model.heads = 2;
  config.model.width = 64;
  config.training.steps = 10;
  config.training.sequence_length = 16;
  config.training.microbatch_size = 2;
  config.training.microbatches_per_lane = 2;
  config.parallel.lanes = 4;
  config.checkpoint.every_steps = config.checkpoint.ram_every_steps = 0;
  return config;
}

Config resolved(Config config) {
  config.run.directory = "unused";
  EXPECT_TRUE(resolve_config(config, 256).ok());
  return config;
}

// 1 GFLOP/s, and memory so fast that only products take time.
const PeakPrices products_alone(1e9, 1e30, "products");

LayoutPlan planned(const Config& config, int ranks, const PlannedMachine& machine) {
  Result<LayoutPlan> plan = plan_layout(posix_env(), config, ranks, machine);
  HF_CHECK(plan.ok(), "{}", plan.error().message);
  return std::move(plan).value();
}

TEST(LayoutPlan, BytesOfEveryRankAreThoseOfTheRunningOne) {
  Config config = small_config();
  config.parallel.pipeline = 2;
  config.training.precision = "bf16";
  WorkerRig rig(config, 4);
  const std::unique_ptr<Device> kernels = make_counting_cpu_device({.threads = 1});
  const PlannedMachine machine{.kernels = kernels.get()};
  const LayoutPlan plan = planned(rig.config(), 4, machine);
  ASSERT_EQ(plan.ranks.size(), 4U);
  rig.run([&](Worker& worker) -> Result<void> {
    const auto coordinate = std::ranges::find(plan.ranks, worker.rank().coordinate, &RankPlan::coordinate);
    EXPECT_NE(coordinate, plan.ranks.end());
    if (coordinate == plan.ranks.end()) return {};
    for (std::size_t i = 0; i < memory_class_count; ++i) {
      const auto memory_class = static_cast<MemoryClass>(i);
      EXPECT_EQ(coordinate->class_bytes[i], worker.memory_plan().total_bytes(memory_class))
          << name_of(memory_class);
    }
    EXPECT_EQ(coordinate->kernel_bytes, worker.rank().device.workspace_bytes());
    EXPECT_EQ(coordinate->needed_bytes(machine),
              worker.memory_plan().total_bytes() + worker.rank().device.workspace_bytes());
    return {};
  });
}

// A stage in the middle of a pipeline has what its own layers need, and not what another one's do.
TEST(LayoutPlan, KernelsThatAreChosenByLayerHaveTheMemoryOfTheirStage) {
  Config config = small_config();
  config.parallel.pipeline = 4;
  config.kernels.shadows = {
      {.op = "matmul", .layers = "2", .where = {}, .use = "portable", .every_steps = 1}};
  const std::unique_ptr<Device> kernels = make_counting_cpu_device(
      {.threads = 1,
       .kernels = {
           {.op = OpId::matmul, .name = "portable", .key = "kernels.shadow[0]", .layers = "2", .every = 1}}});
  const LayoutPlan plan = planned(resolved(config), 4, {.kernels = kernels.get()});
  const auto bytes_of = [&plan](int stage) {
    return std::ranges::find(plan.ranks, stage, [](const RankPlan& rank) { return rank.coordinate.pipeline; })
        ->kernel_bytes;
  };
  EXPECT_GT(bytes_of(2), bytes_of(1)) << "copies of what products of layer 2 write";
}

// Three slots for each rank, in the memory that the ranks share.
void expect_snapshots_of_running_ranks(const char* optimizer) {
  Config config = small_config();
  config.optimizer.name = optimizer;
  config.checkpoint.ram_every_steps = CheckpointConfig::interval_auto;
  WorkerRig rig(config, 2);
  const LayoutPlan plan = planned(rig.config(), 2, {});
  std::array<std::uint64_t, 2> running{};
  rig.run([&](Worker& worker) -> Result<void> {
    running[static_cast<std::size_t>(worker.rank().communicator.rank())] =
        worker.state_view().snapshots.shared_bytes();
    return {};
  });
  const std::uint64_t slots = 3 * sizeof(float) * parameter_count(make_model_spec(rig.config()));
  const auto kinds = 1 + static_cast<std::uint64_t>(config.optimizer.moment_count());
  EXPECT_GT(running[0] + running[1], kinds * slots);
  EXPECT_LT(running[0] + running[1], (kinds + 1) * slots);
  for (std::size_t rank = 0; rank < 2; ++rank) EXPECT_EQ(plan.ranks[rank].shared_bytes, running[rank]);
  EXPECT_EQ(plan.shared_bytes(), running[0] + running[1]);
  EXPECT_EQ(plan.ranks[0].needed_bytes({}),
            plan.ranks[0].bytes_by_kind[0] + plan.ranks[0].bytes_by_kind[1] + running[0]);
  const auto reported = [&](std::uint64_t free_bytes) {
    return plan_text({.layout = plan, .smaller = {}}, {.shared_bytes = free_bytes});
  };
  EXPECT_EQ(reported(1ULL << 40).find("DO NOT FIT"), std::string::npos);
  EXPECT_NE(reported(1ULL << 40).find("RAM snapshots: "), std::string::npos);
  EXPECT_NE(reported(plan.shared_bytes() - 1).find("DO NOT FIT"), std::string::npos);
  EXPECT_NE(reported(1ULL << 40).find("the program itself: at most 64.00 MiB more of a rank"),
            std::string::npos);
  config.checkpoint.ram_every_steps = 0;
  EXPECT_EQ(planned(resolved(config), 2, {}).shared_bytes(), 0U);
}

TEST(LayoutPlan, RamSnapshotsAreThoseOfTheRunningRanks) {
  for (const char* const optimizer : {"adamw", "lion"}) expect_snapshots_of_running_ranks(optimizer);
}

// Products of forward and backward are counted by the op, those of attention's backward five times of which
// one is recomputed; the model's own count knows matmuls and attention once.
TEST(LayoutPlan, ProductsOfAStepTakeTheTimeOfTheirFlops) {
  const Config config = resolved(small_config());
  const LayoutPlan plan = planned(config, 1, {.prices = &products_alone});
  const double flops = flops_per_token(make_model_spec(config), config.training.sequence_length) *
                       static_cast<double>(plan.tokens_per_step());
  ASSERT_TRUE(plan.time.has_value());
  EXPECT_NEAR(plan.time->compute, flops * 1e-9, 0.05 * flops * 1e-9);
  EXPECT_NEAR(plan.time->seconds(), plan.time->compute, 1e-12);
}

TEST(LayoutPlan, RecomputingTakesLongerAndLess) {
  Config config = resolved(small_config());
  const LayoutPlan keeps = planned(config, 1, {.prices = &products_alone});
  config.training.recompute = "full";
  const LayoutPlan recomputes = planned(config, 1, {.prices = &products_alone});
  EXPECT_GT(recomputes.time->compute, 1.1 * keeps.time->compute);
  EXPECT_LT(recomputes.largest({}).needed_bytes({}), keeps.largest({}).needed_bytes({}));
}

TEST(LayoutPlan, ReplicasShareTheLanesAndStagesHaveABubble) {
  Config config = resolved(small_config());
  const double alone = planned(config, 1, {.prices = &products_alone}).time->compute;
  EXPECT_NEAR(planned(config, 2, {.prices = &products_alone}).time->compute, alone / 2.0, 1e-9 * alone);
  config.parallel.pipeline = 2;
  const LayoutPlan stages = planned(config, 2, {.prices = &products_alone});
  EXPECT_GT(stages.bubble_share, 1.0 / 9.0 - 1e-9) << "8 microbatches in 2 equal stages idle 1 / (8 + 1)";
  EXPECT_LT(stages.bubble_share, 0.3);
  EXPECT_GT(stages.time->compute + stages.time->bubble, alone / 2.0);
}

// Four ranks on two processors need the time of two.
TEST(LayoutPlan, RanksThatShareProcessorsWait) {
  const Config config = resolved(small_config());
  const LayoutPlan own = planned(config, 4, {.prices = &products_alone});
  const LayoutPlan shared = planned(config, 4, {.ranks_at_once = 2, .prices = &products_alone});
  EXPECT_NEAR(shared.time->seconds(), 2.0 * own.time->seconds(), 1e-9 * own.time->seconds());
}

TEST(LayoutPlan, SendingTakesTimeWhereTheLinkIsKnown) {
  const Config config = resolved(small_config());
  const LayoutPlan plan = planned(config, 2, {.prices = &products_alone, .link_bytes_per_second = 1e6});
  EXPECT_NEAR(plan.time->communication,
              static_cast<double>(plan.ranks.front().traffic.all().bytes_received) * 1e-6, 1e-9);
  EXPECT_EQ(plan.time->hidden.sum(), 0.0) << "the processors that compute copy it";
}

TEST(LayoutPlan, LayoutsThatCannotRunHaveASentence) {
  const Result<LayoutPlan> plan = plan_layout(posix_env(), resolved(small_config()), 5, {});
  ASSERT_FALSE(plan.ok());
  EXPECT_EQ(plan.error().code, ExitCode::config);
  EXPECT_NE(plan.error().message.find("lanes"), std::string::npos) << plan.error().message;
}

TEST(LayoutSearch, TheFastestThatFitsComesFirst) {
  const Config config = resolved(small_config());
  const LayoutSearch search = search_layouts(posix_env(), config, 4, {.prices = &products_alone});
  ASSERT_EQ(search.plans.size(), 3U) << "4 x 1, 2 x 2 and 1 x 4";
  EXPECT_EQ(search.plans.front().shape.data, 4) << "replicas have no bubble";
  for (std::size_t i = 1; i < search.plans.size(); ++i) {
    EXPECT_LE(search.plans[i - 1].time->seconds(), search.plans[i].time->seconds());
  }
}

// A rank has less than any layout needs without recomputing: a few bytes less.
TEST(LayoutSearch, RecomputesWhereNothingElseFits) {
  const Config config = resolved(small_config());
  PlannedMachine machine{.prices = &products_alone};
  std::uint64_t least = ~std::uint64_t{0};
  for (const LayoutPlan& plan : search_layouts(posix_env(), config, 2, machine).plans) {
    least = std::min(least, plan.largest(machine).needed_bytes(machine));
  }
  machine.rank_bytes = least - 1;
  const LayoutSearch search = search_layouts(posix_env(), config, 2, machine);
  ASSERT_FALSE(search.plans.empty());
  for (const LayoutPlan& plan : search.plans) {
    EXPECT_NE(plan.config.training.recompute, "none");
    EXPECT_TRUE(plan.fits(machine));
  }
}

struct Found {
  std::string settings;
  double seconds = 0.0;
};

// Plans every candidate: of each shape the fastest schedule with the first recomputation that fits.
std::vector<Found> all_layouts(const Config& config, int ranks, const PlannedMachine& machine) {
  std::vector<Found> found;
  for (int pipeline = 1; pipeline <= static_cast<int>(config.model.layers) + 2; ++pipeline) {
    for (int tensor = 1; tensor <= static_cast<int>(config.parallel.tensor_lanes); tensor *= 2) {
      std::optional<LayoutPlan> best;
      for (const std::string schedule : {"1f1b", "zero_bubble", "interleaved"}) {
        for (int chunks = schedule == "interleaved" ? 2 : 1; chunks <= (schedule == "interleaved" ? 4 : 1);
             ++chunks) {
          if (pipeline == 1 && schedule != "1f1b") continue;
          if (chunks > 1 && chunks * pipeline > static_cast<int>(config.model.layers)) continue;
          for (const char* recompute : {"none", "selective", "full"}) {
            Config changed = config;
            changed.parallel.pipeline = pipeline;
            changed.parallel.tensor = tensor;
            changed.parallel.pipeline_schedule = schedule;
            changed.parallel.pipeline_chunks = chunks;
            changed.training.recompute = recompute;
            Result<LayoutPlan> plan = plan_layout(posix_env(), changed, ranks, machine);
            if (!plan.ok() || !plan->fits(machine)) continue;
            if (!best.has_value() || plan->time->seconds() < best->time->seconds()) best = *plan;
            break;
          }
        }
      }
      if (best.has_value()) found.push_back({settings_text(layout_settings(*best)), best->time->seconds()});
    }
  }
  std::ranges::stable_sort(found, {}, &Found::seconds);
  return found;
}

// With memory for all, for some, and for few candidates; with links that hide messages and with none.
TEST(LayoutSearch, FindsWhatPlanningEverythingFinds) {
  Config config = small_config();
  config.model.layers = 6;
  config.parallel.lanes = 8;
  config.parallel.tensor_lanes = 2;
  config = resolved(config);
  for (const bool links : {false, true}) {
    PlannedMachine machine{.prices = &products_alone};
    if (links) {
      machine.ranks_per_host = 4;
      machine.link_bytes_per_second = 3e8;
      machine.host_link_bytes_per_second = 2e9;
      machine.overlaps_messages = true;
    }
    const LayoutPlan one = planned(config, 8, machine);
    for (const double share : {10.0, 0.8, 0.5, 0.3, 0.2}) {
      machine.rank_bytes =
          static_cast<std::uint64_t>(share * static_cast<double>(one.largest(machine).needed_bytes(machine)));
      const std::vector<Found> all = all_layouts(config, 8, machine);
      const LayoutSearch search = search_layouts(posix_env(), config, 8, machine, {.layouts_max = 100});
      ASSERT_EQ(search.plans.size(), all.size()) << links << " " << share;
      for (std::size_t i = 0; i < all.size(); ++i) {
        EXPECT_DOUBLE_EQ(search.plans[i].time->seconds(), all[i].seconds)
            << links << " " << share << " " << i;
        EXPECT_TRUE(search.plans[i].fits(machine));
      }
      const LayoutSearch first = search_layouts(posix_env(), config, 8, machine, {.layouts_max = 1});
      EXPECT_EQ(first.plans.size(), std::min<std::size_t>(1, all.size()));
      if (all.empty()) continue;
      EXPECT_DOUBLE_EQ(first.plans.front().time->seconds(), all.front().seconds);
      EXPECT_LE(first.priced, search.priced) << "what cannot be faster is left alone";
    }
  }
}

Config llama_8b(std::int64_t lanes) {
  Config config;
  config.model.preset = "llama-8b";
  config.run.directory = "unused";
  config.training.steps = 10;
  config.training.sequence_length = 8192;
  config.training.microbatch_size = 1;
  config.training.precision = "bf16";
  config.parallel.lanes = lanes;
  config.parallel.tensor_lanes = 8;
  const Result<void> outcome = resolve_config(config, 128256);
  HF_CHECK(outcome.ok(), "{}", outcome.error().message);
  return config;
}

std::int64_t resident_kib() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss;
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr std::int64_t max_resident_mib = 2'048;  // they keep what was freed
#else
constexpr std::int64_t max_resident_mib = 250;
#endif

// Its state is 90 GiB and a rank's activations are up to 30; what is counted is never touched.
TEST(LayoutSearch, A8bModelOn1024RanksIsCountedNotAllocated) {
  const std::unique_ptr<Device> kernels = make_counting_cpu_device({.threads = 2});
  const PeakPrices peaks(4e14, 3.35e12, "stated");
  PlannedMachine machine{.ranks_per_host = 8, .prices = &peaks, .kernels = kernels.get()};
  machine.rank_bytes = std::uint64_t{80} << 30U;
  machine.link_bytes_per_second = 5e10;
  machine.host_link_bytes_per_second = 4.5e11;
  machine.overlaps_messages = true;
  const std::int64_t before_kib = resident_kib();
  const LayoutSearch search = search_layouts(posix_env(), llama_8b(1024), 1024, machine);
  EXPECT_LT(resident_kib() - before_kib, max_resident_mib * 1024);
  ASSERT_EQ(search.plans.size(), 10U);
  EXPECT_GT(search.tried, 200);
  EXPECT_LT(search.counts.ranks_planned, 1000) << "every stage of every candidate has thousands";
  EXPECT_LT(search.counts.parts_priced, 600);
  EXPECT_GE(search.too_large + search.priced + search.slower, search.tried);
  const std::string text = search_text(search, llama_8b(1024), 1024, machine);
  for (const char* piece : {"MFU", "hidden", "exposed", "why: it takes ", " less than ", "left alone",
                            "the first one: --parallel.data="}) {
    EXPECT_NE(text.find(piece), std::string::npos) << piece << " in " << text;
  }
}

TEST(LayoutSearch, ProposesLaneBlocksOfTheReplicasOfAHost) {
  const auto best = [](MeshShape shape, int lanes, int on_host) {
    LayoutPlan plan{.config = {}, .shape = shape, .ranks = {}, .time = {}};
    plan.config.parallel.lanes = lanes;
    return best_lane_block(plan, {.ranks_per_host = on_host});
  };
  EXPECT_EQ(best({.data = 64}, 64, 8), 8);
  EXPECT_EQ(best({.data = 64}, 128, 8), 8);
  EXPECT_EQ(best({.data = 32, .tensor = 2}, 32, 8), 4);
  EXPECT_EQ(best({.data = 16, .pipeline = 2, .tensor = 4}, 16, 8), 1) << "one replica on a host";
  EXPECT_EQ(best({.data = 8}, 8, 8), 1) << "one host";
  EXPECT_EQ(best({.data = 8}, 8, 0), 1);
  EXPECT_EQ(best({.data = 12}, 12, 8), 4) << "the second host is half full";
  EXPECT_EQ(best({.data = 64}, 68, 8), 4);
}

TEST(LayoutSearch, TellsHowFarItIs) {
  int reported = 0, tried = 0;
  const Config config = resolved(small_config());
  const PlannedMachine machine{.prices = &products_alone};
  search_layouts(posix_env(), config, 4, machine, {.progress = [&](const LayoutSearch& so_far) {
                   ++reported;
                   tried = so_far.tried;
                 }});
  EXPECT_GT(reported, tried);
  EXPECT_GT(tried, 3);
}

TEST(LayoutPlan, TensorGroupsStayInsideAHost) {
  Config config = small_config();
  config.parallel.tensor_lanes = 2;
  config = resolved(config);
  config.parallel.tensor = 2;
  const Result<LayoutPlan> plan =
      plan_layout(posix_env(), config, 4, {.ranks_per_host = 3, .prices = &products_alone});
  ASSERT_FALSE(plan.ok());
  EXPECT_NE(plan.error().message.find("--ranks-per-host is 3"), std::string::npos) << plan.error().message;
  EXPECT_TRUE(plan_layout(posix_env(), config, 4, {.ranks_per_host = 2, .prices = &products_alone}).ok());
}

// A replica on another host keeps a copy of the snapshots, which count.
TEST(LayoutPlan, ReplicasOnOtherHostsCount) {
  Config config = small_config();
  config.checkpoint.ram_every_steps = 1;
  config = resolved(config);
  const std::uint64_t together = planned(config, 2, {}).ranks[0].shared_bytes;
  EXPECT_GT(planned(config, 2, {.ranks_per_host = 1}).ranks[0].shared_bytes, together);
}

TEST(LayoutPlan, MfuIsTheShareOfWhatAllRanksCouldMultiply) {
  const Config config = resolved(small_config());
  const PlannedMachine machine{.prices = &products_alone};
  const LayoutPlan alone = planned(config, 1, machine);
  EXPECT_NEAR(*alone.model_flops_utilization(machine), 1.0, 0.05);
  const LayoutPlan shared = planned(config, 4, {.ranks_at_once = 2, .prices = &products_alone});
  EXPECT_NEAR(*shared.model_flops_utilization({.ranks_at_once = 2, .prices = &products_alone}), 1.0, 0.05);
  EXPECT_EQ(planned(config, 1, {}).model_flops_utilization({}), std::nullopt);
}

TEST(SmallestRemedy, RecomputesBeforeItTakesMoreRanks) {
  Config config = resolved(small_config());
  PlannedMachine machine;
  machine.rank_bytes = planned(config, 1, machine).largest(machine).needed_bytes(machine) - 1;
  const std::optional<Remedy> recompute = smallest_remedy(posix_env(), config, 1, machine);
  ASSERT_TRUE(recompute.has_value());
  EXPECT_EQ(settings_text(recompute->settings), "training.recompute = \"selective\"");
  EXPECT_EQ(recompute->ranks, 1);

  config.training.recompute = "full";
  config.training.microbatch_size = 1;
  machine.rank_bytes = planned(config, 1, machine).largest(machine).needed_bytes(machine) / 2;
  const std::optional<Remedy> more = smallest_remedy(posix_env(), config, 1, machine);
  ASSERT_TRUE(more.has_value());
  EXPECT_GT(more->ranks, 1);
  EXPECT_TRUE(more->plan.fits(machine));
  EXPECT_FALSE(more->new_run);

  machine.rank_bytes = 1;
  EXPECT_FALSE(smallest_remedy(posix_env(), config, 1, machine).has_value());
}

}  // namespace
}  // namespace holdfast::test
