// Copies to the host beside the ops of the emulated device.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "kernels/elementwise.h"
#include "runtime/device/cuda/cuda_device.h"
#include "tests/cuda_emulator/emulator.h"

namespace holdfast::test {
namespace {

constexpr std::int64_t count = 1 << 14;
constexpr std::size_t bytes = count * sizeof(float);

struct Memory {
  std::unique_ptr<Device> device;
  OwnedMemory state = std::move(device->allocate(MemoryKind::device, bytes)).value();
  OwnedMemory other = std::move(device->allocate(MemoryKind::device, bytes)).value();
  OwnedMemory source = std::move(device->allocate(MemoryKind::host_visible, bytes)).value();
  std::vector<OwnedMemory> targets = {};

  explicit Memory(int target_count, int ordinal = 0)
      : device(std::move(make_cuda_device({.ordinal = ordinal})).value()) {
    for (std::int64_t i = 0; i < count; ++i) floats(source)[i] = static_cast<float>(i);
    for (int i = 0; i < target_count; ++i)
      targets.push_back(std::move(device->allocate(MemoryKind::host_visible, bytes)).value());
  }
  ~Memory() { device->synchronize(); }  // nothing works on the memory any more
  static float* floats(const OwnedMemory& memory) { return reinterpret_cast<float*>(memory.get()); }
  void add(const OwnedMemory& target) {
    device->launch(Accumulate{.target = floats(target), .source = floats(source), .count = count});
  }
  std::span<const std::byte> state_bytes() const { return {state.get(), bytes}; }
};

// Ops that were launched before are waited for, those after are not.
TEST(CudaReadBeside, GivesWhatWasThereWhileLaterOpsRun) {
  Memory memory(1);
  memory.add(memory.state);
  memory.add(memory.state);
  const Device::Ticket updated = memory.device->ticket();
  constexpr int later = 2000;  // each takes longer than such a copy
  for (int i = 0; i < later; ++i) memory.add(memory.other);
  ASSERT_TRUE(memory.device->read_beside(updated, memory.state_bytes(), memory.targets[0].get()));
  EXPECT_FALSE(memory.device->idle()) << "the copy waited for its turn in the queue";
  for (std::int64_t i = 0; i < count; ++i)
    ASSERT_EQ(Memory::floats(memory.targets[0])[i], 2.0F * static_cast<float>(i));
}

TEST(CudaReadBeside, SeveralThreadsReadAtATime) {
  Memory memory(4);
  memory.add(memory.state);
  const Device::Ticket updated = memory.device->ticket();
  {
    std::vector<std::jthread> threads;
    for (const OwnedMemory& target : memory.targets) {
      threads.emplace_back([&] {
        for (int turn = 0; turn < 8; ++turn)
          EXPECT_TRUE(memory.device->read_beside(updated, memory.state_bytes(), target.get()));
      });
    }
  }
  for (const OwnedMemory& target : memory.targets)
    EXPECT_EQ(std::memcmp(target.get(), memory.source.get(), bytes), 0);
}

// A context takes 0.5 GiB of a GPU, which belongs to another rank.
TEST(CudaReadBeside, MakesNoContextOnTheFirstGpu) {
  ::setenv("EMULATED_GPUS", "2", 1);
  {
    Memory memory(1, 1);
    memory.add(memory.state);
    const Device::Ticket updated = memory.device->ticket();
    static_cast<void>(cuda_emulator::take_contexts());
    std::jthread([&] {
      EXPECT_TRUE(memory.device->read_beside(updated, memory.state_bytes(), memory.targets[0].get()));
    }).join();
    EXPECT_EQ(cuda_emulator::take_contexts(), 0b10U);
    EXPECT_EQ(std::memcmp(memory.targets[0].get(), memory.source.get(), bytes), 0);
  }
  ::unsetenv("EMULATED_GPUS");
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);  // for the tests that follow on this thread
}

}  // namespace
}  // namespace holdfast::test
