#include "parallel/comm/device_wait.h"

#include <gtest/gtest.h>

#include "parallel/local/local_communicator.h"
#include "runtime/os/env.h"

namespace holdfast::test {
namespace {

// Computes for a while, and counts how long nobody asked.
class BusyDevice final : public Device {
 public:
  explicit BusyDevice(std::int64_t busy_ns) : end_ns_(posix_env().monotonic_ns() + busy_ns) {}
  Ticket ticket() override { return 1; }
  bool reached(Ticket) const override { return posix_env().monotonic_ns() >= end_ns_; }
  bool wait(Ticket ticket, std::int64_t timeout_us) override {
    longest_wait_us = std::max(longest_wait_us, timeout_us);
    posix_env().sleep_us(timeout_us);
    return reached(ticket);
  }
  void stamp(Stamp&) override {}
  Result<OwnedMemory> allocate(MemoryKind place, std::uint64_t bytes) override {
    return host_memory(place, bytes);
  }
  bool host_sees_memory() const override { return false; }
  Result<void> status() override { return {}; }
  bool lost() override { return false; }
  void begin_planning() override {}
  Result<void> end_planning() override { return {}; }
  std::uint64_t workspace_bytes() const override { return 0; }
  const KernelTable& kernels() const override { return kernels_; }
  std::string description() const override { return "busy"; }
  int threads() const override { return 1; }

  std::int64_t longest_wait_us = 0;

 private:
  void submit(OpId, const void*, std::size_t) override {}
  std::int64_t end_ns_;
  KernelTable kernels_ = {};
};

// Two ranks of which one is asked how often it was polled.
class PolledCommunicator final : public Communicator {
 public:
  int rank() const override { return 0; }
  int size() const override { return 2; }
  Result<Request> send(std::span<const std::byte>, int, int) override { return Request{0}; }
  Result<Request> receive(std::span<std::byte>, int, int) override { return Request{0}; }
  Result<bool> test(Request) override { return true; }
  Result<void> check_peers() override {
    ++polls;
    if (polls < dies_at_poll) return {};
    return fail(ExitCode::communication, "rank 1 is lost");
  }
  void abandon() override {}
  bool abandoned() override { return polls >= dies_at_poll; }

  int polls = 0, dies_at_poll = 1'000'000;
};

constexpr std::int64_t busy_ns = 60'000'000;

TEST(WaitForDevice, PollsThePeersMeanwhile) {
  BusyDevice device(busy_ns);
  PolledCommunicator communicator;
  wait_for_device(device, communicator);
  EXPECT_TRUE(device.reached(1));
  EXPECT_LE(device.longest_wait_us, 10'000);
  EXPECT_GE(communicator.polls, 3) << "in 60 ms";
}

TEST(WaitForDevice, ADeathThatItSeesDoesNotEndTheWait) {
  BusyDevice device(busy_ns);
  PolledCommunicator communicator;
  communicator.dies_at_poll = 2;
  wait_for_device(device, communicator);
  EXPECT_TRUE(device.reached(1));
  EXPECT_EQ(communicator.polls, 2);
}

}  // namespace
}  // namespace holdfast::test
