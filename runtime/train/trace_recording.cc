#include "runtime/train/trace_recording.h"

#include <fmt/core.h>

#include <algorithm>

#include "parallel/comm/device_wait.h"
#include "runtime/os/console.h"
#include "runtime/rank/rank_layout.h"
#include "runtime/run/run_directory.h"

namespace holdfast::train {
namespace {

constexpr std::uint64_t spans_max = 1 << 20;

std::uint64_t end_step(const TraceConfig& trace) {
  return static_cast<std::uint64_t>(trace.first_step + trace.steps);
}

// Returns an upper bound of the spans of one step. An action has its own span, one of the loader, up to two
// messages and two or three waits; a bucket has the span of its exchange.
std::uint64_t spans_per_step(const Worker& worker, const StageSchedule& schedule) {
  constexpr std::uint64_t per_wave = 8, per_step = 16;
  // A rank of a tensor group waits up to five times in each half of a layer and at either end of the model,
  // and once for each chunk of the head.
  std::uint64_t per_action = 7;
  const bool shares_layers = worker.workload().share.ranks() > 1;
  const std::int64_t rows =
      worker.workload().batch_shape.microbatch_size * worker.workload().batch_shape.sequence_length;
  const std::int64_t chunk = head_chunk_rows(rows, worker.workload().spec);
  for (const ModelPart& part : worker.workload().parts) {
    if (!shares_layers) continue;
    per_action += 10 * static_cast<std::uint64_t>(part.layers() + 2);
    if (part.has_head) per_action += static_cast<std::uint64_t>((rows + chunk - 1) / chunk);
  }
  const auto actions = schedule.actions.size() * static_cast<std::uint64_t>(schedule.runs);
  const auto waves = static_cast<std::uint64_t>(worker.workload().lanes.waves());
  return per_action * actions +
         waves * (per_wave + static_cast<std::uint64_t>(worker.workload().buckets.local_count())) + per_step;
}

}  // namespace

TraceRecording::TraceRecording(Worker& worker) : worker_(&worker) {
  const TraceConfig& trace = worker.rank().config.trace;
  if (trace.steps == 0 || worker.state().step + 1 >= end_step(trace)) return;
  const MeshCoordinate coordinate = worker.rank().coordinate;
  const StageSchedule schedule =
      stage_schedule(worker.rank().config, worker.workload().lanes, coordinate.data, coordinate.pipeline);
  header_ = {.recording = {},
             .rank = worker.rank().communicator.rank(),
             .ranks = worker.rank().communicator.size(),
             .host = worker.rank().env.host_name(),
             .device = worker.rank().device.description(),
             .threads = worker.rank().device.threads(),
             .mesh = worker.rank().mesh.shape(),
             .coordinate = coordinate,
             .schedule = schedule.shape,
             .runs = schedule.runs,
             .clock = {}};
  memory_.resize(
      std::min(spans_max, static_cast<std::uint64_t>(trace.steps) * spans_per_step(worker, schedule)));
}

TraceRecording::~TraceRecording() {
  if (!recording()) return;
  worker_->rank().device.synchronize();  // the device writes its time stamps into memory_
  worker_->rank().spans.record_into({});
}

Result<void> TraceRecording::turn(std::uint64_t step) {
  const TraceConfig& trace = worker_->rank().config.trace;
  if (step >= end_step(trace)) {
    finish();
    return {};
  }
  if (step < static_cast<std::uint64_t>(trace.first_step)) return {};
  if (!recording()) HF_TRY_VOID(begin());
  return {};
}

// Begins a recording, and removes the files of an earlier one, which may be of more ranks.
Result<void> TraceRecording::begin() {
  const RunPaths paths{worker_->rank().config.run.directory};
  std::uint64_t recording = 0;
  if (header_.rank == 0) {
    // An error is reported when the trace is written.
    static_cast<void>(worker_->rank().env.remove_tree(paths.trace()));
    recording = worker_->rank().env.random_u64();
  }
  HF_TRY_VOID(broadcast(worker_->rank().communicator, worker_->rank().waiter,
                        std::as_writable_bytes(std::span(&recording, 1))));
  header_.recording = fmt::format("{:016x}", recording);
  HF_TRY(header_.clock, find_clock_offset(worker_->rank().communicator, worker_->rank().waiter,
                                          worker_->rank().env.host_id()));
  worker_->rank().spans.record_into(memory_);
  return {};
}

void TraceRecording::finish() {
  SpanRecorder& spans = worker_->rank().spans;
  if (recording()) {
    wait_for_device(worker_->rank().device, worker_->rank().communicator);
    if (const Result<void> written = write(); !written.ok()) {
      print_message("rank {}: the trace of its steps is lost: {}", header_.rank, written.error().message);
    }
    spans.record_into({});
  }
  memory_ = {};
}

Result<void> TraceRecording::write() {
  const SpanRecorder& spans = worker_->rank().spans;
  RankTrace trace{.header = header_, .spans = {}};
  trace.header.lost = spans.lost();
  for (std::uint64_t i = 0; i < spans.kept(); ++i) trace.spans.push_back(spans.at(i));
  const RunPaths paths{worker_->rank().config.run.directory};
  if (const Result<void> made = worker_->rank().env.make_directories(paths.trace()); !made.ok())
    return with_code(ExitCode::checkpoint, made.error());
  return worker_->rank().env.replace_text(paths.trace(header_.rank), to_text(trace));
}

}  // namespace holdfast::train
