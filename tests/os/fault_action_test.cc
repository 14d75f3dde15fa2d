// The actions of fault points that make numbers wrong: what their text means, and what is said of a wrong
// one.
#include "runtime/os/fault_action.h"

#include <cerrno>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace holdfast::test {
namespace {

using testing::HasSubstr;

struct CorruptionCase {
  std::string_view text, point;
  Corruption expected;
};

TEST(FaultAction, CorruptionsOfMemory) {
  const CorruptionCase cases[] = {
      {"flip:weights", "step.begin", {.memory = NumberMemory::weights}},
      {"flip:moment1:0", "step.end", {.memory = NumberMemory::moment1, .bit = 0}},
      {"flip:moment2:31:123456789",
       "step.before_vote",
       {.memory = NumberMemory::moment2, .bit = 31, .element = 123456789}},
      {"nan:parameters",
       "step.before_backward",
       {.memory = NumberMemory::parameters, .change = NumberChange::to_nan}},
      {"nan:parameters:5",
       "step.begin",
       {.memory = NumberMemory::parameters, .change = NumberChange::to_nan, .element = 5}},
      {"flips:weights:4", "step.begin", {.memory = NumberMemory::weights, .bits = 4}},
      {"flips:weights:2:7", "step.begin", {.memory = NumberMemory::weights, .element = 7, .bits = 2}},
      {"flip_run:moment1:22:64:32",
       "step.end",
       {.memory = NumberMemory::moment1, .bit = 22, .numbers = 64, .stride = 32}},
      {"flip_run:gradients:22:64:32:5",
       "reduce.received",
       {.memory = NumberMemory::received_gradients, .bit = 22, .element = 5, .numbers = 64, .stride = 32}},
      {"stuck_at_0:moment2:3:100",
       "step.begin",
       {.memory = NumberMemory::moment2, .change = NumberChange::stuck_at_0, .bit = 3, .numbers = 100}},
      {"stuck_at_1:gradients:31:1:9",
       "step.before_update",
       {.memory = NumberMemory::summed_gradients,
        .change = NumberChange::stuck_at_1,
        .bit = 31,
        .element = 9,
        .numbers = 1}},
      {"flip:gradients:22:3",
       "step.before_reduce",
       {.memory = NumberMemory::lane_gradients, .bit = 22, .element = 3}},
      {"flip:gradients:20", "reduce.received", {.memory = NumberMemory::received_gradients, .bit = 20}},
      {"flip:gradients", "step.before_vote", {.memory = NumberMemory::summed_gradients}},
      {"nan:gradients",
       "step.after_vote",
       {.memory = NumberMemory::summed_gradients, .change = NumberChange::to_nan}},
      {"flip:gradients", "step.before_update", {.memory = NumberMemory::summed_gradients}},
      {"flip:activations:7", "step.before_backward", {.memory = NumberMemory::activations, .bit = 7}},
  };
  for (const CorruptionCase& each : cases) {
    const Result<FaultAction> action = parse_fault_action(each.text, each.point);
    ASSERT_TRUE(action.ok()) << each.text << ": " << action.error().message;
    ASSERT_TRUE(action->corruption.has_value()) << each.text;
    EXPECT_EQ(action->corruption->memory, each.expected.memory) << each.text;
    EXPECT_EQ(action->corruption->change, each.expected.change) << each.text;
    EXPECT_EQ(action->corruption->bits, each.expected.bits) << each.text;
    EXPECT_EQ(action->corruption->numbers, each.expected.numbers) << each.text;
    EXPECT_EQ(action->corruption->stride, each.expected.stride) << each.text;
    EXPECT_EQ(action->corruption->bit, each.expected.bit) << each.text;
    EXPECT_EQ(action->corruption->element, each.expected.element) << each.text;
    EXPECT_EQ(action->record, each.text);
  }
}

TEST(FaultAction, OtherActions) {
  EXPECT_EQ(parse_fault_action("scale_rate:1000", "step.before_update")->factor, 1000.0);
  EXPECT_EQ(parse_fault_action("scale_rate:-2.5e-1", "step.before_update")->factor, -0.25);
  EXPECT_EQ(parse_fault_action("wrong_product", "step.begin")->device, DeviceFault::wrong_product);
  EXPECT_EQ(parse_fault_action("wrong_product_always", "step.end")->device, DeviceFault::wrong_products);
  EXPECT_EQ(parse_fault_action("nan", "data.sample")->sample, SampleFault::nan);
  EXPECT_EQ(parse_fault_action("scramble", "data.sample")->sample, SampleFault::scramble);
  const Result<FaultAction> sleep = parse_fault_action("sleep:500", "save.after_rename");
  EXPECT_EQ(sleep->number, 500);
  EXPECT_EQ(sleep->record, "sleep") << "readers of the log compare it with the name of the action";
}

TEST(FaultAction, ErrorsOfStorage) {
  const struct {
    std::string_view text;
    int reason;
    std::int64_t passes;
  } cases[] = {
      {"error", EIO, 1}, {"error:ESTALE", ESTALE, 1}, {"error:EIO:7", EIO, 7}, {"error:EIO:always", EIO, 0}};
  for (const auto& each : cases) {
    const Result<FaultAction> action = parse_fault_action(each.text, "data.read");
    ASSERT_TRUE(action.ok()) << action.error().message;
    EXPECT_EQ(action->reason, each.reason) << each.text;
    EXPECT_EQ(action->number, each.passes) << each.text;
    EXPECT_EQ(action->record, each.text) << "a plan knows it by all of its words";
  }
}

TEST(FaultAction, ErrorsSayWhatIsExpected) {
  const struct {
    std::string_view text, point, message;
  } cases[] = {
      {"flip", "step.begin", "'flip' needs MEMORY, MEMORY:BIT or MEMORY:BIT:ELEMENT"},
      {"flip:weights:1:2:3", "step.begin", "'flip' needs MEMORY"},
      {"nan:weights:1:2", "step.begin", "'nan' needs MEMORY or MEMORY:ELEMENT"},
      {"nan", "step.begin", "'nan' needs MEMORY or MEMORY:ELEMENT"},
      {"flip:wights", "step.begin",
       "'wights' is not a memory; there are weights, moment1, moment2, ema, parameters, gradients, "
       "activations, "
       "run_state"},
      {"nan:run_state", "step.begin", "run_state has no floating-point numbers"},
      {"flip:weights:32", "step.begin", "'32' is not a bit, which is 0 to 31"},
      {"flips:weights", "step.begin", "'flips' needs MEMORY:BITS or MEMORY:BITS:ELEMENT"},
      {"flips:weights:1", "step.begin", "'1' is not a number of bits, which is 2 to 16"},
      {"flip_run:weights:3:4", "step.begin",
       "'flip_run' needs MEMORY:BIT:NUMBERS:STRIDE or MEMORY:BIT:NUMBERS:STRIDE:ELEMENT"},
      {"flip_run:weights:3:4:0", "step.begin", "'0' is not a stride, which is 1 to 1000000000"},
      {"stuck_at_1:weights:3", "step.begin", "'stuck_at_1' needs MEMORY:BIT:NUMBERS"},
      {"stuck_at_0:weights:3:0", "step.begin", "'0' is not a number of numbers, which is 1 to 65536"},
      {"stuck_at_0:weights:40:1", "step.begin", "'40' is not a bit, which is 0 to 31"},
      {"stuck_at_0:weights:3:4", "save.after_rename", "'stuck_at_0' belongs to a point of a step"},
      {"flips:run_state:2", "step.begin", "'flips' changes numbers of tensors, which run_state has none of"},
      {"flip:weights:x", "step.begin", "'x' is not a number"},
      {"flip:weights:1:", "step.begin", "'' is not a number"},
      {"flip:weights", "save.after_rename", "'flip' belongs to a point of a step, whose memory it changes"},
      {"flip:activations", "step.begin",
       "nothing reads activations at step.begin, only at step.before_backward"},
      {"flip:gradients", "step.before_backward",
       "nothing reads gradients at step.before_backward, only at step.before_reduce (of a lane), "
       "reduce.received "
       "(of other ranks) and step.before_vote, step.after_vote, step.before_update (their sums)"},
      {"flip:weights", "reduce.received", "'flip' belongs to a point of a step, whose memory it changes"},
      {"scale_rate", "step.before_update", "'scale_rate' needs a factor"},
      {"scale_rate:fast", "step.before_update", "'fast' is not a factor"},
      {"scale_rate:inf", "step.before_update", "'inf' is not a factor"},
      {"scale_rate:2", "step.begin", "'scale_rate' belongs to step.before_update"},
      {"wrong_product:2", "step.begin", "'wrong_product' takes no number"},
      {"wrong_product", "save.after_rename", "'wrong_product' belongs to a point of a step"},
      {"error", "step.begin",
       "'error' belongs to data.read, load.read, save.before_shard, save.before_manifest, "
       "save.before_rename, recover.begin"},
      {"error:EPERM", "data.read",
       "'EPERM' is not an errno; there are EIO, EACCES, ENOSPC, ESTALE, ETIMEDOUT"},
      {"error:EIO:0", "data.read", "'0' is not a number of passes, nor 'always'"},
      {"error:EIO:1:2", "data.read", "'error' needs no more than ERRNO and PASSES"},
      {"scramble", "step.begin", "'scramble' belongs to data.sample"},
      {"kill", "data.sample", "'kill' is not an action of data.sample, which are nan and scramble"},
  };
  for (const auto& each : cases) {
    const Result<FaultAction> action = parse_fault_action(each.text, each.point);
    ASSERT_FALSE(action.ok()) << each.text;
    EXPECT_THAT(action.error().message, HasSubstr(std::string(each.message))) << each.text;
  }
}

}  // namespace
}  // namespace holdfast::test
