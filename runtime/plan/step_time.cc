#include "runtime/plan/step_time.h"

#include <algorithm>
#include <numeric>

#include "parallel/pipeline/schedule_time.h"
#include "runtime/model/spec.h"

namespace holdfast::plan {
namespace {

struct Played {
  double duration = 0.0;
  std::vector<double> bubble_shares = {};  // by stage
};

std::vector<PartDurations> durations_of(const std::vector<StageCosts>& stages, std::size_t chunks,
                                        const std::vector<double>& scales) {
  std::vector<PartDurations> parts(stages.size() * chunks);
  for (std::size_t stage = 0; stage < stages.size(); ++stage) {
    for (std::size_t chunk = 0; chunk < chunks; ++chunk) {
      const PartTime& part = stages[stage].parts[chunk];
      const double backward = part.backward * scales[stage];
      parts[chunk * stages.size() + stage] = {.forward = part.forward * scales[stage],
                                              .backward_input = backward / 2.0,
                                              .backward_weight = backward / 2.0};
    }
  }
  return parts;
}

// A schedule of many microbatches repeats itself: two short ones say how long each further microbatch takes.
Played play(const ScheduleShape& shape, std::span<const PartDurations> parts,
            std::span<const double> transfers) {
  constexpr int actions_max = 1 << 16;
  const int few = 8 * shape.stages, more = 2 * few, count = shape.microbatches();
  if (static_cast<std::int64_t>(count) * shape.parts() <= actions_max || count <= more) {
    const ScheduleTime time = schedule_time(make_schedule(shape), parts, transfers);
    return {.duration = time.duration, .bubble_shares = time.bubble_shares};
  }
  const auto duration_of = [&](int microbatches) {
    ScheduleShape shorter = shape;
    shorter.waves = shorter.lanes = 1;
    shorter.microbatches_per_lane = microbatches;
    return schedule_time(make_schedule(shorter), parts, transfers).duration;
  };
  const double first = duration_of(few), second = duration_of(more);
  Played played{.duration = first + (count - few) * (second - first) / few};
  for (int stage = 0; stage < shape.stages; ++stage) {
    double busy = 0.0;
    for (int chunk = 0; chunk < shape.chunks; ++chunk) {
      const PartDurations& part = parts[static_cast<std::size_t>(chunk * shape.stages + stage)];
      busy += part.forward + part.backward_input + part.backward_weight;
    }
    played.bubble_shares.push_back(played.duration > 0.0 ? 1.0 - busy * count / played.duration : 0.0);
  }
  return played;
}

double sum_of(const StageCosts& stage, double PartTime::*what) {
  double sum = 0.0;
  for (const PartTime& part : stage.parts) sum += part.*what;
  return sum;
}

class Estimate {
 public:
  Estimate(const TimedLayout& layout, const PlannedMachine& machine)
      : config_(layout.config),
        mesh_(layout.mesh),
        stages_(layout.stages),
        waves_(layout.lanes.waves()),
        machine_(machine),
        schedule_(pipeline_schedule(config_, layout.lanes, /*data_rank=*/0)),
        no_transfers_(stages_.size(), 0.0) {}

  StepEstimate run() {
    const std::vector<double> unscaled(stages_.size(), 1.0);
    const bool copies = machine_.has_links() && !machine_.overlaps_messages;
    const Played once = played(unscaled, copies ? boundary_transfers() : no_transfers_);
    StepEstimate estimate;
    StepTime& time = estimate.time;
    estimate.bubble_share = std::reduce(once.bubble_shares.begin(), once.bubble_shares.end()) /
                            static_cast<double>(once.bubble_shares.size());
    const double duration = once.duration * schedule_.runs;
    time.bubble = duration * *std::ranges::min_element(once.bubble_shares);
    time.compute = duration - time.bubble;
    double turns = 1.0;
    if (machine_.ranks_at_once > 0) {
      const double sharing = machine_.ranks_on_host(mesh_.shape().ranks());
      turns = std::max(1.0, sharing / machine_.ranks_at_once);
      time.waiting =
          std::max(0.0, busy_seconds() * sharing / mesh_.shape().ranks() / machine_.ranks_at_once - duration);
    }
    for (const StageCosts& stage : stages_) {
      time.sums = std::max(time.sums, stage.sums * turns);
      time.update = std::max(time.update, stage.update * turns);
    }
    for (const StageCosts& stage : stages_) {
      estimate.bytes_received = std::max(estimate.bytes_received, received(stage.traffic.all()));
    }
    if (copies) time.communication = turns * copied_seconds();
    if (machine_.has_links() && machine_.overlaps_messages) add_overlapping(time, once);
    return estimate;
  }

 private:
  Played played(const std::vector<double>& scales, const std::vector<double>& transfers) const {
    const auto chunks = static_cast<std::size_t>(schedule_.shape.chunks);
    return play(schedule_.shape, durations_of(stages_, chunks, scales), transfers);
  }

  // Returns the busy time of all replicas and stages.
  double busy_seconds() const {
    double microbatch = 0.0;
    for (const StageCosts& stage : stages_) {
      microbatch += sum_of(stage, &PartTime::forward) + sum_of(stage, &PartTime::backward);
    }
    return microbatch * static_cast<double>(config_.parallel.lanes * config_.training.microbatches_per_lane *
                                            mesh_.shape().tensor);
  }

  double busy_seconds(const StageCosts& stage) const {
    return (sum_of(stage, &PartTime::forward) + sum_of(stage, &PartTime::backward)) *
           schedule_.shape.microbatches() * schedule_.runs;
  }

  std::vector<double> boundary_transfers() const {
    const auto bytes =
        static_cast<double>(config_.training.microbatch_size * config_.training.sequence_length *
                            config_.model.width / config_.parallel.tensor) *
        static_cast<double>(bytes_of(precision_of(config_)));
    std::vector<double> transfers;
    for (std::size_t stage = 0; stage < stages_.size(); ++stage) {
      transfers.push_back(
          pair_seconds(bytes, stages_[stage].rank, stages_[(stage + 1) % stages_.size()].rank));
    }
    return transfers;
  }

  double pair_seconds(double bytes, int rank, int other) const {
    return machine_.same_host(rank, other) ? machine_.transfer_seconds(bytes, 0.0)
                                           : machine_.transfer_seconds(0.0, bytes);
  }

  // Returns the time to receive what a rank exchanges with its data group.
  double group_seconds(const Traffic& all, const Traffic& between_hosts) const {
    const double between = received(between_hosts);
    return machine_.transfer_seconds(received(all) - between, between);
  }
  double gradients_seconds(const StageCosts& stage) const {
    return group_seconds(stage.traffic.gradients, stage.traffic.gradients_between_hosts);
  }
  double parameters_seconds(const StageCosts& stage) const {
    return group_seconds(stage.traffic.parameters, stage.traffic.parameters_between_hosts);
  }

  static double received(const Traffic& traffic) { return static_cast<double>(traffic.bytes_received); }

  double slices_seconds(const StageCosts& stage) const {
    return machine_.transfer_seconds(received(stage.traffic.slices), 0.0);
  }

  // Returns the time of messages when the processors that compute copy every message.
  double copied_seconds() const {
    double most = 0.0;
    for (const StageCosts& stage : stages_) {
      const StepTraffic& traffic = stage.traffic;
      const int next =
          stages_[(static_cast<std::size_t>(mesh_.coordinate_of(stage.rank).pipeline) + 1) % stages_.size()]
              .rank;
      most = std::max(
          most, gradients_seconds(stage) + parameters_seconds(stage) + slices_seconds(stage) +
                    pair_seconds(received(traffic.pipeline()) + received(traffic.votes), stage.rank, next));
    }
    return most;
  }

  void add_overlapping(StepTime& time, const Played& once) const {
    std::vector<double> scales;
    double boundaries = 0.0;
    const std::vector<double> transfers = boundary_transfers();
    for (std::size_t stage = 0; stage < stages_.size(); ++stage) {
      const double busy = busy_seconds(stages_[stage]);
      scales.push_back(busy > 0.0 ? 1.0 + slices_seconds(stages_[stage]) / busy : 1.0);
      const double messages = received(stages_[stage].traffic.boundaries);
      if (messages > 0.0) boundaries = std::max(boundaries, boundary_seconds(messages, stage));
    }
    const double with_slices = played(scales, no_transfers_).duration;
    const double with_all = played(scales, transfers).duration;
    const double exposed_boundaries = (with_all - with_slices) * schedule_.runs;
    time.communication = (with_slices - once.duration) * schedule_.runs + exposed_boundaries;
    time.hidden.boundaries = std::max(0.0, boundaries - exposed_boundaries);
    Split gradients, parameters;
    for (std::size_t stage = 0; stage < stages_.size(); ++stage) {
      gradients.take_worse(gradients_of(stage, scales[stage]));
      parameters.take_worse(parameters_of(stage, scales[stage]));
    }
    time.communication += gradients.exposed + parameters.exposed + tied_seconds();
    time.hidden.gradients = gradients.hidden();
    time.hidden.parameters = parameters.hidden();
    add_snapshot(time);
  }

  struct Split {
    double all = 0.0, exposed = 0.0;
    double hidden() const { return std::max(0.0, all - exposed); }
    void take_worse(const Split& other) {
      all = std::max(all, other.all);
      exposed = std::max(exposed, other.exposed);
    }
  };

  Split gradients_of(std::size_t index, double scale) const {
    const StageCosts& stage = stages_[index];
    const double all = gradients_seconds(stage);
    const double wave = all / waves_, last = wave * stage.last_reduction_share;
    const double backward = scale * sum_of(stage, &PartTime::backward);
    const double forward = scale * sum_of(stage, &PartTime::forward);
    const double at_end = std::max(last, wave - backward);
    const double between = std::max(0.0, wave - backward - forward);
    return {.all = all, .exposed = at_end + (waves_ - 1) * between};
  }

  // A later stage has until the first microbatch arrives, and every stage until its first backward.
  Split parameters_of(std::size_t index, double scale) const {
    const StageCosts& stage = stages_[index];
    const double all = parameters_seconds(stage);
    const int stages = static_cast<int>(stages_.size());
    double until_backward = 0.0;
    for (std::size_t before = 0; before < index; ++before) {
      until_backward += stages_[before].parts.front().forward;
    }
    const double first = std::max(0.0, all * stage.first_gather_share - until_backward);
    const int forwards = std::min(schedule_.shape.microbatches(), stages - static_cast<int>(index));
    until_backward += forwards * scale * sum_of(stage, &PartTime::forward);
    return {.all = all, .exposed = std::max(first, all - until_backward)};
  }

  double boundary_seconds(double bytes, std::size_t stage) const {
    const std::size_t other = stage + 1 < stages_.size() ? stage + 1 : stage - 1;
    return pair_seconds(bytes, stages_[stage].rank, stages_[other].rank);
  }

  double tied_seconds() const {
    const double bytes = received(stages_.front().traffic.tied) + received(stages_.back().traffic.tied);
    return stages_.size() == 1 ? 0.0 : pair_seconds(bytes, stages_.front().rank, stages_.back().rank);
  }

  // The chooser of the interval ("auto") lets snapshots cost so much.
  void add_snapshot(StepTime& time) const {
    constexpr double auto_share_max = 0.005;
    double copy = 0.0;
    for (const StageCosts& stage : stages_) {
      copy = std::max(copy, machine_.transfer_seconds(static_cast<double>(stage.snapshot_bytes), 0.0));
    }
    const double exposed = std::max(0.0, copy - time.compute - time.bubble);
    time.hidden.snapshot = copy - exposed;
    const std::int64_t every = config_.checkpoint.ram_every_steps;
    time.communication +=
        every > 0 ? exposed / static_cast<double>(every) : std::min(exposed, auto_share_max * time.seconds());
  }

  const Config& config_;
  const Mesh& mesh_;
  const std::vector<StageCosts>& stages_;
  int waves_;
  const PlannedMachine& machine_;
  PipelineSchedule schedule_;
  std::vector<double> no_transfers_;
};

}  // namespace

StepEstimate estimate_step(const TimedLayout& layout, const PlannedMachine& machine) {
  return Estimate(layout, machine).run();
}

}  // namespace holdfast::plan
