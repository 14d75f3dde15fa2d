// The training loop allocates nothing, also when its spans are recorded: counted at operator new, which this
// program replaces, on all threads of two ranks, over whole steps with their event line and ledger. Not part
// of the promise, and kept out of the counted steps: the console line of every log.every_steps-th step,
// evaluations and checkpoints. What oneDNN allocates inside a matrix product is small and counted apart.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <barrier>

#include "runtime/train/progress.h"
#include "tests/support/replaced_new.h"
#include "tests/support/worker_rig.h"

namespace {

std::atomic<bool> counting{false};
std::atomic<int> allocations{0};
std::atomic<std::size_t> largest_bytes{0}, largest_bytes_in_matmul{0};
thread_local bool in_matmul = false;  // of a device's queue thread, which is its only one here

void raise_to(std::atomic<std::size_t>& largest, std::size_t bytes) {
  std::size_t seen = largest;
  while (bytes > seen && !largest.compare_exchange_weak(seen, bytes)) {
  }
}

}  // namespace

void holdfast::test::note_allocation(std::size_t bytes) noexcept {
  if (!counting) return;
  if (!in_matmul) ++allocations;
  raise_to(in_matmul ? largest_bytes_in_matmul : largest_bytes, bytes);
}

namespace holdfast::test {
namespace {

Config small_config(const std::string& precision) {
  Config config;
  config.model.layers = 2;
  config.model.heads = 4;
  config.model.kv_heads = 2;
  config.model.width = 32;
  config.model.feed_forward = 64;
  config.data.ledger = true;
  config.training.steps = 1000;
  config.training.sequence_length = 24;
  config.training.microbatch_size = config.training.microbatches_per_lane = 2;
  config.training.precision = precision;
  config.parallel.lanes = 3;  // one wave has a rank without a lane
  config.log.every_steps = 1'000'000;
  return config;
}

// One step as the trainer makes it, but for stop requests, evaluations and checkpoints.
Result<void> whole_step(Worker& worker, Progress& progress) {
  const std::int64_t begin_ns = worker.rank().env.monotonic_ns();
  HF_TRY(const StepOutcome outcome, run_step(worker, {}));
  HF_TRY_VOID(worker.ledger()->close_step(outcome.step));
  progress.stepped(outcome, worker.state(), worker.rank().env.monotonic_ns() - begin_ns, {});
  return {};
}

class StepAllocationTest : public testing::TestWithParam<const char*> {};

TEST_P(StepAllocationTest, AStepAllocatesNothing) {
  if (!notes_allocations) GTEST_SKIP() << "sanitizers bring their own operator new";
  constexpr int ranks = 2, warm_up_steps = 5, counted_steps = 5;
  WorkerRig rig(small_config(GetParam()), ranks);
  std::barrier gate(ranks);
  const auto note_op = [](OpId op) { in_matmul = op == OpId::matmul; };
  allocations = 0;
  largest_bytes = largest_bytes_in_matmul = 0;
  const auto body = [&](Worker& worker) -> Result<void> {
    const bool first = worker.rank().communicator.rank() == 0;
    const RunPaths paths{worker.rank().config.run.directory};
    EventQueue log(worker.rank().env, paths.events());
    SourceCounts counts(SampleOrder(1, {{.samples = 1000, .weight = 2.0}, {.samples = 1000, .weight = 1.0}}));
    Progress progress(worker.rank().env, log,
                      {.steps = worker.rank().config.training.steps,
                       .every_steps = worker.rank().config.log.every_steps,
                       .flops_per_token = 0.0,
                       .peak_flops = 0.0,
                       .tokens_per_step = worker.workload().tokens_per_step(),
                       .tokens_per_sample = 1,
                       .source_counts = &counts},
                      first ? Progress::Role::speaks : Progress::Role::silent);
    std::vector<Span> spans(10'000);  // of the last of these steps; recording allocates nothing either
    worker.rank().spans.record_into(spans);
    Result<void> outcome;  // kept, so that no rank waits at the gate for one that returned
    for (int step = 0; step < warm_up_steps + counted_steps; ++step) {
      gate.arrive_and_wait();
      if (first && step == warm_up_steps) counting = true;
      gate.arrive_and_wait();
      if (outcome.ok()) outcome = whole_step(worker, progress);
    }
    gate.arrive_and_wait();
    if (first) counting = false;
    gate.arrive_and_wait();
    worker.rank().spans.record_into({});
    EXPECT_GT(std::ranges::count(spans, SpanKind::backward, &Span::kind), 0);
    return outcome;
  };
  rig.run(body, note_op);
  EXPECT_EQ(allocations, 0) << "in " << counted_steps << " steps of " << ranks << " ranks; the largest has "
                            << largest_bytes << " bytes";
  EXPECT_LE(largest_bytes_in_matmul, 256u);
}

INSTANTIATE_TEST_SUITE_P(Precision, StepAllocationTest, testing::Values("fp32", "bf16"),
                         [](const auto& test) { return std::string(test.param); });

TEST(AllocationCounter, SeesAnAllocation) {
  if (!notes_allocations) GTEST_SKIP() << "sanitizers bring their own operator new";
  allocations = 0;
  in_matmul = false;
  counting = true;
  delete new volatile int(1);
  counting = false;
  EXPECT_EQ(allocations, 1);
}

}  // namespace
}  // namespace holdfast::test
