// Worker: everything one rank holds while it trains, built once and planned as one memory. The only mutable
// state of a run is here and in the run directory; several workers can live in one process.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "checkpoint/slot_pool.h"
#include "kernels/device.h"
#include "kernels/host_access.h"
#include "kernels/nccl_library.h"
#include "parallel/comm/communicator.h"
#include "parallel/data/lane_reduction.h"
#include "parallel/data/parameter_gather.h"
#include "parallel/group/mesh.h"
#include "runtime/config/config.h"
#include "runtime/core/kept_memory.h"
#include "runtime/core/memory_plan.h"
#include "runtime/data/loader.h"
#include "runtime/optim/sharded_optimizer.h"
#include "runtime/os/fault_point.h"
#include "runtime/os/sealed_network.h"
#include "runtime/os/span_recorder.h"
#include "runtime/rank/memory_agreement.h"
#include "runtime/rank/rank_context.h"
#include "runtime/rank/rank_links.h"
#include "runtime/rank/run_secret.h"
#include "runtime/save/run_state.h"
#include "runtime/save/snapshot_plan.h"
#include "runtime/save/state_view.h"
#include "runtime/train/lane_runner.h"
#include "runtime/train/sample_log.h"
#include "runtime/train/stage_model.h"
#include "runtime/train/workload.h"
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
  const Workload& workload() const { return workload_; }
  RankLinks& links() { return links_; }
  StageModel& stage() { return *stage_; }
  StateView& state_view() { return *state_view_; }  // to save and load its state
  const SnapshotPlan& snapshots() const { return snapshots_; }
  const MemoryPlan& memory_plan() const { return memory_.plan; }
  // Returns whether this rank counts the samples of its copy of the model, so that each counts once.
  bool counts_samples() const { return rank_.coordinate.pipeline == 0 && rank_.counts_replicated(); }
  ShardedOptimizer& optimizer() { return update_->optimizer; }
  LaneReduction& reduction() { return update_->reduction; }
  // Of the parameters that the owners updated. Whatever reads parameters but the next step's forwards
  // finishes it first.
  ParameterGather& parameter_gather() { return update_->gather; }
  LaneRunner& lane_runner() { return *lane_runner_; }
  // Null where samples are not written down, or another rank does it for this one.
  SampleLog* ledger() { return counts_samples() ? inputs_.ledger : nullptr; }
  RunState& state() { return state_; }

  // Starts the loader at state().data_cursor.
  void start_loader();
  // Launches every kind of step once in planning mode: the kernels make their primitives and say what
  // workspace they need. create() has done it.
  Result<void> prepare_kernels();
  // Where a tied weight has its ends on two stages: the head's gradient, summed over all lanes, to the
  // embedding's. Between the last wave and LaneReduction::finish_step().
  Result<void> join_tied_gradients();

 private:
  // Memory of a worker: planned by all that need some, then taken as one.
  struct PlannedMemory {
    MemoryPlan plan;
    MemoryArena arena;
    std::optional<HostAccess> host_access;  // to what is on the device
  };
  // The update of parameters whose optimizer state is sharded: gradients go to the owner of their block, the
  // owner updates it, and its parameters go back to everybody.
  struct ShardedUpdate {
    ShardedOptimizer optimizer;
    LaneReduction reduction;
    ParameterGather gather;
  };

  explicit Worker(const WorkerInputs& inputs);
  Result<void> connect_nccl();
  void reserve();
  Result<void> agree_it_fits();
  Result<MemoryArena> make_arena();
  Result<void> allocate();

  WorkerInputs inputs_;
  Workload workload_;
  SpanRecorder spans_;
  Waiter waiter_;
  RankLinks links_;
  RunState state_;
  RankContext rank_;  // of the above
  SnapshotPlan snapshots_;
  PlannedMemory memory_;
  std::unique_ptr<StageModel> stage_;
  std::unique_ptr<ShardedUpdate> update_;
  std::unique_ptr<LaneRunner> lane_runner_;
  std::unique_ptr<DataLoader> loader_;
  std::optional<StateView> state_view_;  // from allocate() on
};

}  // namespace holdfast::inline train
