#include "runtime/train/workload.h"

#include <algorithm>

#include "kernels/cross_entropy.h"
#include "parallel/data/pinned_transport.h"
#include "runtime/config/loader.h"
#include "runtime/integrity/lane_check.h"
#include "runtime/model/activations.h"

namespace holdfast::train {
namespace {

// Returns the interval of lane audits. Any schedule can run one lane: an interleaved one does so in each wave. `shape`:
// of what the pipeline runs without draining.
std::int64_t audit_interval(const Config& config, const LaneSchedule& lanes, const ScheduleShape& shape) {
  if (config.verdict.preset != "guard") return 0;
  const std::int64_t every_steps = config.verdict.audit_every_steps;
  if (every_steps != VerdictConfig::interval_auto) return every_steps;
  return affordable_audit_interval(lanes.waves(), shape);
}

}  // namespace

Workload::Workload(const Config& config, const Mesh& mesh, int rank)
    : spec(make_model_spec(config)),
      share(share_of(spec.tensor_lanes, mesh.coordinate_of(rank).tensor, mesh.shape().tensor)),
      parts(parts_of_stage(spec, config, mesh.coordinate_of(rank).pipeline)),
      lanes(static_cast<int>(config.parallel.lanes), mesh.shape().data,
            static_cast<int>(config.parallel.lane_block)),
      rank_lanes(lanes_of_rank(lanes, mesh.coordinate_of(rank).data)),
      buckets(backward_buckets(spec, parts, share), mesh.shape().data,
              gradient_slots(config, mesh.shape().data), lanes.block()),
      exchange(buckets, lanes, mesh.coordinate_of(rank).data, mesh.host_numbers(mesh.data_group(rank))),
      batch_shape{.sequence_length = config.training.sequence_length,
                  .microbatch_size = config.training.microbatch_size,
                  .microbatches_per_lane = config.training.microbatches_per_lane,
                  .lanes = config.parallel.lanes},
      schedule(
          stage_schedule(config, lanes, mesh.coordinate_of(rank).data, mesh.coordinate_of(rank).pipeline)),
      audit_every_steps(audit_interval(config, lanes, schedule.shape)) {}

std::uint64_t Workload::tokens_per_step() const {
  return batch_shape.samples_per_step() * static_cast<std::uint64_t>(batch_shape.sequence_length);
}

std::size_t Workload::step_slots() const {
  return std::max<std::size_t>(1, rank_lanes.size()) *
         static_cast<std::size_t>(batch_shape.microbatches_per_lane);
}

std::uint64_t Workload::first_sample_of(std::size_t slot) const {
  const auto per_lane = static_cast<std::size_t>(batch_shape.microbatches_per_lane);
  return first_sample_of(rank_lanes.at(slot / per_lane), static_cast<int>(slot % per_lane));
}

std::uint64_t Workload::first_sample_of(int lane, int microbatch) const {
  return static_cast<std::uint64_t>((lane * batch_shape.microbatches_per_lane + microbatch) *
                                    batch_shape.microbatch_size);
}

int Workload::tied_bucket() const {
  return std::max(buckets.imported(), buckets.exported());
}

// Returns the bytes of the largest exchange on each link. A tensor group exchanges parts of a sum, what
// slices know of the head's rows, and the gradients of norms; as many messages go out as come in.
LinkBytes Workload::link_bytes(int data_rank) const {
  const std::size_t element = bytes_of(spec.dtype);
  const std::int64_t rows = microbatch().rows();
  const std::int64_t own_values = rows / share.ranks() * spec.width;
  const std::int64_t head_rows = head_chunk_rows(rows, spec);
  const std::int64_t vectors = spec.norm == NormKind::layer_norm ? 2 : 1;
  const auto floats = [](std::int64_t count) { return static_cast<std::uint64_t>(count) * sizeof(float); };
  const std::uint64_t widest =
      std::max({floats(own_values), floats(share.count * vectors * spec.width),
                spec.has_head_norms ? floats(share.count * spec.head_size) : 0,
                static_cast<std::uint64_t>(share.count * head_rows) * sizeof(SoftmaxStatistics)});
  const int tied = tied_bucket();
  return {
      .data = largest_exchange_bytes(buckets, exchange, element),
      .tensor = 2 * static_cast<std::uint64_t>(share.ranks() - 1) * PinnedTransport::bytes_of_message(widest),
      .boundary = static_cast<std::uint64_t>(own_values) * element,
      .tied = tied < 0 ? 0
                       : buckets.parameter_range(tied, data_rank).size() *
                             (buckets.is_frozen(tied) ? element : sizeof(float))};
}

}  // namespace holdfast::train
