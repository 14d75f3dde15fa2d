// That scopes of ops have the order of a computation by one rank, and that digests carry them.
#include "kernels/op_scope.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "kernels/elementwise.h"
#include "runtime/device/op_digests.h"

namespace holdfast::test {
namespace {

using Part = OpScope::Part;
using Pass = OpScope::Pass;

TEST(OpScope, HasTheOrderOfAComputationByOneRank) {
  const std::vector<OpScope> in_order = {{0, 0, Pass::forward, Part::embedding},
                                         {0, 0, Pass::forward, Part::attention, 0},
                                         {0, 0, Pass::forward, Part::feed_forward, 0},
                                         {0, 0, Pass::forward, Part::attention, 1},
                                         {0, 0, Pass::backward, Part::head},
                                         {0, 0, Pass::backward, Part::feed_forward, 1},
                                         {0, 0, Pass::backward, Part::attention, 1},
                                         {0, 0, Pass::backward, Part::embedding},
                                         {0, 0, Pass::weights, Part::head},
                                         {0, 0, Pass::weights, Part::attention, 0},
                                         {0, 1, Pass::forward, Part::embedding},
                                         {1, 0, Pass::forward, Part::embedding},
                                         {-1, -1, Pass::none, Part::none}};
  for (std::size_t i = 0; i < in_order.size(); ++i) {
    for (std::size_t j = 0; j < in_order.size(); ++j)
      EXPECT_EQ(is_computed_before(in_order[i], in_order[j]), i < j) << i << " and " << j;
  }
}

TEST(OpScope, NamesPartsAsTensorsBegin) {
  EXPECT_EQ(part_name({.part = Part::attention, .layer = 12}), "layers.12.attention");
  EXPECT_EQ(part_name({.part = Part::feed_forward, .layer = 0}), "layers.0.feed_forward");
  EXPECT_EQ(part_name({.part = Part::embedding}), "embedding");
  EXPECT_EQ(part_name({.part = Part::head}), "head");
  EXPECT_EQ(part_name({}), "none");
  EXPECT_STREQ(pass_name({.pass = Pass::forward}), "forward");
  EXPECT_STREQ(pass_name({.pass = Pass::weights}), "backward");
}

// Launches, as a pipeline does, microbatch 1 of a lane before the backward of microbatch 0; all results are NaN.
TEST(OpScope, TheFirstThatIsNotFiniteIsTheFirstInThatOrder) {
  const std::unique_ptr<Device> device = make_cpu_device({.threads = 1});
  std::vector<DigestWords> memory(8);
  OpDigests digests(*device, memory);
  const std::vector<float> x = {std::numeric_limits<float>::quiet_NaN(), 1.0F};
  std::vector<float> y(2);
  const auto launch = [&] { device->launch(Add{.a = x.data(), .b = x.data(), .y = y.data(), .count = 2}); };
  device->inspect_with(&digests);
  const OpScope last = {2, 1, Pass::forward, Part::attention, 0}, first = {2, 0, Pass::backward, Part::head};
  launch();
  for (const OpScope& scope : {last, first}) {
    const OpScopeGuard guard(device->scope(), scope);
    launch();
  }
  EXPECT_EQ(device->scope(), OpScope{});
  device->inspect_with(nullptr);
  device->synchronize();
  const std::vector<OpDigest> list = digests.list();
  ASSERT_EQ(list.size(), 3);
  EXPECT_EQ(list[0].scope, OpScope{});
  EXPECT_EQ(list[1].scope, last);
  ASSERT_TRUE(first_nonfinite(list).has_value());
  EXPECT_EQ(first_nonfinite(list)->scope, first);
}

}  // namespace
}  // namespace holdfast::test
