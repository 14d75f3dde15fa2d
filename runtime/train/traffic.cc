#include "runtime/train/traffic.h"

#include <algorithm>

#include "runtime/train/rank_layout.h"
#include "runtime/train/step.h"

namespace holdfast {
namespace {

void send(Traffic& traffic, std::uint64_t bytes, std::uint64_t messages = 1) {
  if (bytes == 0) return;  // what is empty is not sent
  traffic.bytes_sent += messages * bytes;
  traffic.messages_sent += messages;
}

void receive(Traffic& traffic, std::uint64_t bytes, std::uint64_t messages = 1) {
  if (bytes == 0) return;
  traffic.bytes_received += messages * bytes;
  traffic.messages_received += messages;
}

// Every lane of a wave sends each owner its range of each bucket.
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

// Every owner sends its range of each bucket to all others.
Traffic parameter_gather(const BucketPlan& buckets, int rank, std::uint64_t element_bytes) {
  Traffic traffic;
  for (int bucket = 0; bucket < static_cast<int>(buckets.buckets().size()); ++bucket) {
    if (buckets.buckets()[static_cast<std::size_t>(bucket)].shadow_of >= 0) continue;
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

// The head's end sends its gradient's sum, the embedding's end the updated weight.
Traffic tied_ends(const BucketPlan& buckets, int rank, std::uint64_t element_bytes) {
  Traffic traffic;
  const int tied = std::max(buckets.away(), buckets.guest());
  if (tied < 0) return traffic;
  const std::uint64_t gradient = buckets.gradient_range(tied, rank).size() * sizeof(float);
  const std::uint64_t weight = buckets.parameter_range(tied, rank).size() * element_bytes;
  const bool is_head = buckets.guest() >= 0;
  send(traffic, is_head ? gradient : weight);
  receive(traffic, is_head ? weight : gradient);
  return traffic;
}

// Up a binomial tree to rank 0 and down again (collectives.h).
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

StepTraffic step_traffic(const Config& config, int ranks, int rank) {
  const ModelSpec spec = make_model_spec(config);
  const Mesh mesh = mesh_of(config, ranks);
  const MeshSeat seat = mesh.seat_of(rank);
  const LaneSchedule lanes(static_cast<int>(config.parallel.lanes), mesh.shape().data);
  const TensorShare share = share_of(spec.tensor_lanes, seat.tensor, mesh.shape().tensor);
  const std::vector<ModelPart> parts = parts_of_stage(spec, config, seat.pipeline);
  const BucketPlan buckets(backward_buckets(spec, parts, share),
                           mesh.shape().data);
  const std::uint64_t element_bytes = bytes_of(spec.dtype);
  const std::int64_t boundary = config.training.microbatch_size * config.training.sequence_length *
                                spec.width / share.ranks();
  return {.gradients = lane_reduction(buckets, lanes, seat.data),
          .parameters = parameter_gather(buckets, seat.data, element_bytes),
          .boundaries = stage_boundaries(stage_schedule(config, lanes, seat.data, seat.pipeline),
                                         static_cast<std::uint64_t>(boundary) * element_bytes),
          .tied = tied_ends(buckets, seat.data, element_bytes),
          .votes = vote(ranks, rank)};
}

}  // namespace holdfast
