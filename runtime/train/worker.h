// Worker holds everything that one rank needs while it trains, built once and planned as one memory. The only
// mutable state of a run is here and in the run directory; several workers can live in one process.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "checkpoint/slot_pool.h"
#include "parallel/comm/communicator.h"
#include "parallel/data/lane_reduction.h"
#include "parallel/data/parameter_gather.h"
#include "parallel/group/mesh.h"
#include "runtime/config/config.h"
#include "runtime/core/kept_memory.h"
#include "runtime/core/memory_plan.h"
#include "runtime/data/loader.h"
#include "runtime/device/device.h"
#include "runtime/device/host_access.h"
#include "runtime/device/nccl_library.h"
#include "runtime/integrity/step_check.h"
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
#include "runtime/train/run_state_check.h"
#include "runtime/train/sample_log.h"
#include "runtime/train/stage_model.h"
#include "runtime/train/workload.h"
#include "watchdog/rank_watch.h"

namespace holdfast::train {

// WorkerInputs holds what a worker is built from; the referenced objects outlive the worker.
struct WorkerInputs {
  Env& env;
  FaultPoints& faults;
  Communicator& communicator;
  Device& device;
  const Config& config;  // resolved
  Mesh mesh;             // of all ranks
  // Rank that stores the replicas of the RAM snapshots of each rank, by rank (replica_buddies()); empty: no
  // replicas are stored.
  std::vector<int> buddies = {};
  std::shared_ptr<DataSet> data;
  int ranks_on_host = 1;  // number of ranks that share the memory of this host
  // Library that moves device memory between the ranks of every axis, set on all of them or on none; null:
  // the communicator moves it.
  NcclLibrary* nccl = nullptr;
  int gpu = 0;                  // CUDA ordinal of the device, for NCCL
  std::uint64_t epoch = 0;      // membership epoch of the communicator; part of names in NCCL's log
  RankWatch* watch = nullptr;   // is notified of waits, and holds the ring of spans; null: none
  SampleLog* ledger = nullptr;  // ledger of this process; null unless data.ledger
  MemoryTerms memory = {};      // rules for hosts that have too little memory
  // Receives what all ranks decided about memory, also where create() fails for lack of it; null: not wanted.
  MemoryDecision* memory_decision = nullptr;
  KeptMemory* kept = nullptr;  // the arena comes from it and goes back to it; null: allocated and freed
  SlotPool* slots = nullptr;   // shared slots come from it and go back to it; null: they are new
  std::optional<Secret> secret = {};  // secret of the connections between ranks; none: no connections
  // Worker::verified_step() of this process, over all of its workers; null: of this worker alone.
  std::optional<std::uint64_t>* verified_step = nullptr;
  // Record that findings about hardware are counted in, and the name of this rank's device in it
  // (hardware_name()); null: none is kept, and every finding is the first.
  HardwareRecord* hardware = nullptr;
  std::string hardware_name = "cpu";
};

class Worker {
 public:
  // Connects NCCL, plans and allocates all memory and prepares every kernel; all ranks call it together.
  // Errors: those of agree_on_memory() where some host has too little memory.
  static Result<std::unique_ptr<Worker>> create(const WorkerInputs& inputs);
  // Builds the worker as a planner needs it (planned_rank.h): all memory is reserved and bound, but the ranks
  // do not agree on whether it fits and no kernel is prepared. The peers need not exist, and the device need
  // not run. `with_nccl`: the run exchanges by NCCL.
  static Result<std::unique_ptr<Worker>> plan(const WorkerInputs& inputs, bool with_nccl = false);
  // Waits for ops and exchanges that may still be running after an error, or ends them, before their memory
  // is freed.
  ~Worker();

  const RankContext& rank() const { return rank_; }
  const Workload& workload() const { return workload_; }
  RankLinks& links() { return links_; }
  StageModel& stage() { return *stage_; }
  StateView& state_view() { return *state_view_; }  // state that saves and restores use
  const SnapshotPlan& snapshots() const { return snapshots_; }
  const MemoryPlan& memory_plan() const { return memory_.plan; }
  // Returns whether this rank counts the samples of its copy of the model, so that each counts once.
  bool counts_samples() const { return rank_.coordinate.pipeline == 0 && rank_.counts_replicated(); }
  ShardedOptimizer& optimizer() { return update_->optimizer; }
  LaneReduction& reduction() { return update_->reduction; }
  // Gathers the parameters that their owners have updated. Call finish() before reading parameters, except in
  // the forwards of the next step.
  ParameterGather& parameter_gather() { return update_->gather; }
  LaneRunner& lane_runner() { return *lane_runner_; }
  HardwareChecks& checks() { return *checks_; }
  const HardwareChecks& checks() const { return *checks_; }
  // Returns the ledger; null where samples are not logged, or another rank logs them for this one.
  SampleLog* ledger() { return counts_samples() ? inputs_.ledger : nullptr; }
  RunState& state() { return state_; }
  const RunState& state() const { return state_; }
  const DataSet& data() const { return *inputs_.data; }

  // Returns the step whose state this worker began with. Valid after start_loader().
  std::uint64_t first_step() const { return state_.first_step.value_or(0); }

  // Returns the newest step up to which this rank has not computed wrong, as far as audits say: of the last one that
  // it passed, else the one that it began with.
  std::uint64_t verified_step() const {
    return (inputs_.verified_step != nullptr ? *inputs_.verified_step : state_.verified_step).value_or(0);
  }
  void note_verified_step() { own_verified_step() = state_.step; }

  // Returns where the steps that this worker has made have taken the run.
  RunPosition& position() { return position_; }
  const RunPosition& position() const { return position_; }

  // Starts the loader at state().data_cursor.
  Result<void> start_loader();
  // Does so where the run goes on elsewhere in the data than behind the step before.
  Result<void> jump_in_data();
  // Returns a loader of one lane of the next step.
  std::unique_ptr<DataLoader> loader_of_lane(int lane) const;
  // Launches every kind of step once in planning mode: the kernels create their primitives and report the
  // workspace that they need. create() has already called it.
  Result<void> prepare_kernels();
  // Sends the head's gradient, summed over all lanes, to the embedding's stage where a tied weight has its
  // ends on two stages. Called between the last wave and LaneReduction::finish_step().
  Result<void> join_tied_gradients();

 private:
  // Memory of a worker: planned by all objects that need some, then allocated as one.
  struct PlannedMemory {
    MemoryPlan plan;
    MemoryArena arena;
    std::optional<HostAccess> host_access;  // access to memory on the device
  };
  // ShardedUpdate updates parameters whose optimizer state is sharded: gradients go to the owner of their
  // block, the owner updates it, and its parameters go back to all ranks.
  struct ShardedUpdate {
    ShardedOptimizer optimizer;
    LaneReduction reduction;
    ParameterGather gather;
  };

  explicit Worker(const WorkerInputs& inputs);
  Result<void> connect_nccl();
  void connect_faults();  // those that change numbers
  std::optional<std::uint64_t>& own_verified_step() {
    return inputs_.verified_step != nullptr ? *inputs_.verified_step : state_.verified_step;
  }
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
  RunPosition position_;
  RankContext rank_;  // refers to the members above
  SnapshotPlan snapshots_;
  PlannedMemory memory_;
  std::unique_ptr<StageModel> stage_;
  std::unique_ptr<ShardedUpdate> update_;
  std::unique_ptr<HardwareChecks> checks_;
  std::unique_ptr<LaneRunner> lane_runner_;
  std::unique_ptr<DataLoader> loader_;
  std::optional<StateView> state_view_;  // set by allocate()
};

}  // namespace holdfast::train
