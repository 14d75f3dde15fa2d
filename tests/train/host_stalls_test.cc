// The host launches a whole step of a rank alone without waiting for the device, but for the one read of the
// loss and the gradient norm: no matter how many lanes and microbatches, and how long the device takes.
#include <gtest/gtest.h>

#include "kernels/visit_op.h"
#include "runtime/device/cuda_loader.h"
#include "tests/support/worker_rig.h"

namespace holdfast::test {
namespace {

// Passes everything on, and counts the looks at what the device has reached.
class CountingDevice final : public Device {
 public:
  explicit CountingDevice(std::unique_ptr<Device> inner) : inner_(std::move(inner)) {}

  // Looks for the same ticket, one after another, are one wait.
  int waits() const { return waits_; }
  int launches() const { return launches_; }
  void clear() { waits_ = launches_ = 0; }

  Ticket ticket() override { return inner_->ticket(); }
  bool reached(Ticket ticket) const override {
    note(ticket);
    return inner_->reached(ticket);
  }
  bool wait(Ticket ticket, std::int64_t timeout_us) override {
    note(ticket);
    return inner_->wait(ticket, timeout_us);
  }

  void stamp(Stamp& target) override { inner_->stamp(target); }

  Result<OwnedMemory> allocate(MemoryKind place, std::uint64_t bytes) override {
    return inner_->allocate(place, bytes);
  }
  bool host_sees_memory() const override { return inner_->host_sees_memory(); }
  Result<void> status() override { return inner_->status(); }
  bool lost() override { return inner_->lost(); }
  void begin_planning() override { inner_->begin_planning(); }
  Result<void> end_planning() override { return inner_->end_planning(); }
  std::uint64_t workspace_bytes() const override { return inner_->workspace_bytes(); }
  const KernelTable& kernels() const override { return inner_->kernels(); }
  std::string description() const override { return inner_->description(); }
  int threads() const override { return inner_->threads(); }

 private:
  void submit(OpId id, const void* arguments, std::size_t) override {
    ++launches_;
    visit_op(id, arguments, [this](const auto& op) { inner_->launch(op); });
  }
  void note(Ticket ticket) const {
    if (ticket != awaited_) ++waits_;
    awaited_ = ticket;
  }

  std::unique_ptr<Device> inner_;
  mutable int waits_ = 0;
  mutable Ticket awaited_ = 0;
  int launches_ = 0;
};

std::unique_ptr<Device> emulated_gpu() {
  const Result<const CudaModule*> module =
      load_cuda_module(HF_BINARY_DIR "/bin/libholdfast_cuda_emulated.so");
  HF_CHECK(module.ok(), "{}", module.error().message);
  Result<std::unique_ptr<Device>> device = (*module)->make_device({});
  HF_CHECK(device.ok(), "{}", device.error().message);
  return std::move(device).value();
}

TEST(HostStalls, AStepOfARankAloneWaitsOnce) {
  Config config;
  config.model.layers = 1;
  config.model.heads = 2;
  config.model.width = 16;
  config.training.steps = 100;
  config.training.sequence_length = 8;
  config.training.microbatch_size = 1;
  config.training.microbatches_per_lane = 2;
  config.parallel.lanes = 3;
  WorkerRig rig(config, 1);
  CountingDevice* device = nullptr;
  const auto make = [&device] {
    auto made = std::make_unique<CountingDevice>(emulated_gpu());
    device = made.get();
    return made;
  };
  rig.run_on(make, [&device](Worker& worker) -> Result<void> {
    for (int step = 0; step < 3; ++step) {
      device->clear();
      HF_TRY_VOID(outcome_of(run_step(worker, {})));
      EXPECT_EQ(device->waits(), 1) << "in step " << step;
      EXPECT_GT(device->launches(), 6 * 20) << "six microbatches";
    }
    return {};
  });
}

}  // namespace
}  // namespace holdfast::test
