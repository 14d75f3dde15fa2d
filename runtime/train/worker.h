// Worker: everything one rank holds while it trains, built once and planned as one memory. The only mutable
// state of a run is here and in the run directory; several workers can live in one process.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/device.h"
#include "kernels/host_access.h"
#include "parallel/buckets.h"
#include "parallel/collectives.h"
#include "parallel/host_exchange.h"
#include "parallel/lane_reduction.h"
#include "parallel/lanes.h"
#include "parallel/pinned_exchange.h"
#include "runtime/config/config.h"
#include "runtime/core/fault_point.h"
#include "runtime/core/memory_plan.h"
#include "runtime/data/loader.h"
#include "runtime/model/model.h"
#include "runtime/optim/sharded_optimizer.h"
#include "runtime/train/ledger.h"
#include "runtime/train/run_state.h"

namespace holdfast {

// What a worker is built from; the referenced objects outlive it.
struct WorkerInputs {
  Env& env;
  FaultPoints& faults;
  Communicator& communicator;
  Device& device;
  const Config& config;  // resolved
  std::shared_ptr<DataSet> data;
  int ranks_on_host = 1;  // that share its memory
};

class Worker {
 public:
  // Plans and allocates all memory and prepares every kernel; all ranks together. ExitCode::does_not_fit when
  // it does not, on any host.
  static Result<std::unique_ptr<Worker>> create(const WorkerInputs& inputs);
  ~Worker();  // after an error ops may still be running: waits for them before their memory goes

  Env& env() { return inputs_.env; }
  FaultPoints& faults() { return inputs_.faults; }
  Communicator& communicator() { return inputs_.communicator; }
  Exchange& exchange();  // of the device's memory
  Device& device() { return inputs_.device; }
  const Config& config() const { return inputs_.config; }
  const Waiter& waiter() const { return waiter_; }
  const ModelSpec& spec() const { return spec_; }
  const BucketPlan& buckets() const { return buckets_; }
  const LaneSchedule& lanes() const { return lanes_; }
  const BatchShape& batch_shape() const { return batch_shape_; }
  const MemoryPlan& memory_plan() const { return plan_; }
  const Model& model() const { return *model_; }
  ShardedOptimizer& optimizer() { return *optimizer_; }
  LaneReduction& reduction() { return *reduction_; }
  DataLoader& loader() { return *loader_; }
  Ledger* ledger() { return ledger_.get(); }  // null unless data.ledger
  RunState& state() { return state_; }
  HostAccess& host_access() { return *host_access_; }  // to save and load state

  std::byte* parameters() const { return parameters_; }
  // One slot per microbatch this rank runs in a step, in the order it runs them.
  std::span<double> loss_sums() const { return loss_sums_; }
  // Copies a microbatch to memory that stays valid until the slot comes round again.
  // Without data.document_mask there are no first keys.
  TokenBatch stage_tokens(std::size_t slot, std::span<const std::int32_t> inputs,
                          std::span<const std::int32_t> targets, std::span<const std::int32_t> first_key);

  std::uint64_t tokens_per_step() const;
  std::uint64_t state_bytes() const;  // of a checkpoint: weights and moments of all ranks, in fp32
  int host_threads() const;           // for work of the host while the device rests
  // Starts the loader at state().data_cursor, and the ledger if data.ledger asks for it.
  void start_loader();
  // Whether everything that was waited for so far ran on the device; the error of one that did not. If the
  // device is lost to this process, it ends here (runtime/train/device_loss.h).
  Result<void> device_outcome();
  // Owned master weights -> every rank's parameter buffer. After initialisation, a load, and every update.
  Result<void> publish_parameters();

 private:
  explicit Worker(const WorkerInputs& inputs);
  Result<void> allocate();
  Result<void> prepare_kernels();

  WorkerInputs inputs_;
  Waiter waiter_;
  HostExchange host_exchange_;
  ModelSpec spec_;
  LaneSchedule lanes_;
  BucketPlan buckets_;
  BatchShape batch_shape_;
  std::vector<int> rank_lanes_;
  RunState state_;

  MemoryPlan plan_;
  MemoryArena arena_;
  MemoryPlan::Slot parameters_slot_, gradients_slot_, tokens_slot_, loss_sums_slot_;
  std::unique_ptr<HostAccess> host_access_;
  std::unique_ptr<PinnedExchange> pinned_exchange_;  // null where the host sees the device's memory
  std::unique_ptr<Model> model_;
  std::unique_ptr<ShardedOptimizer> optimizer_;
  std::unique_ptr<LaneReduction> reduction_;
  std::unique_ptr<DataLoader> loader_;
  std::unique_ptr<Ledger> ledger_;
  std::byte* parameters_ = nullptr;
  float* gradients_ = nullptr;
  std::int32_t* tokens_ = nullptr;
  std::span<double> loss_sums_;
};

}  // namespace holdfast
