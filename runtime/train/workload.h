// Workload is the part of the model and of the batch that one rank computes: its stage's layers, its slices,
// its lanes, and the buckets in which its gradients are sent. It follows from the resolved config and the
// rank's coordinate alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "parallel/data/buckets.h"
#include "parallel/data/lane_exchange.h"
#include "parallel/group/mesh.h"
#include "runtime/config/config.h"
#include "runtime/data/loader.h"
#include "runtime/model/model.h"
#include "runtime/model/spec.h"
#include "runtime/rank/rank_layout.h"
#include "runtime/rank/rank_links.h"

namespace holdfast::train {

struct Workload {
  Workload(const Config& config, const Mesh& mesh, int rank);

  ModelSpec spec;  // of the whole model
  TensorShare share;
  std::vector<ModelPart> parts;  // model parts of this stage, by chunk
  LaneSchedule lanes;            // lanes of the run
  std::vector<int> rank_lanes;   // lanes of this rank, in the order of waves
  BucketPlan buckets;
  LaneExchange exchange;
  BatchShape batch_shape;
  StageSchedule schedule;
  // Interval of lane audits (runtime/integrity/lane_check.h); 0: there are none.
  std::int64_t audit_every_steps = 0;

  BatchShapeBT microbatch() const {
    return {.batch = batch_shape.microbatch_size, .sequence_length = batch_shape.sequence_length};
  }
  std::uint64_t tokens_per_step() const;  // tokens of all ranks
  // Returns the number of microbatches of this rank in a step, or those of one lane where the rank has no
  // lane.
  std::size_t step_slots() const;
  // Returns the position inside the step of the first sample of a microbatch of this rank, by its slot.
  std::uint64_t first_sample_of(std::size_t slot) const;
  // Returns that of a microbatch of any lane.
  std::uint64_t first_sample_of(int lane, int microbatch) const;
  // Returns the bucket of a weight that another stage shares with this one, or -1.
  int tied_bucket() const;
  LinkBytes link_bytes(int data_rank) const;
};

}  // namespace holdfast::train
