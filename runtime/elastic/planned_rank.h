// A planned rank is one that exists only in a plan: its communicator has no peers, and its device runs
// nothing. A Worker over both (Worker::plan) gets the same memory and launches the same ops as the rank of
// the real run, so a plan of it cannot differ from that rank.
//
//   HF_TRY(const std::unique_ptr<PlannedWorker> planned,
//          PlannedWorker::make(env, config, mesh_of(config, 8), /*rank=*/3));
//   planned->worker().memory_plan();
//   HF_TRY_VOID(planned->run_step([&](OpId id, const void* arguments) { flops += cost_of(id, arguments).flops; }));
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/registry.h"
#include "parallel/comm/communicator.h"
#include "parallel/group/mesh.h"
#include "runtime/config/config.h"
#include "runtime/device/device.h"
#include "runtime/os/env.h"
#include "runtime/os/fault_point.h"

namespace holdfast::train {
class Worker;
}

namespace holdfast::elastic {

// AbsentPeers completes every message at once; received data stays as it was.
class AbsentPeers : public Communicator {
 public:
  AbsentPeers(int rank, int size) : rank_(rank), size_(size) {}
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  Result<Request> send(std::span<const std::byte>, int, int) override { return Request{0}; }
  Result<Request> receive(std::span<std::byte>, int, int) override { return Request{0}; }
  Result<bool> test(Request) override { return true; }
  Result<void> check_peers() override { return {}; }
  void abandon() override {}
  bool abandoned() override { return false; }

 private:
  int rank_, size_;
};

struct PlannedDeviceOptions {
  bool host_sees_memory = true;  // as on the device of the run
  // Device that prepares the ops of planning mode, and so knows their workspace; outlives this one. Null: not
  // known.
  Device* kernels = nullptr;
};

// PlannedDevice has memory that is addresses alone (unbacked_memory). Its kernels() is empty, so that code
// which fills tables knows that nothing reads them; an op counts as done as soon as it is launched.
class PlannedDevice final : public Device {
 public:
  explicit PlannedDevice(const PlannedDeviceOptions& options) : options_(options) {}
  // Observer is called for every op that is launched from now on outside of planning mode; an empty one ends
  // it.
  using Observer = std::function<void(OpId id, const void* arguments)>;
  void observe(Observer observer) { observer_ = std::move(observer); }

  Ticket ticket() override { return launched_; }
  bool reached(Ticket) const override { return true; }
  bool wait(Ticket, std::int64_t) override { return true; }
  void stamp(Stamp&) override {}  // no time passes
  Result<OwnedMemory> allocate(MemoryKind kind, std::uint64_t bytes) override {
    return unbacked_memory(kind, bytes);
  }
  bool host_sees_memory() const override { return options_.host_sees_memory; }
  Result<void> status() override { return {}; }
  bool lost() override { return false; }
  void begin_planning() override;
  Result<void> end_planning() override;
  std::uint64_t workspace_bytes() const override;
  const KernelTable& kernels() const override;
  std::string description() const override { return "planned"; }
  int threads() const override { return 1; }

 private:
  void submit(OpId id, const void* arguments, std::size_t bytes) override;

  PlannedDeviceOptions options_;
  Observer observer_;
  bool planning_ = false;
  Ticket launched_ = 0;
  KernelTable no_kernels_ = {};
};

struct PlannedWorkerOptions {
  PlannedDeviceOptions device = {};
  std::vector<int> buddies = {};  // as WorkerInputs has them
  bool with_nccl = false;         // the run exchanges by NCCL
};

// PlannedWorker holds the worker of a planned rank and what that refers to.
class PlannedWorker {
 public:
  // `config` is resolved and outlives the worker.
  static Result<std::unique_ptr<PlannedWorker>> make(Env& env, const Config& config, const Mesh& mesh,
                                                     int rank, const PlannedWorkerOptions& options = {});
  ~PlannedWorker();

  Worker& worker() { return *worker_; }
  PlannedDevice& device() { return device_; }
  // Launches what run_step() launches on a rank that trains, in its order; there is no vote. The observer is
  // called for every op.
  Result<void> run_step(PlannedDevice::Observer observer);

 private:
  PlannedWorker(int rank, int ranks, const PlannedDeviceOptions& device);

  FaultPoints faults_;
  AbsentPeers peers_;
  PlannedDevice device_;
  std::unique_ptr<Worker> worker_;
};

}  // namespace holdfast::elastic
