#include "runtime/replay/replay.h"

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <numeric>
#include <span>

#include "parallel/comm/agreement.h"
#include "parallel/comm/gather.h"
#include "runtime/core/units.h"
#include "runtime/elastic/resume.h"
#include "runtime/run/run_layout.h"

namespace holdfast::replay {
namespace {

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
  Replay(const SessionInputs& inputs, const ReplayRequest& request)
      : inputs_(inputs), request_(request), session_(inputs) {}

  Result<ReplayedStep> run() {
    HF_TRY_VOID(find_source());
    HF_TRY_VOID(load_config());
    HF_TRY_VOID(session_.make_worker(state_, request_.checks));
    result_.sources = session_.config().data.sources;
    HF_TRY_VOID(session_.load_state(state_));
    HF_TRY_VOID(compute_steps_before());
    HF_TRY_VOID(compute_step());
    HF_TRY_VOID(collect_lanes());
    if (session_.checks() != nullptr) HF_TRY_VOID(collect_checks());
    if (is_first()) HF_TRY_VOID(compare());
    return std::move(result_);
  }

 private:
  bool is_first() const { return inputs_.communicator.rank() == 0; }
  Waiter waiter() const { return session_.waiter(); }
  template <typename... Values>
  void say(fmt::format_string<Values...> format, Values&&... values) const {
    if (is_first() && inputs_.say) inputs_.say(fmt::format(format, std::forward<Values>(values)...));
  }

  Result<void> find_source();
  Result<ReplaySource> read_run();
  Result<void> load_config();
  Result<void> compute_steps_before();
  Result<void> compute_step();
  Result<void> collect_lanes();
  Result<void> collect_checks();
  Result<void> compare();
  std::vector<std::string> differences_of(std::uint64_t step, const RecordedNumbers& computed) const;

  const SessionInputs& inputs_;
  const ReplayRequest& request_;
  StepSession session_;
  SessionState state_;        // from which the steps are computed
  RecordedSteps recorded_;    // on rank 0
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
                recorded_.newest == 0
                    ? "it has made none"
                    : fmt::format("give a step from 1 to {}, its newest", recorded_.newest));
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
  const ReplaySource& source = result_.source;
  state_ = {.checkpoint = source.checkpoint,
            .lineage = source.lineage,
            .data_fingerprint = source.data_fingerprint,
            .device = source.device,
            .device_plan = source.device_plan};
  return session_.load_config(replay_config(inputs_.env, source, request_.run_directory,
                                            inputs_.communicator.size(), request_.overrides));
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
    HF_TRY(const StepOutcome outcome, session_.step());
    if (outcome.ends_steps) return fail(ExitCode::numerics, "{}", outcome.verdict->reason);
    if (!is_first()) continue;
    const bool differs = !differences_of(step, numbers_of(outcome, session_.worker().state())).empty();
    if (differs && result_.first_difference == 0) result_.first_difference = step;
    if (inputs_.env.monotonic_ns() - said_ns < interval_ns) continue;
    said_ns = inputs_.env.monotonic_ns();
    say("step {} of {}", step, request_.step);
  }
  return {};
}

Result<void> Replay::compute_step() {
  cursor_ = session_.worker().state().data_cursor;
  if (session_.checks() != nullptr) session_.checks()->begin();
  if (request_.before_step) HF_TRY_VOID(request_.before_step(session_));
  HF_TRY(const StepOutcome outcome, session_.step());
  if (request_.after_step) HF_TRY_VOID(request_.after_step(session_));
  if (session_.checks() != nullptr) session_.checks()->end();
  if (!outcome.ends_steps) {
    result_.computed = numbers_of(outcome, session_.worker().state());
    return session_.worker().parameter_gather().finish();
  }
  constexpr double none = std::numeric_limits<double>::quiet_NaN();
  result_.failure = outcome.verdict->reason;
  result_.computed = {.loss = none, .grad_norm = none, .learning_rate = none};
  return {};
}

Result<void> Replay::collect_lanes() {
  HF_TRY(const std::vector<LossesOfRank> ranks,
         gather(inputs_.communicator, waiter(), losses_of(session_.worker())));
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
  HF_TRY(result_.checks, gather(inputs_.communicator, waiter(), session_.checks()->result()));
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
  const Workload& workload = session_.worker().workload();
  HF_TRY(const std::vector<LaneSamples> samples,
         samples_of_step(session_.data(), session_.config().run.seed, workload.batch_shape, cursor_,
                         workload.spec.vocabulary));
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

Result<ReplayedStep> replay_step(const SessionInputs& inputs, const ReplayRequest& request) {
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
