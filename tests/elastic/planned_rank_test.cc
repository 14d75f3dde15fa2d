// A planned rank reserves what the rank of a running job holds, entry by entry, and knows the workspace of
// its kernels.
#include "runtime/elastic/planned_rank.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <array>

#include "runtime/device/counting_device.h"
#include "runtime/device/cuda_loader.h"
#include "tests/support/worker_rig.h"

namespace holdfast::test {
namespace {

struct Case {
  const char* name;
  int ranks;
  void (*change)(Config& config);
};

Config small_config() {
  Config config;
  config.model.layers = 4;
  config.model.heads = 4;
  config.model.kv_heads = 2;
  config.model.width = 32;
  config.model.feed_forward = 64;
  config.training.steps = 10;
  config.training.sequence_length = 24;
  config.training.microbatch_size = 2;
  config.training.microbatches_per_lane = 2;
  config.parallel.lanes = 6;
  return config;
}

constexpr std::array cases = {
    Case{"Alone", 1, [](Config&) {}},
    Case{"ReplicasInBf16", 3, [](Config& config) { config.training.precision = "bf16"; }},
    Case{"OneWave", 6, [](Config& config) { config.data.document_mask = true; }},
    Case{"ShortLastWave", 4, [](Config& config) { config.model.head = "tied"; }},
    Case{"StagesOfATiedGpt2", 4,
         [](Config& config) {
           config.model.style = "gpt2";
           config.model.kv_heads = 4;
           config.training.precision = "bf16";
           config.training.recompute = "selective";
           config.parallel.pipeline = 2;
         }},
    Case{"StagesInGpipe", 2,
         [](Config& config) {
           config.training.recompute = "full";
           config.parallel.pipeline = 2;
           config.parallel.pipeline_schedule = "gpipe";
         }},
    Case{"SlicesInStagesWithoutBubbles", 8,
         [](Config& config) {
           config.training.recompute = "selective";
           config.parallel.tensor = 2;
           config.parallel.pipeline = 2;
           config.parallel.pipeline_schedule = "zero_bubble";
         }},
    Case{"ChunksInTurn", 4,
         [](Config& config) {
           config.parallel.pipeline = 2;
           config.parallel.pipeline_schedule = "interleaved";
           config.parallel.pipeline_chunks = 2;
         }},
};

class PlannedRank : public testing::TestWithParam<Case> {};

std::string text_of(const MemoryPlan& plan) {
  std::string text;
  for (const MemoryPlan::Entry& entry : plan.entries()) {
    text += fmt::format("{} ({}) {} bytes at {} in place {}\n", entry.name, name_of(entry.memory_class),
                        entry.slot.bytes, entry.slot.offset_bytes, static_cast<int>(entry.slot.kind));
  }
  return text;
}

// The planned twin of a running rank.
Result<void> expect_same_plan(const Worker& running, PlannedDevice& device, Communicator& peers) {
  FaultPoints faults;
  HF_TRY(const std::unique_ptr<Worker> planned,
         Worker::plan({.rank = {{.env = posix_env(), .faults = faults, .communicator = peers},
                                device,
                                running.rank().config,
                                running.rank().mesh},
                       .data = nullptr}));
  EXPECT_EQ(text_of(planned->memory_plan()), text_of(running.memory_plan()));
  return planned->prepare_kernels();
}

TEST_P(PlannedRank, ReservesWhatTheRunningRankHolds) {
  Config config = small_config();
  GetParam().change(config);
  WorkerRig rig(config, GetParam().ranks);
  rig.run([](Worker& running) -> Result<void> {
    AbsentPeers peers(running.rank().communicator.rank(), running.rank().communicator.size());
    const std::unique_ptr<Device> kernels = make_cpu_device({.threads = running.rank().device.threads()});
    PlannedDevice device({.host_sees_memory = true, .kernels = kernels.get()});
    HF_TRY_VOID(expect_same_plan(running, device, peers));
    EXPECT_EQ(device.workspace_bytes(), running.rank().device.workspace_bytes());
    EXPECT_GT(device.workspace_bytes(), 0U);
    const std::unique_ptr<Device> counting =
        make_counting_cpu_device({.threads = running.rank().device.threads()});
    PlannedDevice counted({.host_sees_memory = true, .kernels = counting.get()});
    for (int again = 0; again < 2; ++again) {
      HF_TRY_VOID(expect_same_plan(running, counted, peers));
      EXPECT_EQ(counted.workspace_bytes(), running.rank().device.workspace_bytes());
    }
    counting->begin_planning();
    HF_TRY_VOID(counting->end_planning());
    EXPECT_EQ(counting->workspace_bytes(), 0U) << "what was counted before is forgotten";
    return {};
  });
}

// With the buffers through which the host moves and sees the memory of a GPU.
TEST(PlannedRankOnAGpu, ReservesWhatTheRunningRankHolds) {
  Config config = small_config();
  config.training.precision = "bf16";
  config.parallel.pipeline = 2;
  WorkerRig rig(config, 4);
  const auto emulated_gpu = [] {
    Result<const CudaModule*> module = load_cuda_module(HF_BINARY_DIR "/bin/libholdfast_cuda_emulated.so");
    HF_CHECK(module.ok(), "{}", module.error().message);
    Result<std::unique_ptr<Device>> device = (*module)->make_device({});
    HF_CHECK(device.ok(), "{}", device.error().message);
    return std::move(device).value();
  };
  rig.run_on(emulated_gpu, [](Worker& running) -> Result<void> {
    AbsentPeers peers(running.rank().communicator.rank(), running.rank().communicator.size());
    PlannedDevice device({.host_sees_memory = false});
    return expect_same_plan(running, device, peers);
  });
}

INSTANTIATE_TEST_SUITE_P(Layouts, PlannedRank, testing::ValuesIn(cases),
                         [](const testing::TestParamInfo<Case>& each) { return each.param.name; });

}  // namespace
}  // namespace holdfast::test
