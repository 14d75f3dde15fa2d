// Counts what a step launches: products by formulas, heads by their chunks, sums over lanes by waves, and
// the ops of a running rank.
#include "runtime/plan/step_ops.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <map>
#include <mutex>
#include <tuple>

#include "tests/support/worker_rig.h"

namespace holdfast::test {
namespace {

const PlannedMachine gpu = {.host_sees_memory = false};

Config resolved_ops_config(Config config) {
  config.run.directory = "unused";
  const Result<void> outcome = resolve_config(config, 256);
  EXPECT_TRUE(outcome.ok()) << outcome.error().message;
  return config;
}

Config gpt2_124m() {
  Config config;
  config.model.preset = "gpt2-124m";
  config.training.steps = 1;
  config.training.precision = "bf16";
  config.training.sequence_length = 1024;
  config.training.microbatch_size = 64;
  config.parallel.lanes = 1;
  return config;
}

Config small_ops_config() {
  Config config;
  config.model.layers = 4;
  config.model.heads = 2;
  config.model.width = 64;
  config.training.steps = 10;
  config.training.sequence_length = 16;
  config.training.microbatch_size = 2;
  config.training.microbatches_per_lane = 2;
  config.parallel.lanes = 4;
  return config;
}

StepOps ops_of(const Config& config, int ranks = 1, int rank = 0) {
  Result<StepOps> step = step_ops(posix_env(), config, ranks, rank, gpu);
  HF_CHECK(step.ok(), "{}", step.error().message);
  return std::move(step).value();
}

using Choice = std::function<bool(const StepOp&)>;

std::int64_t calls(
    const StepOps& step, OpId id, const Choice& choice = [](const StepOp&) { return true; }) {
  std::int64_t count = 0;
  for (const StepOp& op : step.ops) count += op.id == id && choice(op) ? op.calls : 0;
  return count;
}

double flops(const StepOps& step, OpId id) {
  double sum = 0.0;
  for (const StepOp& op : step.ops) sum += op.id == id ? op.cost.flops * static_cast<double>(op.calls) : 0.0;
  return sum;
}

// Every product with a matrix of weights is made three times; of attention's pairs two products are made
// forward and five backward.
TEST(StepOps, ProductsOfGpt2FollowTheFormula) {
  const Config config = resolved_ops_config(gpt2_124m());
  const ModelSpec spec = make_model_spec(config);
  const StepOps step = ops_of(config);
  const double rows = 64.0 * 1024.0, width = 768.0, layers = 12.0;
  const double weights = layers * 12.0 * width * width + static_cast<double>(spec.padded_vocabulary) * width;
  EXPECT_DOUBLE_EQ(flops(step, OpId::matmul), 6.0 * weights * rows);
  const double pairs = 64.0 * 1024.0 * 1025.0 / 2.0;
  EXPECT_DOUBLE_EQ(flops(step, OpId::attention_forward), layers * 2.0 * 2.0 * pairs * width);
  EXPECT_DOUBLE_EQ(flops(step, OpId::attention_backward), layers * 5.0 * 2.0 * pairs * width);
}

TEST(StepOps, TheHeadIsCalledForEveryChunkOfRows) {
  const StepOps step = ops_of(resolved_ops_config(gpt2_124m()));
  const auto loss = std::ranges::find(step.ops, OpId::cross_entropy, &StepOp::id);
  ASSERT_NE(loss, step.ops.end());
  const std::int64_t chunk = loss->arguments["rows"].get<std::int64_t>(), chunks = 64 * 1024 / chunk;
  EXPECT_EQ(loss->calls, chunks);
  const auto of_head = [](const StepOp& op) {
    const Json& sizes = op.arguments;
    return sizes["m"] == 50304 || sizes["n"] == 50304 || sizes["k"] == 50304;
  };
  EXPECT_EQ(calls(step, OpId::matmul, of_head), 3 * chunks);
  EXPECT_EQ(calls(step, OpId::matmul, [&](const StepOp& op) { return !of_head(op); }), 3 * 4 * 12);
  // The first chunk writes the gradient of the weights, the others add to it.
  EXPECT_EQ(calls(step, OpId::matmul, [](const StepOp& op) { return op.arguments["accumulate"] == true; }),
            chunks - 1);
  EXPECT_EQ(calls(step, OpId::adamw), 1);
  EXPECT_EQ(step.gradient_blocks, 30458U);
}

TEST(StepOps, LaterMicrobatchesAndLanesAddToGradients) {
  Config config = small_ops_config();
  config.training.microbatches_per_lane = 3;
  const StepOps step = ops_of(resolved_ops_config(config));
  EXPECT_EQ(step.lanes, 4);
  EXPECT_EQ(calls(step, OpId::attention_backward), 4 * 4 * 3);
  const auto accumulates = [](const StepOp& op) {
    return op.arguments["transpose_a"] == true && op.arguments["accumulate"] == true;
  };
  const auto writes = [](const StepOp& op) {
    return op.arguments["transpose_a"] == true && op.arguments["accumulate"] == false;
  };
  EXPECT_EQ(calls(step, OpId::matmul, accumulates), 2 * calls(step, OpId::matmul, writes));
  EXPECT_GT(calls(step, OpId::accumulate), 0);
}

using Counts = std::map<OpId, std::int64_t>;

// Counts one step of all ranks.
Counts running_counts(const Config& config, int ranks) {
  WorkerRig rig(config, ranks);
  std::mutex mutex;
  std::atomic<bool> in_step = false;
  Counts counts;
  rig.run(
      [&](Worker& worker) -> Result<void> {
        worker.rank().device.synchronize();
        HF_TRY_VOID(barrier(worker.rank().communicator, worker.rank().waiter));
        in_step = true;
        const Result<StepOutcome> outcome = run_step(worker, {});
        EXPECT_TRUE(outcome.ok());
        HF_TRY_VOID(worker.parameter_gather().finish());
        worker.rank().device.synchronize();
        HF_TRY_VOID(barrier(worker.rank().communicator, worker.rank().waiter));
        in_step = false;
        return {};
      },
      [&](OpId id) {
        if (!in_step) return;
        const std::lock_guard lock(mutex);
        ++counts[id];
      });
  return counts;
}

TEST(StepOps, AreThoseOfRunningRanks) {
  using Ranks = std::pair<int, int>;  // and how many stages they have
  for (const std::string recompute : {"none", "full"}) {
    for (const auto& [ranks, stages] : {Ranks(1, 1), Ranks(2, 1), Ranks(3, 1), Ranks(2, 2), Ranks(4, 2)}) {
      Config config = small_ops_config();
      config.training.recompute = recompute;
      config.parallel.pipeline = stages;
      const Counts running = running_counts(config, ranks);
      Counts planned;
      for (int rank = 0; rank < ranks; ++rank) {
        const Result<StepOps> step = step_ops(posix_env(), resolved_ops_config(config), ranks, rank, {});
        ASSERT_TRUE(step.ok()) << step.error().message;
        for (const StepOp& op : step->ops) planned[op.id] += op.calls;
      }
      EXPECT_FALSE(running.empty());
      EXPECT_EQ(planned, running) << ranks << " ranks, " << stages << " stages, recompute " << recompute;
    }
  }
}

// All ranks together multiply in any layout what one rank alone does.
TEST(StepOps, RanksOfAnyLayoutShareTheProducts) {
  Config config = small_ops_config();
  config.parallel.tensor_lanes = 2;
  const double alone = flops(ops_of(resolved_ops_config(config)), OpId::matmul);
  config.parallel.pipeline = 2;
  config.parallel.tensor = 2;
  double shared = 0.0;
  for (int rank = 0; rank < 8; ++rank)
    shared += flops(ops_of(resolved_ops_config(config), 8, rank), OpId::matmul);
  EXPECT_DOUBLE_EQ(shared, alone);
}

TEST(StepOps, NoTableOfTheOptimizerIsReadFromTheDevice) {
  const std::tuple<const char*, OpId, std::uint64_t> rules[] = {{"adamw", OpId::adamw, 16},
                                                                {"lion", OpId::lion, 12}};
  for (const auto& [name, op, bytes] : rules) {
    Config config = gpt2_124m();
    config.optimizer.name = name;
    const StepOps step = ops_of(resolved_ops_config(config));
    const auto update = std::ranges::find(step.ops, op, &StepOp::id);
    ASSERT_NE(update, step.ops.end());
    EXPECT_EQ(update->shape, "124475904 in 148 tensors");
    const std::uint64_t digests = 15229 * sizeof(Digest);  // of the gradient, one for each block
    EXPECT_EQ(update->cost.bytes_read, bytes * 124475904U + digests);
  }
}

TEST(StepOps, JsonHasWhatAPredictionNeeds) {
  const Json json = step_ops_json(ops_of(resolved_ops_config(gpt2_124m())));
  EXPECT_EQ(json["tokens"], 65536);
  EXPECT_EQ(json["microbatches"], 1);
  EXPECT_EQ(json["padded_vocabulary"], 50304);
  const auto attention =
      std::ranges::find_if(json["ops"], [](const Json& op) { return op["op"] == "attention_forward"; });
  ASSERT_NE(attention, json["ops"].end());
  EXPECT_EQ((*attention)["calls"], 12);
  EXPECT_EQ((*attention)["arguments"]["head_size"], 64);
  EXPECT_EQ((*attention)["arguments"]["kv_heads"], 12);
  EXPECT_EQ((*attention)["arguments"]["first_key"], false);
  EXPECT_EQ((*attention)["arguments"]["dtype"], "bf16");
}

TEST(StepOps, TextCountsLaunchesAndProducts) {
  const StepOps step = ops_of(resolved_ops_config(small_ops_config()));
  std::int64_t launches = 0;
  for (const StepOp& op : step.ops) launches += op.calls;
  EXPECT_NE(step_ops_text(step).find(fmt::format("\n{} launches of ops, ", launches)), std::string::npos)
      << step_ops_text(step);
}

}  // namespace
}  // namespace holdfast::test
