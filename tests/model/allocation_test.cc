// After planning, launching and running a microbatch allocates nothing: counted at operator new, which this
// program replaces, on the launching thread and, by the op that runs, on the device's threads.
// Sanitizers bring their own operator new and do not count.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cmath>

#include "tests/support/model_rig.h"
#include "tests/support/replaced_new.h"

namespace {

constexpr std::size_t op_count = static_cast<std::size_t>(holdfast::kernels::OpId::count);
constexpr std::size_t matmul = static_cast<std::size_t>(holdfast::kernels::OpId::matmul);
std::atomic<bool> counting{false};
std::atomic<std::size_t> running_op{op_count};  // op_count: none yet
std::array<std::atomic<int>, op_count + 1> allocations_of_op;
std::array<std::atomic<std::size_t>, op_count + 1> largest_bytes_of_op;
std::atomic<int> allocations_of_launcher;
thread_local bool is_launcher = false;

}  // namespace

void holdfast::test::note_allocation(std::size_t bytes) noexcept {
  if (!counting) return;
  if (is_launcher) {
    ++allocations_of_launcher;
    return;
  }
  ++allocations_of_op[running_op];
  std::atomic<std::size_t>& largest = largest_bytes_of_op[running_op];
  std::size_t seen = largest;
  while (bytes > seen && !largest.compare_exchange_weak(seen, bytes)) {
  }
}

namespace holdfast::test {
namespace {

class NullObserver final : public BucketObserver {
 public:
  void bucket_launched(int) override {}
};

class AllocationTest : public testing::TestWithParam<std::tuple<const char*, const char*, Recompute>> {};

TEST_P(AllocationTest, NothingIsAllocatedAfterPlanning) {
  Config config;
  const bool llama = std::get<0>(GetParam()) == std::string("llama");
  config.model = {.preset = "",
                  .style = std::get<0>(GetParam()),
                  .layers = 2,
                  .heads = 4,
                  .kv_heads = llama ? 2 : 4,
                  .width = 64,
                  .feed_forward = 160,
                  .vocabulary = 97,
                  .head = llama ? "untied" : "tied",
                  .positions = 32};
  config.training.precision = std::get<1>(GetParam());
  constexpr BatchShapeBT shape{.batch = 2, .sequence_length = 32};
  ModelRig rig(make_model_spec(config), shape,
               {.threads = 3,
                .observer = [](OpId id) { running_op = static_cast<std::size_t>(id); },
                .recompute = std::get<2>(GetParam())});
  rig.set_initial_weights(1);
  rig.set_tokens(random_tokens(shape.rows(), 97, 1), random_tokens(shape.rows(), 97, 2));
  NullObserver observer;
  const BackwardOptions options{.gradient_scale = 1.0F / 64.0F, .observer = &observer};
  const BackwardOptions again{.accumulate = true, .gradient_scale = 1.0F / 64.0F, .observer = &observer};
  rig.device().begin_planning();
  EXPECT_TRUE(rig.model().forward_backward(rig.device(), rig.tokens(), rig.loss_sum(), options).ok());
  EXPECT_TRUE(rig.model().forward_backward(rig.device(), rig.tokens(), rig.loss_sum(), again).ok());
  ASSERT_TRUE(rig.device().end_planning().ok());

  for (const bool first_run : {true, false}) {
    SCOPED_TRACE(first_run ? "first run" : "second run");
    allocations_of_launcher = 0;
    for (std::atomic<int>& count : allocations_of_op) count = 0;
    for (std::atomic<std::size_t>& largest : largest_bytes_of_op) largest = 0;
    is_launcher = counting = true;
    EXPECT_TRUE(rig.model().forward_backward(rig.device(), rig.tokens(), rig.loss_sum(), options).ok());
    EXPECT_TRUE(rig.model().forward_backward(rig.device(), rig.tokens(), rig.loss_sum(), again).ok());
    rig.device().synchronize();
    is_launcher = counting = false;

    EXPECT_TRUE(std::isfinite(*rig.loss_sum()));
    EXPECT_EQ(allocations_of_launcher, 0);
    for (std::size_t op = 0; op <= op_count; ++op) {
      if (op == matmul) continue;
      EXPECT_EQ(allocations_of_op[op], 0) << (op < op_count ? name_of(static_cast<OpId>(op)) : "between ops");
    }
    if (!first_run) {
      EXPECT_LE(largest_bytes_of_op[matmul], 256u);
    }
  }
}

TEST(AllocationCounter, SeesAnAllocation) {
  allocations_of_launcher = 0;
  is_launcher = counting = true;
  delete new volatile int(1);
  is_launcher = counting = false;
  EXPECT_EQ(allocations_of_launcher, 1);
}

INSTANTIATE_TEST_SUITE_P(Models, AllocationTest,
                         testing::Combine(testing::Values("gpt2", "llama"), testing::Values("fp32", "bf16"),
                                          testing::Values(Recompute::none, Recompute::selective,
                                                          Recompute::full)),
                         [](const auto& test) {
                           return fmt::format("{}_{}_{}", std::get<0>(test.param), std::get<1>(test.param),
                                              name_of(std::get<2>(test.param)));
                         });

}  // namespace
}  // namespace holdfast::test

#endif
