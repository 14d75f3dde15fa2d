// Worker: everything one rank holds while it trains, built once and planned as one memory. The only mutable
// state of a run is here and in the run directory; several workers can live in one process.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "checkpoint/slot_pool.h"
#include "kernels/device.h"
#include "kernels/host_access.h"
#include "parallel/comm/collectives.h"
#include "parallel/comm/counted_communicator.h"
#include "parallel/data/buckets.h"
#include "parallel/data/lane_reduction.h"
#include "parallel/data/lanes.h"
#include "parallel/data/parameter_gather.h"
#include "parallel/group/mesh.h"
#include "parallel/nccl/nccl_session.h"
#include "runtime/config/config.h"
#include "runtime/core/kept_memory.h"
#include "runtime/core/memory_plan.h"
#include "runtime/data/loader.h"
#include "runtime/model/model.h"
#include "runtime/optim/sharded_optimizer.h"
#include "runtime/os/fault_point.h"
#include "runtime/os/sealed_network.h"
#include "runtime/os/span_recorder.h"
#include "runtime/rank/memory_agreement.h"
#include "runtime/rank/pipeline_links.h"
#include "runtime/rank/rank_context.h"
#include "runtime/rank/rank_transport.h"
#include "runtime/rank/run_secret.h"
#include "runtime/save/run_state.h"
#include "runtime/save/snapshot_plan.h"
#include "runtime/save/state_view.h"
#include "runtime/train/lane_runner.h"
#include "runtime/train/sample_log.h"
#include "runtime/train/token_staging.h"
#include "watchdog/rank_watch.h"

namespace holdfast::inline train {

// What a worker is built from; the referenced objects outlive it.
struct WorkerInputs {
  Env& env;
  FaultPoints& faults;
  Communicator& communicator;
  Device& device;
  const Config& config;  // resolved
  Mesh mesh;             // of all ranks
  // By rank, who keeps the replicas of its RAM snapshots (replica_buddies()); empty: nobody.
  std::vector<int> buddies = {};
  std::shared_ptr<DataSet> data;
  int ranks_on_host = 1;  // that share its memory
  // Moves the device's memory between the ranks of every axis, on all of them or on none; null: the
  // communicator does.
  NcclLibrary* nccl = nullptr;
  int gpu = 0;                  // for it: the CUDA ordinal of the device
  std::uint64_t epoch = 0;      // for it: of the communicator, in the names that NCCL's own log shows
  RankWatch* watch = nullptr;   // hears of its waits, and has the ring of its spans; null: nobody
  SampleLog* ledger = nullptr;  // of this process; null unless data.ledger
  MemoryTerms memory = {};      // where the hosts have too little
  // Gets what all ranks decided about memory, also where create() fails for lack of it; null: nobody asks.
  MemoryDecision* memory_decision = nullptr;
  KeptMemory* kept = nullptr;  // the arena is taken from it, and left in it; null: made, and freed
  SlotPool* slots = nullptr;   // slots in shared memory come from it, and go back to it; null: they are new
  std::optional<Secret> secret = {};  // that connections between ranks are made with; none: there are none
};

class Worker {
 public:
  // Connects NCCL, plans and allocates all memory and prepares every kernel; all ranks together.
  // Errors: those of agree_on_memory() where some host has too little memory.
  static Result<std::unique_ptr<Worker>> create(const WorkerInputs& inputs);
  // The same worker as a planner needs it (planned_rank.h): all memory is reserved and bound, but nobody is
  // asked whether it fits and no kernel is prepared. Its peers need not be there, its device need not run.
  // `with_nccl`: of a run that exchanges by NCCL.
  static Result<std::unique_ptr<Worker>> plan(const WorkerInputs& inputs, bool with_nccl = false);
  // After an error ops and exchanges may still be running: waits for them, or ends them, before their memory
  // goes.
  ~Worker();

  const RankContext& rank() const { return rank_; }
  StateView& state_view() { return *state_view_; }  // to save and load its state
  const SnapshotPlan& snapshots() const { return snapshots_; }
  // What this rank has sent and received since the worker was made.
  const AxisTraffic& traffic() { return communicator_.traffic(); }
  // Returns whether this rank counts the samples of its copy of the model, so that each counts once.
  bool counts_samples() const { return rank_.coordinate.pipeline == 0 && rank_.counts_replicated(); }
  PipelineLinks& pipeline() { return links_; }
  // The slices of split tensors that this rank has, and the ranks that have the others.
  TensorGroup& tensor_group() { return tensor_group_; }
  const TensorShare& tensor_share() const { return tensor_group_.share(); }
  const ModelSpec& spec() const { return spec_; }
  const BucketPlan& buckets() const { return buckets_; }
  const LaneSchedule& lanes() const { return lanes_; }
  const BatchShape& batch_shape() const { return batch_shape_; }
  const MemoryPlan& memory_plan() const { return plan_; }
  // This rank's parts of the model, by chunk of its stage; without a pipeline one, the whole.
  const Model& model(int chunk = 0) const { return *models_[static_cast<std::size_t>(chunk)]; }
  std::span<const ModelPart> parts() const { return parts_; }
  ShardedOptimizer& optimizer() { return *optimizer_; }
  LaneReduction& reduction() { return *reduction_; }
  // Of the parameters that the owners updated. Whatever reads parameters but the next step's forwards
  // finishes it first.
  ParameterGather& parameter_gather() { return *parameter_gather_; }
  LaneRunner& lane_runner() { return *lane_runner_; }
  DataLoader& loader() { return *loader_; }
  // Null where samples are not written down, or another rank does it for this one.
  SampleLog* ledger() { return counts_samples() ? inputs_.ledger : nullptr; }
  RunState& state() { return state_; }

  std::byte* parameters() const { return parameters_; }
  // One slot per microbatch this rank runs in a step, in the order it runs them; written where the head is.
  std::span<double> loss_sums() const { return loss_sums_; }
  // Has a slot for each microbatch of a step. Without data.document_mask there are no first keys.
  TokenStaging& tokens() { return *tokens_; }

  std::uint64_t tokens_per_step() const;
  // Starts the loader at state().data_cursor.
  void start_loader();
  // Launches every kind of step once in planning mode: the kernels make their primitives and say what
  // workspace they need. create() has done it.
  Result<void> prepare_kernels();
  // When peers are gone or NCCL failed: nothing of it is under way on the device any more. After that this
  // worker takes no steps.
  void abort_nccl();
  // Where a tied weight has its ends on two stages: the head's gradient, summed over all lanes, to the
  // embedding's. Between the last wave and LaneReduction::finish_step().
  Result<void> join_tied_gradients();

 private:
  explicit Worker(const WorkerInputs& inputs);
  void reserve();
  void reserve_exchanges();
  std::uint64_t largest_slice_exchange_bytes(std::int64_t rows) const;
  std::size_t step_slots() const;
  Result<void> connect_nccl();
  void connect_tensor_group();
  void leave(const Error& error);  // runtime/rank/device_loss.h
  Result<void> agree_it_fits();
  Result<MemoryArena> make_arena();
  Result<void> allocate();

  WorkerInputs inputs_;
  CountedCommunicator communicator_;
  Waiter waiter_;
  std::unique_ptr<NcclSession> nccl_session_;  // outlives its transports; null without NCCL
  ModelSpec spec_;
  Mesh mesh_;
  std::vector<ModelPart> parts_;    // of this stage, by chunk
  RankTransport data_transport_;    // of the ranks that hold the same layers and slices
  RankTransport tensor_transport_;  // of those that hold the other slices
  TensorGroup tensor_group_;
  PipelineLinks links_;
  LaneSchedule lanes_;
  BucketPlan buckets_;
  BatchShape batch_shape_;
  std::vector<int> rank_lanes_;
  RunState state_;
  SpanRecorder spans_;
  RankContext rank_;  // of the above
  SnapshotPlan snapshots_;

  MemoryPlan plan_;
  MemoryArena arena_;
  MemoryPlan::Slot parameters_slot_, gradients_slot_, loss_sums_slot_;
  std::unique_ptr<TokenStaging> tokens_;
  std::unique_ptr<HostAccess> host_access_;
  std::vector<std::unique_ptr<Model>> models_;
  std::unique_ptr<ShardedOptimizer> optimizer_;
  std::unique_ptr<LaneReduction> reduction_;
  std::unique_ptr<ParameterGather> parameter_gather_;
  std::unique_ptr<LaneRunner> lane_runner_;
  std::unique_ptr<DataLoader> loader_;
  std::byte* parameters_ = nullptr;
  float* gradients_ = nullptr;
  std::span<double> loss_sums_;
  std::optional<StateView> state_view_;  // from allocate() on
};

}  // namespace holdfast::inline train
