// LaneRunner: the forwards and backwards of one step on this rank: the microbatches of its lanes in the order
// of the pipeline's schedule, and the lane reduction between them. A run without a pipeline is one of one
// stage.
//
// The first forwards wait for parameters that are still on their way, each half layer for its own.
// A lane's gradients may be written when the lane before has left the buffer; its first forwards do not wait
// for that. A rank without a lane in the last wave takes part in its reduction alone.
#pragma once

#include <cstddef>

#include "parallel/pipeline/stage_executor.h"
#include "runtime/core/digest.h"
#include "runtime/model/model.h"
#include "runtime/rank/rank_layout.h"

namespace holdfast {

class Worker;

// What the lanes of this rank add to the step, on the stages that count it: every sample once.
struct LaneOutcome {
  Digest data;
  std::int64_t counted_targets = 0;
  std::size_t losses = 0;  // so many of Worker::loss_sums() are written
  Result<void> failure;    // the loader's: its microbatches were run on whatever the memory held
};

class LaneRunner final : private StageWork {
 public:
  // The worker outlives it.
  LaneRunner(Worker& worker, const StageLinks& links, StageSchedule schedule);
  struct BucketRange {
    int first = 0, count = 0;
  };
  // Between LaneReduction::begin_step() and finish_step(). `outcome.failure` may hold one already.
  Result<void> run(LaneOutcome& outcome);

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

  void load(StagePosition position);
  // Before the first backward of the step: the transport is the gradients' from then on.
  Result<void> begin_reduction();
  template <typename Launch>
  Result<void> launch_repeatedly(StagePosition position, Work work, const Launch& launch);
  Result<void> next_wave();
  // Of the microbatch in this rank's step.
  std::size_t slot(StagePosition position) const;
  Span span_of(SpanKind kind, StagePosition position) const;
  TokenBatch tokens(StagePosition position) const;
  std::int64_t index_in_lane(StagePosition position) const;
  // Its lane is not the first of this run of the schedule: the one before is still in the gradients.
  bool starts_next_lane(StagePosition position) const;

  Worker* worker_;
  int runs_;  // of the schedule in a step
  StageExecutor executor_;
  std::vector<BucketRange> buckets_;  // by chunk
  bool buckets_wait_;
  LaneOutcome* outcome_ = nullptr;
  int wave_ = 0;
  bool reducing_ = false;
  std::size_t first_slot_ = 0;  // of this run of the schedule
};

}  // namespace holdfast
