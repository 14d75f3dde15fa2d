#include "runtime/plan/step_traffic.h"

#include <algorithm>

#include "parallel/comm/group_communicator.h"
#include "parallel/data/gather_exchange.h"
#include "parallel/data/lane_exchange.h"
#include "runtime/elastic/planned_rank.h"
#include "runtime/rank/rank_layout.h"
#include "runtime/train/ballot.h"
#include "runtime/train/worker.h"

namespace holdfast::plan {
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

Traffic repeated(const Traffic& once, int times) {
  Traffic traffic;
  for (int i = 0; i < times; ++i) traffic += once;
  return traffic;
}

// Returns the traffic of the lane reduction, all of it or that with other hosts.
Traffic lane_reduction(const LaneExchange& exchange, bool between_hosts) {
  Traffic traffic;
  std::vector<LaneExchange::Message> in, out;
  const auto counts = [&](const LaneExchange::Message& message) {
    return !between_hosts || !exchange.same_host(message.peer);
  };
  for (int wave = 0; wave < exchange.schedule().waves(); ++wave) {
    for (int position = 0; position < exchange.count(wave); ++position) {
      in.clear();
      out.clear();
      exchange.incoming(wave, exchange.at(wave, position), in);
      exchange.outgoing(wave, exchange.at(wave, position), out);
      for (const LaneExchange::Message& message : in)
        if (counts(message)) receive(traffic, message.range.size() * sizeof(float));
      for (const LaneExchange::Message& message : out)
        if (counts(message)) send(traffic, message.range.size() * sizeof(float));
    }
  }
  return traffic;
}

// Returns the traffic of the all-gather of parameters, all of it or that with other hosts.
Traffic parameter_gather(const BucketPlan& buckets, const LaneExchange& lanes, std::uint64_t element_bytes,
                         bool between_hosts) {
  Traffic traffic;
  const GatherExchange exchange(buckets, lanes);
  std::vector<GatherExchange::Message> in, out;
  const auto counts = [&](const GatherExchange::Message& message) {
    return !between_hosts || !lanes.same_host(message.peer);
  };
  for (int bucket = 0; bucket < static_cast<int>(buckets.buckets().size()); ++bucket) {
    if (buckets.buckets()[static_cast<std::size_t>(bucket)].tied_to >= 0 || buckets.is_frozen(bucket))
      continue;
    in.clear();
    out.clear();
    for (const auto stage : {GatherExchange::Stage::between, GatherExchange::Stage::inside}) {
      exchange.incoming(stage, bucket, in);
      exchange.outgoing(stage, bucket, out);
    }
    for (const GatherExchange::Message& message : in)
      if (counts(message)) receive(traffic, message.range.size() * element_bytes);
    for (const GatherExchange::Message& message : out)
      if (counts(message)) send(traffic, message.range.size() * element_bytes);
  }
  return traffic;
}

Traffic stage_boundaries(const StageSchedule& schedule, std::uint64_t boundary_bytes) {
  Traffic once;
  for (const Action& action : schedule.actions) {
    if (action.source != no_stage) receive(once, boundary_bytes);
    if (action.target != no_stage) send(once, boundary_bytes);
  }
  return repeated(once, schedule.runs);
}

// Returns the traffic of a tied weight: the stage with the head sends the sum of its gradient, the stage with
// the embedding sends the updated weight.
Traffic tied_ends(const BucketPlan& buckets, int rank, std::uint64_t element_bytes) {
  Traffic traffic;
  const int tied = std::max(buckets.imported(), buckets.exported());
  if (tied < 0 || buckets.is_frozen(tied)) return traffic;
  const std::uint64_t gradient = buckets.gradient_range(tied, rank).size() * sizeof(float);
  const std::uint64_t weight = buckets.parameter_range(tied, rank).size() * element_bytes;
  const bool is_head = buckets.exported() >= 0;
  send(traffic, is_head ? gradient : weight);
  receive(traffic, is_head ? weight : gradient);
  return traffic;
}

// Adds up what the parts of the stage exchange in the order of their actions.
Traffic tensor_slices(const StageSchedule& schedule, std::span<const PartTraffic> parts) {
  Traffic once;
  const Action* before = nullptr;
  for (const Action& action : schedule.actions) {
    const bool follows = before != nullptr && before->work == Work::forward &&
                         before->chunk == action.chunk && before->microbatch == action.microbatch;
    once += parts[static_cast<std::size_t>(action.chunk)].of(action, follows);
    before = &action;
  }
  return repeated(once, schedule.runs);
}

Traffic vote(Env& env, int ranks, int rank) {
  AbsentPeers peers(rank, ranks);
  CountedCommunicator counted(peers);
  Ballot ballot;
  HF_CHECK(sum_over_ranks(counted, Waiter(env, /*timeout_ms=*/1), ballot).ok());
  return counted.traffic().of(Axis::control);
}

}  // namespace

std::size_t PartTraffic::index(BackwardPart part, bool follows_forward, bool completes_lane) {
  return 4 * static_cast<std::size_t>(part) + (follows_forward ? 2 : 0) + (completes_lane ? 1 : 0);
}

PartTraffic::PartTraffic(Worker& worker, int chunk) {
  if (worker.workload().share.ranks() == 1) return;
  Device& device = worker.rank().device;
  const Model& model = worker.stage().model(chunk);
  const TokenBatch tokens = worker.stage().tokens().at(0);
  const auto counted = [&](const auto& launch) {
    const Traffic before = worker.rank().links.traffic().of(Axis::tensor);
    HF_CHECK(launch().ok());  // nobody is at the other end, so nothing can go wrong there
    return worker.rank().links.traffic().of(Axis::tensor) - before;
  };
  forward_ = counted([&] { return model.forward(device, tokens, 0); });
  for (const BackwardPart part : model.backward_parts()) {
    for (const bool follows : {false, true}) {
      for (const bool completes : {false, true}) {
        backward_[index(part, follows, completes)] = counted([&] {
          return model.backward(device, tokens, 0, worker.stage().loss_sums().data(),
                                {.part = part, .completes_lane = completes, .follows_forward = follows});
        });
      }
    }
  }
}

const Traffic& PartTraffic::of(const Action& action, bool follows_forward) const {
  if (action.work == Work::forward) return forward_;
  const BackwardPart part = action.work == Work::backward_input    ? BackwardPart::inputs
                            : action.work == Work::backward_weight ? BackwardPart::weights
                                                                   : BackwardPart::whole;
  return backward_[index(part, follows_forward, action.completes_lane)];
}

StepTraffic step_traffic(Env& env, const Config& config, const Mesh& mesh, int rank,
                         std::span<const PartTraffic> parts) {
  const ModelSpec spec = make_model_spec(config);
  const MeshCoordinate coordinate = mesh.coordinate_of(rank);
  const LaneSchedule lanes(static_cast<int>(config.parallel.lanes), mesh.shape().data,
                           static_cast<int>(config.parallel.lane_block));
  const TensorShare share = share_of(spec.tensor_lanes, coordinate.tensor, mesh.shape().tensor);
  const BucketPlan buckets(backward_buckets(spec, parts_of_stage(spec, config, coordinate.pipeline), share),
                           mesh.shape().data, /*gradient_slots=*/0, lanes.block());
  const std::uint64_t element_bytes = bytes_of(spec.dtype);
  const std::int64_t boundary =
      config.training.microbatch_size * config.training.sequence_length * spec.width / share.ranks();
  const StageSchedule schedule = stage_schedule(config, lanes, coordinate.data, coordinate.pipeline);
  const LaneExchange exchange(buckets, lanes, coordinate.data, mesh.host_numbers(mesh.data_group(rank)));
  return {
      .gradients = lane_reduction(exchange, /*between_hosts=*/false),
      .gradients_between_hosts = lane_reduction(exchange, /*between_hosts=*/true),
      .parameters = parameter_gather(buckets, exchange, element_bytes, /*between_hosts=*/false),
      .parameters_between_hosts = parameter_gather(buckets, exchange, element_bytes, /*between_hosts=*/true),
      .boundaries = stage_boundaries(schedule, static_cast<std::uint64_t>(boundary) * element_bytes),
      .tied = tied_ends(buckets, coordinate.data, element_bytes),
      .slices = tensor_slices(schedule, parts),
      .votes = vote(env, mesh.shape().ranks(), rank)};
}

}  // namespace holdfast::plan
