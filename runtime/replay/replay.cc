#include "runtime/replay/replay.h"

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <memory>
#include <numeric>
#include <span>

#include "kernels/product_plan.h"
#include "parallel/comm/agreement.h"
#include "parallel/comm/gather.h"
#include "runtime/core/units.h"
#include "runtime/elastic/join.h"
#include "runtime/elastic/resume.h"
#include "runtime/rank/device_choice.h"
#include "runtime/rank/transport_choice.h"
#include "runtime/run/run_layout.h"
#include "runtime/save/save.h"
#include "runtime/train/step.h"
#include "runtime/train/worker.h"

namespace holdfast::replay {
namespace {

// StopSource of a process that no signal asks to save.
class NeverStops final : public StopSource {
 public:
  bool stop_requested() override { return false; }
};

// LaneBits holds the losses of a lane as bits, because a record cannot hold a number that is not finite.
struct LaneBits {
  int lane = 0;
  std::vector<std::uint64_t> losses = {};

  static void visit_fields(auto& self, auto&& visit) {
    visit("lane", self.lane);
    visit("losses", self.losses);
  }
};

struct LossesOfRank {
  std::vector<LaneBits> lanes = {};

  static void visit_fields(auto& self, auto&& visit) { visit("lanes", self.lanes); }
};

// Returns the losses of the step that the worker has computed last, where its stage has the head. Ranks of a
// tensor group have the same; the first of them reports.
LossesOfRank losses_of(Worker& worker) {
  LossesOfRank losses;
  const Workload& workload = worker.workload();
  if (!worker.rank().counts_replicated() || !std::ranges::any_of(workload.parts, &ModelPart::has_head))
    return losses;
  const auto per_lane = static_cast<std::size_t>(workload.batch_shape.microbatches_per_lane);
  std::span<const double> sums = worker.stage().loss_sums();
  for (const int lane : workload.rank_lanes) {
    LaneBits bits{.lane = lane};
    for (const double sum : sums.first(per_lane)) bits.losses.push_back(std::bit_cast<std::uint64_t>(sum));
    sums = sums.subspan(per_lane);
    losses.lanes.push_back(std::move(bits));
  }
  return losses;
}

// Replay holds one rank of a replay from the run directory to the computed step.
class Replay {
 public:
  Replay(const ReplayInputs& inputs, const ReplayRequest& request)
      : inputs_(inputs),
        request_(request),
        joined_{{.env = inputs.env, .faults = inputs.faults, .communicator = inputs.communicator},
                {.build = inputs.build, .place = {.rank_on_host = inputs.rank_on_host}},
                never_stops_,
                loaded_} {}

  Result<ReplayedStep> run() {
    HF_TRY_VOID(find_source());
    HF_TRY_VOID(load_config());
    HF_TRY_VOID(make_worker());
    HF_TRY_VOID(load_state());
    HF_TRY_VOID(compute_steps_before());
    HF_TRY_VOID(compute_step());
    HF_TRY_VOID(collect_lanes());
    if (checks_ != nullptr) HF_TRY_VOID(collect_checks());
    if (is_first()) HF_TRY_VOID(compare());
    return std::move(result_);
  }

 private:
  bool is_first() const { return inputs_.communicator.rank() == 0; }
  Waiter waiter() const { return {inputs_.env, config_.parallel.timeout_ms}; }
  Result<void> agree(const Result<void>& mine) const {
    return agree_on_outcome(inputs_.communicator, waiter(), mine, inputs_.env.host_name());
  }
  template <typename... Values>
  void say(fmt::format_string<Values...> format, Values&&... values) const {
    if (is_first() && inputs_.say) inputs_.say(fmt::format(format, std::forward<Values>(values)...));
  }

  Result<void> find_source();
  Result<ReplaySource> read_run();
  Result<void> load_config();
  Result<void> check_data() const;
  Result<void> make_checks();
  Result<void> make_worker();
  Result<void> load_state();
  Result<void> compute_steps_before();
  Result<void> compute_step();
  Result<void> collect_lanes();
  Result<void> collect_checks();
  Result<void> compare();
  std::vector<std::string> differences_of(std::uint64_t step, const RecordedNumbers& computed) const;

  const ReplayInputs& inputs_;
  const ReplayRequest& request_;
  NeverStops never_stops_;
  Result<LoadedConfig> loaded_ = Error{};
  TrainInputs joined_;
  Config config_;
  RecordedSteps recorded_;  // on rank 0
  std::shared_ptr<DataSet> data_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<StepChecks> checks_;  // null: they were not asked for
  JoinedTransport transport_;
  std::unique_ptr<Worker> worker_;
  std::uint64_t cursor_ = 0;  // data position of the step
  ReplayedStep result_;
};

// Reads the run directory. Only rank 0 does, because the run may write it meanwhile.
Result<ReplaySource> Replay::read_run() {
  const RunPaths paths{request_.run_directory};
  const std::uint64_t step = request_.step;
  HF_TRY(recorded_, read_recorded_steps(inputs_.env, paths, step, step));
  if (!recorded_.warning.empty()) say("{}", recorded_.warning);
  const RunStatus status = read_status(inputs_.env, paths);
  const bool ended_in_it = step == recorded_.newest + 1 && status.state == "failed" &&
                           status.exit_code == static_cast<int>(ExitCode::numerics);
  if (step > recorded_.newest && !ended_in_it) {
    return fail(ExitCode::config, "{} has no step {} yet: {}", paths.directory, step,
                recorded_.newest == 0 ? "it has made none"
                                      : fmt::format("give --step 1 to {}, its newest", recorded_.newest));
  }
  const auto found = recorded_.steps.find(step);
  if (found == recorded_.steps.end() && !ended_in_it) {
    return fail(ExitCode::config,
                "the log of {} has no line of step {}, so there is nothing to compare it with. Give another "
                "step",
                paths.directory, step);
  }
  const double rate = found == recorded_.steps.end() ? std::numeric_limits<double>::quiet_NaN()
                                                     : found->second.numbers.learning_rate;
  HF_TRY(ReplaySource source, find_replay_source(inputs_.env, paths.directory, step, rate));
  HF_TRY(recorded_, read_recorded_steps(inputs_.env, paths, source.step + 1, step));
  return source;
}

Result<void> Replay::find_source() {
  const Waiter patient = waiter().with_timeout(waiter().timeout_ms() + verify_timeout_ms);
  const Result<ReplaySource> found = is_first() ? read_run() : ReplaySource{};
  HF_TRY_VOID(agree_on_outcome(inputs_.communicator, patient, outcome_of(found), inputs_.env.host_name()));
  HF_TRY(std::vector<ReplaySource> sources, gather(inputs_.communicator, waiter(), *found));
  result_.step = request_.step;
  result_.source = std::move(sources.front());
  for (const std::string& sentence : result_.source.skipped) say("checkpoint skipped: {}", sentence);
  return {};
}

Result<void> Replay::load_config() {
  loaded_ = replay_config(inputs_.env, result_.source, request_.run_directory, inputs_.communicator.size(),
                          request_.overrides);
  HF_TRY(config_, join_config(joined_, waiter()));
  return agree(prepare_cuda_for_nccl(inputs_.env, config_, inputs_.communicator.size()));
}

Result<void> Replay::check_data() const {
  const std::string& there = result_.source.data_fingerprint;
  const std::string here = to_hex(data_->fingerprint());
  if (there.empty() || there == here) return {};
  return fail(ExitCode::data,
              "the data files have changed since the run used them (fingerprint {}, now {}): step {} cannot "
              "be computed again. Put the files back, or name their place with --data.sources",
              there, here, request_.step);
}

Result<void> Replay::make_checks() {
  Result<std::unique_ptr<StepChecks>> checks = StepChecks::make(*device_);
  HF_TRY_VOID(agree(outcome_of(checks)));
  checks_ = std::move(checks).value();
  return {};
}

Result<void> Replay::make_worker() {
  Communicator& ranks = inputs_.communicator;
  HF_TRY(data_, join_data(joined_, waiter(), config_));
  HF_TRY_VOID(check_data());
  resolve_device(inputs_.env, config_, joined_.place);
  HF_TRY(const std::vector<std::string> hosts, all_gather_text(ranks, waiter(), inputs_.env.host_id()));
  joined_.ranks_on_host = static_cast<int>(std::ranges::count(hosts, inputs_.env.host_id()));
  HF_TRY(device_, join_device(joined_, waiter(), config_));
  HF_TRY_VOID(agree(resolve_with_data(config_, ranks.size(), *data_)));
  HF_TRY(const Mesh mesh, mesh_of(config_, hosts));
  HF_TRY(transport_, join_transport(joined_, waiter(), config_, *device_));
  if (request_.checks) HF_TRY_VOID(make_checks());
  device_->prefer_plan(algorithms_of(result_.source.device_plan));
  Result<std::unique_ptr<Worker>> worker =
      Worker::create({.rank = {joined_, *device_, config_, mesh},
                      .data = data_,
                      .nccl = transport_.nccl.get(),
                      .gpu = transport_.gpu,
                      .memory = {.timeout_ms = config_.elastic.memory_timeout_ms}});
  HF_TRY_VOID(agree(outcome_of(worker)));
  worker_ = std::move(worker).value();
  result_.sources = config_.data.sources;
  const std::string here = device_->identity(precision_of(config_)), &there = result_.source.device;
  if (!there.empty() && there != here)
    say("the run computed on \"{}\" and this is \"{}\": other bits are to be expected", there, here);
  HF_TRY(const std::string other,
         join_plan_difference(joined_, waiter(), *device_, result_.source.device_plan));
  if (!other.empty())
    say("the run computed on another GPU of this kind, {}: other bits are to be expected", other);
  return {};
}

Result<void> Replay::load_state() {
  worker_->state().data_fingerprint = data_->fingerprint();
  const ReplaySource& source = result_.source;
  if (source.checkpoint.empty()) {
    HF_TRY_VOID(initialize_weights(worker_->state_view()));
  } else {
    HF_TRY_VOID(restore_checkpoint(worker_->state_view(), source.checkpoint));
  }
  HF_TRY_VOID(agree(device_->status()));
  RunState& state = worker_->state();
  source.lineage.add_jumps_after({.generation = state.generation, .step = state.step}, state.jumps);
  take_jump(state);
  return agree(worker_->start_loader());
}

std::vector<std::string> Replay::differences_of(std::uint64_t step, const RecordedNumbers& computed) const {
  const auto found = recorded_.steps.find(step);
  return found == recorded_.steps.end() ? std::vector<std::string>()
                                        : differing_numbers(found->second.numbers, computed);
}

RecordedNumbers numbers_of(const StepOutcome& outcome, const RunState& state) {
  return {.loss = outcome.loss,
          .grad_norm = outcome.grad_norm,
          .learning_rate = outcome.learning_rate,
          .data = state.data_digest};
}

Result<void> Replay::compute_steps_before() {
  const std::uint64_t first = result_.source.step + 1;
  const double took_ms =
      std::accumulate(recorded_.steps.begin(), recorded_.steps.end(), 0.0,
                      [](double sum, const auto& each) { return sum + each.second.duration_ms; });
  say("from {}: {} step{} to compute, which took the run {}",
      result_.source.checkpoint.empty() ? "the initial weights" : result_.source.checkpoint,
      request_.step - result_.source.step, first == request_.step ? "" : "s", format_seconds(took_ms / 1e3));
  constexpr std::int64_t interval_ns = 5'000'000'000;
  std::int64_t said_ns = inputs_.env.monotonic_ns();
  for (std::uint64_t step = first; step < request_.step; ++step) {
    HF_TRY(const StepOutcome outcome, run_step(*worker_, {}));
    if (outcome.ends_steps) return fail(ExitCode::numerics, "{}", outcome.verdict->reason);
    HF_TRY_VOID(outcome.gathers);
    if (!is_first()) continue;
    const bool differs = !differences_of(step, numbers_of(outcome, worker_->state())).empty();
    if (differs && result_.first_difference == 0) result_.first_difference = step;
    if (inputs_.env.monotonic_ns() - said_ns < interval_ns) continue;
    said_ns = inputs_.env.monotonic_ns();
    say("step {} of {}", step, request_.step);
  }
  return {};
}

Result<void> Replay::compute_step() {
  cursor_ = worker_->state().data_cursor;
  if (checks_ != nullptr) checks_->begin();
  HF_TRY(const StepOutcome outcome, run_step(*worker_, {}));
  if (checks_ != nullptr) checks_->end();
  if (!outcome.ends_steps) {
    HF_TRY_VOID(outcome.gathers);
    result_.computed = numbers_of(outcome, worker_->state());
    return worker_->parameter_gather().finish();
  }
  constexpr double none = std::numeric_limits<double>::quiet_NaN();
  result_.failure = outcome.verdict->reason;
  result_.computed = {.loss = none, .grad_norm = none, .learning_rate = none};
  return {};
}

Result<void> Replay::collect_lanes() {
  HF_TRY(const std::vector<LossesOfRank> ranks, gather(inputs_.communicator, waiter(), losses_of(*worker_)));
  for (const LossesOfRank& rank : ranks) {
    for (const LaneBits& each : rank.lanes) {
      ReplayedLane lane{.lane = each.lane};
      for (const std::uint64_t bits : each.losses) lane.loss_sums.push_back(std::bit_cast<double>(bits));
      result_.lanes.push_back(std::move(lane));
    }
  }
  std::ranges::sort(result_.lanes, {}, &ReplayedLane::lane);
  return {};
}

Result<void> Replay::collect_checks() {
  HF_TRY(result_.checks, gather(inputs_.communicator, waiter(), checks_->result()));
  return {};
}

// A step that ended by its numbers has no learning rate and no data digest, and no line in the log.
Result<void> Replay::compare() {
  constexpr double none = std::numeric_limits<double>::quiet_NaN();
  RecordedNumbers recorded{
      .loss = none, .grad_norm = none, .learning_rate = none, .data = result_.computed.data};
  if (const auto found = recorded_.steps.find(request_.step); found != recorded_.steps.end()) {
    recorded = found->second.numbers;
    result_.recorded = recorded;
  } else {
    recorded.learning_rate = result_.computed.learning_rate;
  }
  if (!result_.failure.empty()) {
    recorded.learning_rate = none;
    recorded.data = result_.computed.data;
  }
  if (recorded.data != result_.computed.data) {
    return fail(ExitCode::data,
                "step {} has other data than in the run (digest {}, recorded {}): a file has changed. Put it "
                "back",
                request_.step, to_hex(result_.computed.data), to_hex(recorded.data));
  }
  result_.differing = differing_numbers(recorded, result_.computed);
  const Workload& workload = worker_->workload();
  HF_TRY(const std::vector<LaneSamples> samples,
         samples_of_step(*data_, config_.run.seed, workload.batch_shape, cursor_, workload.spec.vocabulary));
  for (ReplayedLane& lane : result_.lanes) lane.samples = samples[static_cast<std::size_t>(lane.lane)];
  return {};
}

}  // namespace

double ReplayedLane::loss() const {
  const double sum = std::accumulate(loss_sums.begin(), loss_sums.end(), 0.0);
  return samples.counted_targets == 0 ? 0.0 : sum / static_cast<double>(samples.counted_targets);
}

Digest ReplayedLane::digest() const {
  return digest_of(std::as_bytes(std::span(loss_sums)));
}

Result<ReplayedStep> replay_step(const ReplayInputs& inputs, const ReplayRequest& request) {
  return Replay(inputs, request).run();
}

Result<std::vector<LaneSamples>> samples_of_step(const DataSet& data, std::uint64_t seed,
                                                 const BatchShape& shape, std::uint64_t cursor,
                                                 std::int64_t vocabulary) {
  constexpr std::size_t tokens_kept = 32;
  const auto length = static_cast<std::size_t>(shape.sequence_length);
  const auto of_lane = static_cast<std::uint64_t>(shape.microbatches_per_lane * shape.microbatch_size);
  const SampleOrder order = data.order(seed);
  std::vector<std::int32_t> tokens(length + 1), inputs(length), targets(length);
  std::vector<std::int32_t> first_key(data.masks_documents() ? length : 0);
  std::vector<LaneSamples> lanes(static_cast<std::size_t>(shape.lanes));
  for (LaneSamples& lane : lanes) {
    for (std::uint64_t index = 0; index < of_lane; ++index, ++cursor) {
      const SampleId id = order.at(cursor);
      HF_TRY_VOID(data.read(id, tokens, vocabulary));
      HF_TRY(const std::uint64_t counted,
             data.fill_row(id, tokens, {.inputs = inputs, .targets = targets, .first_key = first_key}));
      lane.counted_targets += counted;
      if (index > 0) continue;
      lane.first = id;
      lane.tokens.assign(tokens.begin(),
                         tokens.begin() + static_cast<std::ptrdiff_t>(std::min(tokens_kept, tokens.size())));
    }
  }
  return lanes;
}

}  // namespace holdfast::replay
