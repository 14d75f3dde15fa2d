// Kernels that are fast because they do not do the work, and the figures of those that do. What a plug-in may do to its
// process is in tests/system/kernel_test.py.
#include "tools/kernel_kit/kernel_bench.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <map>
#include <set>
#include <thread>
#include <vector>

#include "kernels/activation.h"
#include "kernels/registry.h"
#include "tools/kernel_kit/call_probe.h"

namespace holdfast::test {
namespace {

namespace kit = bench::kernel_kit;
using testing::HasSubstr;
using testing::IsEmpty;

struct Probing {
  bench::OpSample sample{.use = {}, .shape = bench::OpCall(GeluForward{.count = 1000})};
  kit::KernelRunner runner{2};
  kit::QuickRandom random{7};
  std::unique_ptr<kit::BenchMemory> memory = kit::BenchMemory::make(sample).value(),
                                    twin = kit::BenchMemory::make(sample).value();
  Implementation usual = *kernel_registry().find(OpId::gelu_forward, "portable", CpuIsa::portable);
  kit::CallProbe probe{runner, usual, *memory, *twin, random};

  std::string of(void (*run)(const GeluForward& op), const kit::CallProbe::How& how = {}) {
    static void (*running)(const GeluForward& op);
    running = run;
    const Implementation kernel{
        .op = OpId::gelu_forward, .name = "mine", .run = [](const cpu::Context&, const void* arguments) {
          running(*static_cast<const GeluForward*>(arguments));
        }};
    return probe.probe(kernel, how);
  }
};

TEST(CallProbe, BelievesAKernelThatDoesTheWork) {
  Probing probing;
  for (int i = 0; i < 5; ++i)
    EXPECT_THAT(probing.of([](const GeluForward& op) { reference(op); }), IsEmpty());
}

// Two implementations of an op that are right are near enough to each other in every call of a model, again and again.
TEST(CallProbe, BelievesTheKernelsOfThisBuild) {
  const Result<KernelTable> usual = kernel_registry().choose(best_cpu_isa(), {});
  ASSERT_TRUE(usual.ok());
  kit::KernelRunner runner(2);
  kit::QuickRandom random(3);
  std::set<OpId> tried;
  for (const DType dtype : {DType::fp32, DType::bf16}) {
    const Result<std::vector<bench::OpSample>> samples =
        bench::op_samples(posix_env(), dtype, bench::SampleSizes::toy);
    ASSERT_TRUE(samples.ok());
    for (const bench::OpSample& sample : *samples) {
      const OpId op = sample.shape.id();
      const Implementation& best =
          first_that_computes((*usual)[static_cast<std::size_t>(op)].order, sample.shape.arguments());
      const std::unique_ptr<kit::BenchMemory> memory = kit::BenchMemory::make(sample).value(),
                                              twin = kit::BenchMemory::make(sample).value();
      kit::CallProbe probe(runner, best, *memory, *twin, random);
      for (int i = 0; i < 6; ++i) {
        EXPECT_THAT(probe.probe(*kernel_registry().find(op, "portable", CpuIsa::portable),
                                {.renews = i % 3 == 0, .is_cold = i % 2 == 1}),
                    IsEmpty())
            << name_of(op) << " of " << sample.use << ", call " << i;
        memory->renew_updated(random);  // a turn, in which updates in place add up
        for (int call = 0; call < 50; ++call) {
          runner.prepare(best, memory->arguments());
          memory->touch(random);
          runner.run_prepared(best, memory->arguments());
        }
      }
      tried.insert(op);
    }
  }
  EXPECT_EQ(tried.size(), op_count);
}

TEST(CallProbe, FindsAKernelThatComputesNothing) {
  Probing probing;
  EXPECT_THAT(probing.of([](const GeluForward&) {}),
              HasSubstr("it leaves what was there before and computes nothing"));
}

TEST(CallProbe, FindsAKernelThatRemembersResultsByAddress) {
  Probing probing;
  static std::map<void*, std::vector<float>> results;
  results.clear();
  const auto run = [](const GeluForward& op) {
    auto* const y = static_cast<float*>(op.y);
    if (const auto found = results.find(y); found != results.end()) {
      std::ranges::copy(found->second, y);
      return;
    }
    reference(op);
    results[y].assign(y, y + op.count);
  };
  EXPECT_THAT(probing.of(run), IsEmpty());
  EXPECT_THAT(probing.of(run), HasSubstr("it writes the results of an earlier call on the same memory"));
}

// What is compared are calls like those that are timed: a kernel that looks at some elements only sees no difference.
TEST(CallProbe, FindsAKernelThatLooksAtSomeOfItsMemory) {
  Probing probing;
  static float kept;
  const auto left = [](const GeluForward& op) {
    auto* const y = static_cast<float*>(op.y);
    if (std::memcmp(y, &kept, sizeof(kept)) == 0) return;
    reference(op);
    kept = y[0];
  };
  std::string problem;
  for (int i = 0; i < 10 && problem.empty(); ++i) problem = probing.of(left, {.renews = i == 0});
  EXPECT_THAT(problem, HasSubstr("it leaves what was there before and computes nothing, after"));

  static float seen;
  static std::vector<float> results;
  results.clear();
  const auto memo = [](const GeluForward& op) {
    auto* const y = static_cast<float*>(op.y);
    const float now = static_cast<const float*>(op.x)[0];
    if (std::memcmp(&now, &seen, sizeof(now)) == 0 && !results.empty()) {
      std::ranges::copy(results, y);
      return;
    }
    reference(op);
    seen = now;
    results.assign(y, y + op.count);
  };
  Probing other;
  problem.clear();
  for (int i = 0; i < 10 && problem.empty(); ++i) problem = other.of(memo, {.renews = i == 0});
  EXPECT_THAT(problem, HasSubstr("it writes the results of an earlier call on the same memory"));
}

TEST(CallProbe, FindsAKernelThatIsRightAtFirst) {
  Probing probing;
  static int calls;
  calls = 0;
  const auto run = [](const GeluForward& op) {
    reference(op);
    if (++calls > 3) static_cast<float*>(op.y)[op.count / 2] += 0.1F;
  };
  for (int i = 0; i < 3; ++i) EXPECT_THAT(probing.of(run), IsEmpty());
  EXPECT_THAT(
      probing.of(run),
      HasSubstr("it was right in 3 calls that were compared, and is wrong in a later one: element 500 of y"));
}

TEST(CallProbe, FindsWorkAfterTheReturn) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "what it looks for is a data race";
#endif
  Probing probing;
  static std::vector<std::thread> workers;
  static std::atomic<bool> is_read;  // what was there when it returned: the usual implementation comes next
  is_read = false;
  probing.usual.run = [](const cpu::Context&, const void* arguments) {
    is_read = true;
    reference(*static_cast<const GeluForward*>(arguments));
  };
  const auto run = [](const GeluForward& op) {
    workers.emplace_back([op] {
      for (int wait = 0; wait < 500 && !is_read; ++wait) posix_env().sleep_us(100);
      reference(op);
    });
  };
  EXPECT_THAT(probing.of(run), HasSubstr("it goes on writing after launch() has returned"));
  for (std::thread& each : workers) each.join();
  workers.clear();
}

TEST(ProbedBytes, ThatChangeAfterTheReturnAreWorkOfAnotherThread) {
  const std::vector<std::byte> old = {std::byte{1}}, fresh = {std::byte{2}};
  EXPECT_THAT(
      kit::problem_of_probe({.last_call = old, .before = old, .at_return = old, .later = fresh}, "", 4),
      HasSubstr("it goes on writing after launch() has returned"));
  EXPECT_THAT(
      kit::problem_of_probe({.last_call = old, .before = old, .at_return = fresh, .later = fresh}, "", 4),
      IsEmpty());
}

TEST(BenchMemory, HasOtherNumbersForEachCall) {
  Probing probing;
  probing.memory->renew(probing.random);
  probing.twin->copy_from(*probing.memory);
  const auto differs = [&](std::size_t array) {
    return !std::ranges::equal(probing.memory->arrays()[array].content(),
                               probing.twin->arrays()[array].content());
  };
  probing.memory->touch(probing.random);
  EXPECT_TRUE(differs(0)) << "x, which the op reads";
  EXPECT_TRUE(differs(1)) << "y, which it writes";
  EXPECT_THAT(probing.memory->scrambled().places, testing::Not(IsEmpty()));
  probing.memory->renew(probing.random);
  EXPECT_TRUE(differs(1));
}

TEST(KernelBench, NothingIsFasterThanTheMachine) {
  EXPECT_THAT(
      kit::problem_of_speed(20e-6, 100e-6, 110e-6),
      HasSubstr("it takes 20 us, this machine needs 100 us to move the bytes of the call or to multiply its "
                "numbers, and the fastest other kernel takes 110 us"));
  EXPECT_THAT(kit::problem_of_speed(30e-6, 100e-6, 110e-6), IsEmpty())
      << "a limit that was measured is not exact";
  EXPECT_THAT(kit::problem_of_speed(20e-6, 100e-6, 70e-6), IsEmpty()) << "others are as fast as that";
  EXPECT_THAT(kit::problem_of_speed(0.1e-6, 5e-6, 2e-6), IsEmpty())
      << "of which the start of threads is most";
  EXPECT_THAT(kit::problem_of_speed(0.09e-6, 1.2e-6, 4.4e-6), HasSubstr("it does not do the work"));
  EXPECT_THAT(kit::problem_of_speed(0.4e-6, 1.2e-6, 4.4e-6), IsEmpty());
}

TEST(CounterClock, TellsOfAClockThatWasChanged) {
  EXPECT_THAT(kit::problem_of_clocks(0.5, 1.0),
              HasSubstr("the clock of the process counted 0.5 s while the processor counted 1 s"));
  EXPECT_THAT(kit::problem_of_clocks(0.995, 1.0), IsEmpty());
  const kit::CounterClock clock(posix_env());
  posix_env().sleep_us(100'000);
  EXPECT_THAT(clock.problem_of_clock(), IsEmpty());
}

TEST(RoundMean, IsTheMeanOfRoundsWithItsStandardError) {
  const std::vector<double> rounds = {1.0, 2.0, 3.0, 4.0};
  const kit::RoundMean figure = kit::figure_of(rounds);
  EXPECT_DOUBLE_EQ(figure.seconds, 2.5);
  EXPECT_NEAR(figure.error, 0.6454972243679028, 1e-15);
}

TEST(OpFigures, AStepTakesTheDefaultWhereAKernelComputesNothing) {
  const auto kernel = [](const char* name, bool is_default, double seconds) {
    return kit::KernelFigures{.name = name,
                              .is_default = is_default,
                              .is_of_plugin = !is_default,
                              .warm = {.seconds = seconds, .error = seconds / 10, .rounds = 1},
                              .cold = {.seconds = 2 * seconds}};
  };
  const kit::OpFigures figures{
      .op = "add",
      .calls = {{.call = "5",
                 .calls = 3,
                 .limit_seconds = 1,
                 .kernels = {kernel("avx2", true, 2), kernel("mine", false, 1)}},
                {.call = "7", .calls = 4, .limit_seconds = 1, .kernels = {kernel("avx2", true, 5)}}}};
  const std::vector<kit::OpFigures::Step> steps = figures.steps();
  ASSERT_EQ(steps.size(), 2U);
  EXPECT_DOUBLE_EQ(steps[0].warm.seconds, 3 * 2 + 4 * 5);
  EXPECT_DOUBLE_EQ(steps[1].warm.seconds, 3 * 1 + 4 * 5);
  EXPECT_DOUBLE_EQ(steps[1].warm.error, std::hypot(3 * 0.1, 4 * 0.5));
  EXPECT_DOUBLE_EQ(steps[1].cold.seconds, 2 * steps[1].warm.seconds);
  EXPECT_THAT(kit::text_of(figures, "run.toml"), HasSubstr("ms of a step of run.toml, all calls of add\n"));
}

}  // namespace
}  // namespace holdfast::test
