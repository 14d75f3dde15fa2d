// A watch of the calls of a CPU device sees their memory as it is right before and right after, and nothing else changes.
#include "runtime/device/cpu/call_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kernels/elementwise.h"
#include "runtime/device/device.h"

namespace holdfast::test {
namespace {

using testing::ElementsAre;

struct Watching final : device::CallWatch {
  void before(OpId id, const CallPlace& place, const void* arguments, const Implementation& kernel) override {
    const auto& op = *static_cast<const Accumulate*>(arguments);
    EXPECT_EQ(id, OpId::accumulate);
    EXPECT_EQ(place.layer, 3);
    EXPECT_STREQ(kernel.name, "reference");
    seen.push_back(op.target[0]);
  }
  void after(OpId, const void* arguments) override {
    seen.push_back(static_cast<const Accumulate*>(arguments)->target[0]);
  }
  std::vector<float> seen;
};

TEST(CallWatch, SeesTheMemoryOfACallBeforeAndAfterIt) {
  const std::unique_ptr<Device> device =
      make_cpu_device({.threads = 1, .kernels = {{.op = OpId::accumulate, .name = "reference"}}});
  auto* const watched = dynamic_cast<device::WatchedCalls*>(device.get());
  ASSERT_NE(watched, nullptr);
  std::vector<float> target = {1}, source = {10};
  const Accumulate op{.target = target.data(), .source = source.data(), .count = 1};
  device->scope().layer = 3;
  device->launch(op);  // nobody watches yet
  Watching watch;
  watched->watch_calls(&watch);
  device->begin_planning();
  device->launch(op);  // which runs nothing
  ASSERT_TRUE(device->end_planning().ok());
  device->launch(op);
  device->launch(op);
  watched->watch_calls(nullptr);
  device->launch(op);
  device->synchronize();
  EXPECT_THAT(watch.seen, ElementsAre(11, 21, 21, 31));
  EXPECT_EQ(target[0], 41);
}

}  // namespace
}  // namespace holdfast::test
