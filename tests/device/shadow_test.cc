// Kernels that compute calls once more, beside those that the run has.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/cpu/lists.h"
#include "kernels/elementwise.h"
#include "kernels/embedding.h"
#include "kernels/rotary.h"
#include "runtime/device/device.h"

namespace holdfast::test {
namespace {

using testing::HasSubstr;

template <int factor>
void multiply(const cpu::Context&, const void* arguments) {
  const Rotary& op = *static_cast<const Rotary*>(arguments);
  auto* const x = static_cast<float*>(op.x);
  for (std::int64_t row = 0; row < op.rows; ++row) {
    for (std::int64_t i = 0; i < op.heads * op.head_size; ++i) x[row * op.row_stride + i] *= factor;
  }
}

Implementation named(OpId op, const char* name, void (*run)(const cpu::Context&, const void*)) {
  Implementation result;
  result.op = op;
  result.name = name;
  result.preference = -1;
  result.run = run;
  return result;
}

class ShadowTest : public testing::Test {
 protected:
  ShadowTest() {
    const std::span<const ImplementationList> own = cpu::implementation_lists();
    lists_.assign(own.begin(), own.end());
    lists_.push_back({"test.cc", more_.data(), more_.size()});
    registry_.emplace(lists_, cpu::built_isas());
  }
  std::unique_ptr<Device> device(std::vector<KernelPreference> kernels) const {
    return make_cpu_device({.threads = 2, .kernels = std::move(kernels), .registry = &*registry_});
  }
  static KernelPreference shadow(OpId op, const std::string& name, std::int64_t every, int number = 0) {
    return {.op = op, .name = name, .key = fmt::format("kernels.shadow[{}]", number), .every = every};
  }
  // Two rows of four numbers, with one between them that is not the op's.
  Rotary call() { return {.x = x_.data(), .rows = 2, .row_stride = 5, .heads = 1, .head_size = 4}; }
  void fill() {
    x_.assign(9, 1.0F);
    x_[4] = std::nanf("");
  }

  std::vector<Implementation> more_ = {named(OpId::rotary, "triple", multiply<3>),
                                       named(OpId::rotary, "double", multiply<2>),
                                       named(OpId::add, "nothing", [](const cpu::Context&, const void*) {})};
  std::vector<ImplementationList> lists_;
  std::optional<KernelRegistry> registry_;
  std::vector<float> x_;
};

TEST_F(ShadowTest, SeesTheInputsOfTheCallAndLeavesItsResults) {
  const auto queue = device({{OpId::rotary, "triple"}, shadow(OpId::rotary, "double", 2)});
  queue->shadow_step(4);
  queue->scope() = {.part = OpScope::Part::attention, .layer = 3};
  for (int number = 0; number < 2; ++number) {  // the candidate first, and then second
    fill();
    queue->launch(call());
    queue->synchronize();
    for (const std::size_t i : {0U, 3U, 5U, 8U}) EXPECT_EQ(x_[i], 3.0F);
    EXPECT_TRUE(std::isnan(x_[4]));
  }
  const std::vector<ShadowResult> results = queue->take_shadow_results();
  ASSERT_EQ(results.size(), 1U);
  const ShadowResult& found = results.front();
  EXPECT_EQ(found.op, "rotary");
  EXPECT_EQ(found.kernel, "double");
  EXPECT_EQ(found.chosen, "triple");
  EXPECT_EQ(found.layer, 3);
  EXPECT_EQ(found.calls, 2);
  EXPECT_EQ(found.numbers, 16) << "what lies between the rows is not the op's";
  EXPECT_EQ(found.ulp_max, 4194304.0) << "1, in units of 2^-22";
  EXPECT_EQ(found.ulp_mean(), found.ulp_max);
  EXPECT_EQ(found.worst, "x[0]");
  EXPECT_EQ(found.wrong_kind, 0);
  EXPECT_TRUE(queue->take_shadow_results().empty());
}

TEST_F(ShadowTest, IsComparedInTheStepsThatAreDue) {
  const auto queue = device({{OpId::rotary, "triple"}, shadow(OpId::rotary, "double", 3)});
  const auto calls_in = [&](std::uint64_t step) {
    queue->shadow_step(step);
    fill();
    queue->launch(call());
    const std::vector<ShadowResult> results = queue->take_shadow_results();
    return results.empty() ? 0 : results.front().calls;
  };
  EXPECT_EQ(calls_in(1), 0);
  EXPECT_EQ(calls_in(3), 1);
  EXPECT_EQ(calls_in(4), 0);
  EXPECT_EQ(calls_in(6), 1);
  EXPECT_EQ(calls_in(0), 0) << "outside of steps";
}

TEST_F(ShadowTest, KeepsArraysThatAreTheSameMemory) {
  const auto queue = device({{OpId::add, "reference"}, shadow(OpId::add, "portable", 1)});
  queue->shadow_step(1);
  for (int number = 0; number < 2; ++number) {
    std::vector<float> a(100, 0.1F), b(100, 0.2F);
    queue->launch(Add{.a = a.data(), .b = b.data(), .y = a.data(), .count = 100});
    queue->synchronize();
    EXPECT_EQ(a[99], 0.1F + 0.2F);
  }
  const std::vector<ShadowResult> results = queue->take_shadow_results();
  ASSERT_EQ(results.size(), 1U);
  EXPECT_EQ(results[0].calls, 2);
  EXPECT_EQ(results[0].ulp_max, 0.0) << "it adds what the call found, not what it left";
  EXPECT_EQ(results[0].worst, "");
}

TEST_F(ShadowTest, FindsWhatIsNotWritten) {
  const auto queue = device({shadow(OpId::add, "nothing", 1)});
  queue->shadow_step(1);
  const std::vector<float> a(100, 0.1F);
  std::vector<float> y(100, 0.2F);  // as an earlier call has left it
  for (int number = 0; number < 2; ++number)
    queue->launch(Add{.a = a.data(), .b = a.data(), .y = y.data(), .count = 100});
  const std::vector<ShadowResult> results = queue->take_shadow_results();
  ASSERT_EQ(results.size(), 1U);
  EXPECT_EQ(results[0].wrong_kind, 200);
}

TEST_F(ShadowTest, LeavesTheRowsThatAreOfOtherSlices) {
  const auto queue =
      device({{OpId::embedding_forward, "reference"}, shadow(OpId::embedding_forward, "portable", 1)});
  queue->shadow_step(1);
  const std::vector<std::int32_t> tokens = {0, 3, 1, 2};
  const std::vector<float> table(2 * 8, 0.5F);  // of tokens 2 and 3
  std::vector<float> x(4 * 8, 7.0F);
  for (int number = 0; number < 2; ++number)
    queue->launch(EmbeddingForward{.tokens = tokens.data(),
                                   .table = table.data(),
                                   .x = x.data(),
                                   .rows = 4,
                                   .width = 8,
                                   .sequence_length = 4,
                                   .first_token = 2,
                                   .token_count = 2});
  const std::vector<ShadowResult> results = queue->take_shadow_results();
  ASSERT_EQ(results.size(), 1U);
  EXPECT_EQ(results[0].calls, 2);
  EXPECT_EQ(results[0].ulp_max, 0.0);
  EXPECT_EQ(results[0].wrong_kind, 0);
  EXPECT_EQ(x[0], 7.0F);
  EXPECT_EQ(x[8], 0.5F);
}

TEST_F(ShadowTest, AsksNothingOfOneThatDoesNotSupportTheCall) {
  Implementation& candidate = more_[1];
  candidate.supports = [](const void* arguments) { return static_cast<const Rotary*>(arguments)->rows != 2; };
  candidate.prepare = [](const cpu::Context&, const void* arguments) {
    EXPECT_NE(static_cast<const Rotary*>(arguments)->rows, 2) << "a call that it does not support";
  };
  const auto queue = device({{OpId::rotary, "triple"}, shadow(OpId::rotary, "double", 1)});
  queue->begin_planning();
  queue->launch(Rotary{.rows = 2, .row_stride = 5, .heads = 1, .head_size = 4});
  ASSERT_TRUE(queue->end_planning().ok());
  queue->shadow_step(1);
  fill();
  queue->launch(call());
  queue->synchronize();
  EXPECT_EQ(x_[0], 3.0F);
  const std::vector<ShadowResult> results = queue->take_shadow_results();
  ASSERT_EQ(results.size(), 1U) << "and it is told that it computes nothing";
  EXPECT_EQ(results[0].calls, 0);
  EXPECT_EQ(results[0].numbers, 0);
}

TEST_F(ShadowTest, MemoryIsPlanned) {
  const auto planned_bytes = [&](std::vector<KernelPreference> kernels) {
    const auto queue = device(std::move(kernels));
    queue->begin_planning();
    queue->launch(Add{.count = 1 << 20});
    EXPECT_TRUE(queue->end_planning().ok());
    return queue->workspace_bytes();
  };
  EXPECT_EQ(planned_bytes({shadow(OpId::add, "portable", 100)}), planned_bytes({}) + (4U << 20));
}

TEST_F(ShadowTest, DecidesNoBitAndIsOneForACall) {
  const auto choose = [&](const std::vector<KernelPreference>& requests) {
    return registry_->choose(CpuIsa::portable, requests);
  };
  const KernelTable table = choose({shadow(OpId::rotary, "double", 2)}).value();
  EXPECT_EQ(bits_of(table, DType::fp32), bits_of(choose({}).value(), DType::fp32));
  EXPECT_THAT(
      choose({shadow(OpId::rotary, "double", 2), shadow(OpId::rotary, "triple", 2, 1)}).error().message,
      HasSubstr("kernels.shadow[1], rotary = \"triple\": kernels.shadow[0] says \"double\""));
  EXPECT_THAT(choose({shadow(OpId::adamw, "portable", 2)}).error().message,
              HasSubstr("kernels.shadow[0], adamw = \"portable\": only ops of the model"));
}

}  // namespace
}  // namespace holdfast::test
