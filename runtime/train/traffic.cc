#include "runtime/train/traffic.h"

#include <algorithm>

#include "runtime/model/activations.h"
#include "runtime/rank/rank_layout.h"
#include "runtime/train/step.h"

namespace holdfast::inline train {
namespace {

void send(Traffic& traffic, std::uint64_t bytes, std::uint64_t messages = 1) {
  if (bytes == 0) return;  // empty messages are not sent
  traffic.bytes_sent += messages * bytes;
  traffic.messages_sent += messages;
}

void receive(Traffic& traffic, std::uint64_t bytes, std::uint64_t messages = 1) {
  if (bytes == 0) return;
  traffic.bytes_received += messages * bytes;
  traffic.messages_received += messages;
}

// Returns the traffic of the lane reduction: every lane of a wave sends each owner its range of each bucket.
Traffic lane_reduction(const BucketPlan& buckets, const LaneSchedule& lanes, int rank) {
  Traffic traffic;
  for (int wave = 0; wave < lanes.waves(); ++wave) {
    const int active = lanes.lanes_in_wave(wave);
    for (int bucket = 0; bucket < buckets.local_count(); ++bucket) {
      const auto bytes_of = [&](int owner) {
        return buckets.gradient_range(bucket, owner).size() * sizeof(float);
      };
      const int sources = rank < active ? active - 1 : active;
      receive(traffic, bytes_of(rank), static_cast<std::uint64_t>(sources));
      for (int owner = 0; owner < lanes.ranks() && rank < active; ++owner) {
        if (owner != rank) send(traffic, bytes_of(owner));
      }
    }
  }
  return traffic;
}

// Returns the traffic of the all-gather of parameters: every owner sends its range of each bucket to all
// others.
Traffic parameter_gather(const BucketPlan& buckets, int rank, std::uint64_t element_bytes) {
  Traffic traffic;
  for (int bucket = 0; bucket < static_cast<int>(buckets.buckets().size()); ++bucket) {
    if (buckets.buckets()[static_cast<std::size_t>(bucket)].tied_to >= 0) continue;
    for (int owner = 0; owner < buckets.ranks(); ++owner) {
      const std::uint64_t bytes = buckets.parameter_range(bucket, owner).size() * element_bytes;
      if (owner == rank) {
        send(traffic, bytes, static_cast<std::uint64_t>(buckets.ranks() - 1));
      } else {
        receive(traffic, bytes);
      }
    }
  }
  return traffic;
}

Traffic stage_boundaries(const StageSchedule& schedule, std::uint64_t boundary_bytes) {
  Traffic once;
  for (const Action& action : schedule.actions) {
    if (action.source != no_stage) receive(once, boundary_bytes);
    if (action.target != no_stage) send(once, boundary_bytes);
  }
  Traffic traffic;
  for (int run = 0; run < schedule.runs; ++run) traffic += once;
  return traffic;
}

// Returns the traffic of a tied weight: the stage with the head sends the sum of its gradient, the stage with
// the embedding sends the updated weight.
Traffic tied_ends(const BucketPlan& buckets, int rank, std::uint64_t element_bytes) {
  Traffic traffic;
  const int tied = std::max(buckets.imported(), buckets.exported());
  if (tied < 0) return traffic;
  const std::uint64_t gradient = buckets.gradient_range(tied, rank).size() * sizeof(float);
  const std::uint64_t weight = buckets.parameter_range(tied, rank).size() * element_bytes;
  const bool is_head = buckets.exported() >= 0;
  send(traffic, is_head ? gradient : weight);
  receive(traffic, is_head ? weight : gradient);
  return traffic;
}

// SliceTraffic counts the traffic of this rank's microbatches in its tensor group. Each exchange sends every
// peer one part of equal size and receives one.
class SliceTraffic {
 public:
  SliceTraffic(const Config& config, const ModelSpec& spec, const TensorShare& share)
      : spec_(spec),
        share_(share),
        recompute_(recompute_of(config)),
        rows_(config.training.microbatch_size * config.training.sequence_length) {}

  // Returns the traffic of one step: its schedule, run once or for each lane.
  Traffic of_step(const StageSchedule& schedule, std::span<const ModelPart> parts) {
    if (share_.ranks() == 1) return {};
    for (int run = 0; run < schedule.runs; ++run) {
      const Action* before = nullptr;
      for (const Action& action : schedule.actions) {
        const ModelPart& part = parts[static_cast<std::size_t>(action.chunk)];
        const bool follows = before != nullptr && before->work == Work::forward &&
                             before->chunk == action.chunk && before->microbatch == action.microbatch;
        if (action.work == Work::forward) {
          forward(part);
        } else {
          backward(part, action, follows);
        }
        before = &action;
      }
    }
    return traffic_;
  }

 private:
  void forward(const ModelPart& part) {
    const auto layers = static_cast<std::uint64_t>(part.layers());
    exchange(2 * layers, row_bytes(spec_.dtype));
    exchange(2 * layers, row_bytes(DType::fp32));
    if (part.has_embedding) exchange(1, row_bytes(spec_.dtype));
  }
  // Counts a backward. Rows that both parts of a split backward read are gathered by each of them.
  void backward(const ModelPart& part, const Action& action, bool follows_forward) {
    const bool of_inputs = action.work != Work::backward_weight;
    const bool of_weights = action.work != Work::backward_input;
    const auto layers = static_cast<std::uint64_t>(part.layers());
    exchange(2 * layers, row_bytes(spec_.dtype));
    if (of_inputs) exchange(2 * layers, row_bytes(DType::fp32));
    const bool is_there = follows_forward && of_inputs && layers > 0;
    const std::uint64_t again = is_there ? layers - 1 : layers;
    if (recompute_ == Recompute::full || (recompute_ == Recompute::selective && of_weights))
      exchange(2 * again, row_bytes(spec_.dtype));
    if (recompute_ == Recompute::full) exchange(again, row_bytes(DType::fp32));
    if (part.has_embedding && of_weights) exchange(1, row_bytes(spec_.dtype));
    if (part.has_head && of_inputs) head();
    if (!action.completes_lane || !of_weights) return;
    const std::uint64_t vectors = spec_.norm == NormKind::layer_norm ? 2 : 1;
    const std::uint64_t gradient_bytes = vectors * static_cast<std::uint64_t>(spec_.width) * sizeof(float);
    exchange(2 * layers + (part.has_head ? 1 : 0), static_cast<std::uint64_t>(share_.count) * gradient_bytes);
  }
  void head() {
    exchange(1, row_bytes(spec_.dtype));
    const std::int64_t chunk = head_chunk_rows(rows_, spec_);
    for (std::int64_t first = 0; first < rows_; first += chunk) {
      const std::int64_t rows = std::min(chunk, rows_ - first);
      exchange(1, static_cast<std::uint64_t>(share_.count * rows) * sizeof(SoftmaxStatistics));
    }
    exchange(1, row_bytes(DType::fp32));
  }
  // Returns the bytes of one rank's share of the rows.
  std::uint64_t row_bytes(DType dtype) const {
    return static_cast<std::uint64_t>(rows_ / share_.ranks() * spec_.width) * bytes_of(dtype);
  }
  void exchange(std::uint64_t count, std::uint64_t part_bytes) {
    const std::uint64_t messages = count * static_cast<std::uint64_t>(share_.ranks() - 1);
    send(traffic_, part_bytes, messages);
    receive(traffic_, part_bytes, messages);
  }

  const ModelSpec& spec_;
  TensorShare share_;
  Recompute recompute_;
  std::int64_t rows_;
  Traffic traffic_;
};

// Returns the traffic of the vote, which goes up a binomial tree to rank 0 and down again (collectives.h).
Traffic vote(int ranks, int rank) {
  constexpr std::uint64_t bytes = ballot_words * sizeof(std::int64_t);
  Traffic traffic;
  int step = 1;
  for (; step < ranks && (rank & step) == 0; step *= 2) {
    if (rank + step >= ranks) continue;
    receive(traffic, bytes);
    send(traffic, bytes);
  }
  if (rank != 0) {
    send(traffic, bytes);
    receive(traffic, bytes);
  }
  return traffic;
}

}  // namespace

StepTraffic step_traffic(const Config& config, const Mesh& mesh, int rank) {
  const ModelSpec spec = make_model_spec(config);
  const MeshCoordinate coordinate = mesh.coordinate_of(rank);
  const LaneSchedule lanes(static_cast<int>(config.parallel.lanes), mesh.shape().data);
  const TensorShare share = share_of(spec.tensor_lanes, coordinate.tensor, mesh.shape().tensor);
  const std::vector<ModelPart> parts = parts_of_stage(spec, config, coordinate.pipeline);
  const BucketPlan buckets(backward_buckets(spec, parts, share), mesh.shape().data);
  const std::uint64_t element_bytes = bytes_of(spec.dtype);
  const std::int64_t boundary =
      config.training.microbatch_size * config.training.sequence_length * spec.width / share.ranks();
  const StageSchedule schedule = stage_schedule(config, lanes, coordinate.data, coordinate.pipeline);
  return {.gradients = lane_reduction(buckets, lanes, coordinate.data),
          .parameters = parameter_gather(buckets, coordinate.data, element_bytes),
          .boundaries = stage_boundaries(schedule, static_cast<std::uint64_t>(boundary) * element_bytes),
          .tied = tied_ends(buckets, coordinate.data, element_bytes),
          .slices = SliceTraffic(config, spec, share).of_step(schedule, parts),
          .votes = vote(mesh.shape().ranks(), rank)};
}

}  // namespace holdfast::inline train
