// LaneRunner runs the forwards and backwards of one step on this rank: the microbatches of its lanes in the
// order of the pipeline's schedule, and the lane reduction between them. A run without a pipeline counts as a
// pipeline of one stage.
//
// The first forwards wait for parameters that are still on their way, each half layer for its own. A lane's
// gradients may be written when those of the lane before have left the buffer; its first forwards do not wait
// for that. A rank without a lane in the last wave only takes part in the reduction of that wave.
//
// A lane audit (runtime/integrity/lane_check.h) computes a lane once more, of this rank or another one, for the digests
// of its gradients alone: nothing is reduced.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "parallel/pipeline/stage_executor.h"
#include "runtime/core/digest.h"
#include "runtime/data/loader.h"
#include "runtime/integrity/lane_check.h"
#include "runtime/model/model.h"
#include "runtime/rank/rank_links.h"
#include "runtime/train/sample_log.h"
#include "runtime/train/step_parts.h"

namespace holdfast::train {

// LaneOutcome holds what the lanes of this rank add to the step. Only the stages that count samples fill it,
// so that every sample counts once.
struct LaneOutcome {
  Digest data;
  std::int64_t counted_targets = 0;
  std::size_t losses = 0;     // number of entries of StageModel::loss_sums() that are written
  std::int64_t audit_ns = 0;  // time for the lane that this rank has audited
  Result<void> failure;       // error of the loader; its microbatches were run on whatever the memory held
};

class LaneRunner final : private StageWork {
 public:
  // `ledger`: null where samples are not logged, or another rank logs them. Both outlive this object.
  LaneRunner(StepParts& parts, SampleLog* ledger);
  struct BucketRange {
    int first = 0, count = 0;
  };
  // Runs all lanes, and sends the head's gradient, summed over all of them, to the embedding's stage where a tied
  // weight has its ends on two stages. Called between LaneReduction::begin_step() and finish_step().
  // `outcome.failure` may already hold an error. Of `audited_lane`, where this rank has it, the digests are launched.
  Result<void> run(LaneOutcome& outcome, int audited_lane = no_lane);
  // Runs a lane for its digests alone. `loader` gives the microbatches of that lane. Called before run(),
  // because it writes the gradient buffer; all ranks of this copy of the model call it together. `failure`:
  // error of the loader, as of LaneOutcome.
  Result<void> audit(int lane, DataLoader& loader, Result<void>& failure);
  static constexpr int no_lane = -1;
  // Returns the activation of the microbatch whose backward was begun last that is at the boundary of the
  // stage: the output where the stage has the head, which starts that backward, and the input elsewhere.
  std::span<std::byte> boundary_activation();

 private:
  Result<void> launch_forward(StagePosition position) override;
  Result<void> launch_backward(StagePosition position, const BackwardLaunch& launch) override;
  bool can_write_weight_gradients(StagePosition position) override;
  Error give_up() override;
  std::span<std::byte> input(StagePosition position) override;
  std::span<std::byte> output(StagePosition position) override;
  std::span<std::byte> output_gradient(StagePosition position) override;
  std::span<std::byte> input_gradient(StagePosition position) override;
  Result<bool> advance() override;

  Result<void> run_waves(LaneOutcome& outcome, int audited_lane);
  void load(StagePosition position);
  bool audits() const { return run_.audit_loader != nullptr; }
  void let_advance(StageExecutor& executor);
  // Returns whose digests of the microbatch's lane are wanted; none: nobody's.
  std::optional<LaneDigests::Of> digests_wanted(StagePosition position) const;
  // Replaces the tokens of samples that a fault point scrambles, and remembers one whose first activation
  // becomes a NaN.
  void spoil_samples(StagePosition position, MicroBatch& batch);
  void spoil_embedding(int microbatch);
  struct LaunchedBucket {
    int bucket = 0;
    Device::Ticket ticket = 0;
    std::optional<LaneDigests::Of> digests = {};  // those that are wanted
  };
  // Lets a bucket leave for the reduction; later, with the rest of its lane, where a fault point changes
  // gradients before any of them leaves.
  void announce(int bucket, std::optional<LaneDigests::Of> digests);
  void let_leave(const LaunchedBucket& launched);
  void finish_lane();
  void pass_reduce_point();
  // Begins the lane reduction. Called before the first backward of the step; from then on the transport
  // belongs to the gradients.
  Result<void> begin_reduction();
  // UnderWay is the state of the call of run() or audit() that is under way.
  struct UnderWay {
    LaneOutcome* outcome = nullptr;
    DataLoader* audit_loader = nullptr;  // set while a lane is audited
    int audit_lane = no_lane;            // that lane
    int audited_lane = no_lane;          // lane of this rank whose digests are wanted
    int wave = 0;
    bool reducing = false;
    bool passed_reduce_point = false;  // of this wave
    std::size_t first_slot = 0;        // first slot of this run of the schedule
  };
  template <typename Launch>
  Result<void> launch_repeatedly(StagePosition position, Work work, const Launch& launch);
  Result<void> next_wave();
  Result<void> join_tied_gradients();
  // Returns the slot of the microbatch within this rank's step.
  std::size_t slot(StagePosition position) const;
  Span span_of(SpanKind kind, StagePosition position) const;
  OpScope scope_of(OpScope::Pass pass, StagePosition position) const;
  const Model& model(StagePosition position) const;
  TokenBatch tokens(StagePosition position) const;
  std::int64_t index_in_lane(StagePosition position) const;
  // Returns whether the microbatch begins a lane that is not the first of this run of the schedule, so that
  // the buffer still holds the gradients of the lane before.
  bool starts_next_lane(StagePosition position) const;

  const Workload& workload() const { return parts_.workload(); }
  TensorGroup& tensor_group() { return parts_.rank.links.tensor_group(); }

  StepParts& parts_;
  SampleLog* ledger_;
  StageExecutor executor_;
  StageExecutor audit_executor_;      // runs one lane
  std::vector<BucketRange> buckets_;  // by chunk
  bool buckets_wait_;
  bool buckets_wait_for_point_;  // true: a fault point changes the gradients of a lane
  std::vector<LaunchedBucket> waiting_buckets_;
  std::optional<std::uint64_t> nan_sample_;  // index in the microbatch that is being launched
  std::vector<std::int32_t> scrambled_inputs_, scrambled_targets_;
  StagePosition backward_;
  UnderWay run_;
};

}  // namespace holdfast::train
