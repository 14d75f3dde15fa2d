#include "runtime/device/device.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "kernels/matmul.h"
#include "runtime/os/env.h"

namespace holdfast::test {
namespace {

// sums[i] += values[i]: an op that is small, and shows in which order and how often it ran.
BiasGradient accumulate_row(const std::vector<float>& values, std::vector<float>& sums) {
  BiasGradient op;
  op.dy = values.data();
  op.gradient = sums.data();
  op.rows = 1;
  op.columns = static_cast<std::int64_t>(values.size());
  op.accumulate = true;
  return op;
}

Matmul square_product(const std::vector<float>& a, const std::vector<float>& b, std::vector<float>& c,
                      std::int64_t n) {
  Matmul op;
  op.a = a.data();
  op.b = b.data();
  op.c = c.data();
  op.m = op.n = op.k = op.lda = op.ldb = op.ldc = n;
  return op;
}

// Holds every op back until opened.
class Gate {
 public:
  std::function<void(OpId)> observer() {
    return [opened = opened_, this](OpId) {
      arrived_.fetch_add(1);
      opened.wait();
    };
  }
  void open() { promise_.set_value(); }
  int arrived() const { return arrived_.load(); }

 private:
  std::promise<void> promise_;
  std::shared_future<void> opened_ = promise_.get_future().share();
  std::atomic<int> arrived_{0};
};

// Stamps are of the time when the queue gets there, not of when they are asked for.
TEST(CpuDevice, StampsStandInTheQueue) {
  Gate gate;
  CpuDeviceOptions options;
  options.observer = gate.observer();
  const auto device = make_cpu_device(options);
  const std::vector<float> values(8, 1.0F);
  std::vector<float> sums(8, 0.0F);
  Stamp before, after;
  const std::int64_t asked_ns = posix_env().monotonic_ns();
  device->stamp(before);
  device->launch(accumulate_row(values, sums));
  device->stamp(after);
  const Device::Ticket done = device->ticket();
  while (gate.arrived() == 0) std::this_thread::yield();
  const std::int64_t opened_ns = posix_env().monotonic_ns();
  EXPECT_FALSE(device->reached(done)) << "a ticket stands behind the stamp";
  gate.open();
  while (!device->wait(done, 1000)) {
  }
  EXPECT_GE(before.time_ns, asked_ns);
  EXPECT_LE(before.time_ns, opened_ns);
  EXPECT_GE(after.time_ns, opened_ns);
  EXPECT_LE(after.time_ns, posix_env().monotonic_ns());
  EXPECT_GT(after.worked_ns, before.worked_ns);
  EXPECT_LE(after.worked_ns - before.worked_ns, after.time_ns - before.time_ns);
}

// What is counted is the time in which ops run, by the kind that they were launched as; the queue is idle at all others.
TEST(CpuDevice, TheClockTellsWorkFromIdleTime) {
  static constexpr std::int64_t work_ms = 30, idle_ms = 40;
  CpuDeviceOptions options;
  options.observer = [](OpId) { std::this_thread::sleep_for(std::chrono::milliseconds(work_ms)); };
  const auto device = make_cpu_device(options);
  WorkClock* const clock = device->work_clock();
  ASSERT_NE(clock, nullptr);
  const std::vector<float> values(8, 1.0F);
  std::vector<float> sums(8, 0.0F);
  device->synchronize();
  const auto idle_ns = [clock] { return clock->idle_ns(posix_env().monotonic_ns()); };
  const std::int64_t begin_ns = posix_env().monotonic_ns(), idle_before_ns = idle_ns();
  clock->count_as(SpanKind::forward);
  device->launch(accumulate_row(values, sums));
  device->synchronize();
  std::this_thread::sleep_for(std::chrono::milliseconds(idle_ms));
  clock->count_as(SpanKind::update);
  device->launch(accumulate_row(values, sums));
  device->launch(accumulate_row(values, sums));
  clock->count_as(SpanKind::count);
  device->synchronize();
  const std::int64_t idle = idle_ns() - idle_before_ns, all = posix_env().monotonic_ns() - begin_ns;
  EXPECT_GE(idle, idle_ms * 1'000'000);
  EXPECT_LE(idle, all - 3 * work_ms * 1'000'000);
  EXPECT_GE(clock->worked_ns(SpanKind::forward), work_ms * 1'000'000);
  EXPECT_GE(clock->worked_ns(SpanKind::update), 2 * work_ms * 1'000'000);
  EXPECT_LE(clock->worked_ns(SpanKind::forward) + clock->worked_ns(SpanKind::update), all - idle)
      << "idle time is no work";
  EXPECT_EQ(clock->worked_ns(SpanKind::backward), 0);
}

TEST(CpuDevice, CountsItsOpsWhereItIsTold) {
  std::atomic<std::uint64_t> done{0};
  Gate gate;
  CpuDeviceOptions options;
  options.observer = gate.observer();
  const auto device = make_cpu_device(options);
  const std::vector<float> values(8, 1.0F);
  std::vector<float> sums(8, 0.0F);
  device->count_ops_in(done);
  device->launch(accumulate_row(values, sums));
  while (gate.arrived() == 0) std::this_thread::yield();
  EXPECT_EQ(done, 0u) << "it has begun, and not ended";
  gate.open();
  device->launch(accumulate_row(values, sums));
  device->synchronize();
  EXPECT_EQ(done, 2u);
}

// Launches an op of its own for each that it sees.
class AddingInspector final : public OpInspector {
 public:
  AddingInspector(Device& device, const BiasGradient& own) : device_(device), own_(own) {}
  void launched(OpId id, const void* arguments) override {
    seen.push_back(id);
    columns.push_back(id == OpId::bias_gradient ? static_cast<const BiasGradient*>(arguments)->columns : 0);
    tickets.push_back(device_.ticket());
    device_.launch(own_);
  }

  std::vector<OpId> seen;
  std::vector<std::int64_t> columns;
  std::vector<Device::Ticket> tickets;

 private:
  Device& device_;
  BiasGradient own_;
};

TEST(CpuDevice, AnInspectorSeesWhatIsLaunchedAndNotItsOwnOps) {
  const auto device = make_cpu_device({});
  const std::vector<float> ones(8, 1.0F), sixteen(16, 1.0F);
  std::vector<float> sums(8, 0.0F), own_sums(8, 0.0F), wide_sums(16, 0.0F);
  AddingInspector inspector(*device, accumulate_row(ones, own_sums));
  device->launch(accumulate_row(ones, sums));
  device->inspect_with(&inspector);
  device->launch(accumulate_row(ones, sums));
  for (int turn = 0; turn < 3; ++turn) {
    device->repeat(7, [&] { device->launch(accumulate_row(sixteen, wide_sums)); });
  }
  device->inspect_with(nullptr);
  device->launch(accumulate_row(ones, sums));
  device->synchronize();
  EXPECT_THAT(inspector.seen, testing::ElementsAre(OpId::bias_gradient, OpId::bias_gradient,
                                                   OpId::bias_gradient, OpId::bias_gradient));
  EXPECT_THAT(inspector.columns, testing::ElementsAre(8, 16, 16, 16));
  EXPECT_THAT(inspector.tickets, testing::ElementsAre(2U, 4U, 6U, 8U)) << "each is called right after its op";
  EXPECT_EQ(sums[0], 3.0F);
  EXPECT_EQ(wide_sums[0], 3.0F);
  EXPECT_EQ(own_sums[0], 4.0F);
}

TEST(CpuDevice, TheCallerGoesOnWhileAnOpIsBlocked) {
  Gate gate;
  CpuDeviceOptions options;
  options.observer = gate.observer();
  const std::unique_ptr<Device> device = make_cpu_device(options);
  const std::vector<float> ones(40, 1.0F);
  std::vector<float> sums(40, 0.0F);
  for (int i = 0; i < 100; ++i) device->launch(accumulate_row(ones, sums));
  const Device::Ticket ticket = device->ticket();
  EXPECT_EQ(ticket, 100U);
  EXPECT_FALSE(device->reached(1));
  EXPECT_FALSE(device->wait(ticket, 0));
  EXPECT_FALSE(device->wait(ticket, 20'000));
  EXPECT_EQ(sums[0], 0.0F);
  gate.open();
  device->synchronize();
  EXPECT_TRUE(device->reached(ticket));
  EXPECT_THAT(sums, testing::Each(100.0F));
}

TEST(CpuDevice, LaunchWaitsWhenTheQueueIsFull) {
  Gate gate;
  CpuDeviceOptions options;
  options.queue_capacity = 4;
  options.observer = gate.observer();
  const std::unique_ptr<Device> device = make_cpu_device(options);
  const std::vector<float> ones(8, 1.0F);
  std::vector<float> sums(8, 0.0F);
  std::atomic<int> launched{0};
  std::thread launcher([&] {
    for (int i = 0; i < 50; ++i) {
      device->launch(accumulate_row(ones, sums));
      launched.fetch_add(1);
    }
  });
  while (launched.load() < 4 || gate.arrived() == 0) std::this_thread::yield();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(launched.load(), 4);
  gate.open();
  launcher.join();
  device->synchronize();
  EXPECT_THAT(sums, testing::Each(50.0F));
}

TEST(CpuDevice, PlanningRunsNothingAndMakesTheWorkspace) {
  std::vector<OpId> ran;
  CpuDeviceOptions options;
  options.threads = 2;
  options.observer = [&ran](OpId id) { ran.push_back(id); };
  const std::unique_ptr<Device> device = make_cpu_device(options);
  // Few outputs and a long sum: needs room for partial sums.
  constexpr std::int64_t k = 8192;
  const std::vector<float> a(8 * k, 1.0F);
  const std::vector<float> b(8 * k, 1.0F);
  std::vector<float> c(64, -1.0F);
  Matmul op = square_product(a, b, c, 8);
  op.k = op.lda = k;
  Matmul unbound = op;
  unbound.a = unbound.b = nullptr;
  unbound.c = nullptr;

  device->begin_planning();
  device->launch(unbound);
  EXPECT_TRUE(device->end_planning().ok());
  EXPECT_TRUE(ran.empty());
  EXPECT_THAT(c, testing::Each(-1.0F));
  const std::uint64_t planned_bytes = device->workspace_bytes();
  EXPECT_GE(planned_bytes, 2 * 64 * sizeof(float));

  device->launch(op);
  device->synchronize();
  EXPECT_THAT(ran, testing::ElementsAre(OpId::matmul));
  EXPECT_THAT(c, testing::Each(static_cast<float>(k)));
  EXPECT_EQ(device->workspace_bytes(), planned_bytes);
}

TEST(CpuDevice, DestroyingItRunsEverythingLaunched) {
  const std::vector<float> ones(16, 1.0F);
  std::vector<float> sums(16, 0.0F);
  {
    const std::unique_ptr<Device> device = make_cpu_device({});
    for (int i = 0; i < 1000; ++i) device->launch(accumulate_row(ones, sums));
  }
  EXPECT_THAT(sums, testing::Each(1000.0F));
}

TEST(CpuDevice, OpsRunInOrderAcrossIdleTimes) {
  const std::unique_ptr<Device> device = make_cpu_device({.threads = 3});
  constexpr std::int64_t n = 48;
  std::vector<float> identity(n * n, 0.0F);
  for (std::size_t i = 0; i < n; ++i) identity[i * n + i] = 2.0F;
  std::vector<float> left(n * n, 1.0F);
  std::vector<float> right(n * n, 0.0F);
  for (int round = 0; round < 10; ++round) {
    device->launch(square_product(left, identity, right, n));
    device->launch(square_product(right, identity, left, n));
    if (round % 3 == 0) {
      device->synchronize();
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  }
  device->synchronize();
  EXPECT_THAT(left, testing::Each(1048576.0F));
}

TEST(CpuDevice, SeveralLiveInOneProcess) {
  std::vector<std::thread> ranks;
  std::vector<std::vector<float>> results(4, std::vector<float>(64 * 64, 0.0F));
  for (std::size_t rank = 0; rank < results.size(); ++rank) {
    ranks.emplace_back([&results, rank] {
      const std::unique_ptr<Device> device = make_cpu_device({.threads = 2});
      const std::vector<float> a(64 * 64, 1.0F);
      const std::vector<float> b(64 * 64, static_cast<float>(rank));
      for (int i = 0; i < 20; ++i) device->launch(square_product(a, b, results[rank], 64));
      device->synchronize();
    });
  }
  for (std::thread& rank : ranks) rank.join();
  for (std::size_t rank = 0; rank < results.size(); ++rank) {
    EXPECT_THAT(results[rank], testing::Each(64.0F * static_cast<float>(rank)));
  }
}

TEST(CpuDevice, DescriptionNamesWhatDecidesBits) {
  const std::string one = make_cpu_device({.threads = 1, .isa = CpuIsa::portable})->description();
  const std::string three = make_cpu_device({.threads = 3, .isa = CpuIsa::portable})->description();
  EXPECT_EQ(one, three);
  EXPECT_THAT(one, testing::MatchesRegex("cpu, portable, oneDNN [0-9]+\\.[0-9]+\\.[0-9]+ [a-z0-9_]+"));
}

TEST(CpuDevice, DescriptionNamesChosenKernelsThatHaveBitsOfTheirOwn) {
  const auto description = [](const std::vector<KernelPreference>& requests) {
    return make_cpu_device({.isa = CpuIsa::portable, .kernels = requests})->description();
  };
  const std::string usual = description({});
  EXPECT_EQ(description({{OpId::rotary, "portable"}}), usual);
  EXPECT_EQ(description({{OpId::rotary, "reference"}}), usual + ", rotary reference");
}

TEST(CpuDevice, IdentityIsWhatDecidesTheBitsOfThePrecision) {
  const auto identity = [](CpuIsa isa, DType precision) {
    return make_cpu_device({.isa = isa})->identity(precision);
  };
  EXPECT_THAT(identity(CpuIsa::portable, DType::fp32), testing::StartsWith("cpu, oneDNN "));
  for (const CpuIsa isa : cpu_isas) {
    if (isa < CpuIsa::avx2 || isa > best_cpu_isa()) continue;
    EXPECT_EQ(identity(isa, DType::fp32), "cpu") << name_of(isa);
    const std::string products =
        fmt::format(", matmul {0}, attention_forward {0}, attention_backward {0}", name_of(isa));
    EXPECT_EQ(identity(isa, DType::bf16), isa < CpuIsa::avx512_bf16 ? "cpu" : "cpu" + products);
  }
}

TEST(CpuDevice, RunsTheKernelsThatItWasTold) {
  const std::unique_ptr<Device> device = make_cpu_device({.kernels = {{OpId::bias_gradient, "reference"}}});
  EXPECT_STREQ(device->kernels()[static_cast<std::size_t>(OpId::bias_gradient)].first().name, "reference");
  // 1e8 + 1 - 1e8 is 1 in double and 0 in fp32.
  const std::vector<float> rows = {1e8F, 1.0F, -1e8F};
  std::vector<float> sum = {0.0F};
  const BiasGradient op{rows.data(), sum.data(), 3, 1, false, DType::fp32};
  device->launch(op);
  device->synchronize();
  EXPECT_EQ(sum[0], 1.0F);
  const std::unique_ptr<Device> usual = make_cpu_device({});
  usual->launch(op);
  usual->synchronize();
  EXPECT_EQ(sum[0], 0.0F);
}

// Multiplies two matrices of ones; returns the indices of C at which the result is wrong.
std::vector<std::int64_t> wrong_elements(Device& device, std::int64_t m, std::int64_t n, std::int64_t ldc,
                                         DType dtype = DType::fp32) {
  const std::int64_t k = 8;
  const std::vector<float> a(static_cast<std::size_t>(m * k), 1.0F), b(static_cast<std::size_t>(n * k), 1.0F);
  const std::vector<BFloat16> a16(a.size(), to_bfloat16(1.0F)), b16(b.size(), to_bfloat16(1.0F));
  const bool is_bf16 = dtype == DType::bf16;
  std::vector<std::byte> c(static_cast<std::size_t>(m * ldc) * bytes_of(dtype));
  device.launch(Matmul{.a = is_bf16 ? static_cast<const void*>(a16.data()) : a.data(),
                       .b = is_bf16 ? static_cast<const void*>(b16.data()) : b.data(),
                       .c = c.data(),
                       .m = m,
                       .n = n,
                       .k = k,
                       .lda = k,
                       .ldb = k,
                       .ldc = ldc,
                       .transpose_b = true,
                       .dtype = dtype,
                       .dtype_c = dtype});
  device.synchronize();
  std::vector<std::int64_t> wrong;
  for (std::int64_t row = 0; row < m; ++row) {
    for (std::int64_t column = 0; column < n; ++column) {
      const std::int64_t index = row * ldc + column;
      const float value = is_bf16 ? to_float(reinterpret_cast<const BFloat16*>(c.data())[index])
                                  : reinterpret_cast<const float*>(c.data())[index];
      if (std::abs(value - 8.0F) < 0.1F) continue;
      EXPECT_EQ(value, is_bf16 ? 2048.0F : 8.0F * 257.0F);
      wrong.push_back(index);
    }
  }
  return wrong;
}

TEST(CpuDevice, WrongProductHasAnErrorInOneTile) {
  for (const DType dtype : {DType::fp32, DType::bf16}) {
    const std::unique_ptr<Device> device = make_cpu_device({.threads = 1});
    EXPECT_THAT(wrong_elements(*device, 40, 64, 70, dtype), testing::IsEmpty());
    device->launch_fault(DeviceFault::wrong_product);
    const std::vector<std::int64_t> wrong = wrong_elements(*device, 40, 64, 70, dtype);
    ASSERT_EQ(wrong.size(), 256U) << "16 x 16";
    EXPECT_EQ(wrong.front(), 16 * 70 + 32);
    EXPECT_EQ(wrong.back(), 31 * 70 + 47);
    EXPECT_THAT(wrong_elements(*device, 40, 64, 70, dtype), testing::IsEmpty()) << "the next one is right";
    device->launch_fault(DeviceFault::wrong_product);
    EXPECT_EQ(wrong_elements(*device, 3, 5, 5, dtype).size(), 15U) << "smaller than a tile";
  }
}

TEST(CpuDevice, BrokenUnitMakesEveryProductOfAShapeWrong) {
  const std::unique_ptr<Device> device = make_cpu_device({.threads = 2});
  device->launch_fault(DeviceFault::wrong_products);
  EXPECT_EQ(wrong_elements(*device, 40, 64, 64).size(), 256U);
  EXPECT_THAT(wrong_elements(*device, 40, 32, 32), testing::IsEmpty()) << "another shape";
  EXPECT_EQ(wrong_elements(*device, 40, 64, 64).size(), 256U);
}

TEST(CpuDeviceDeathTest, FaultsOfAGpuAreABug) {
  EXPECT_DEATH(make_cpu_device({.threads = 1})->launch_fault(DeviceFault::trap), "a fault of a GPU");
}

}  // namespace
}  // namespace holdfast::test
