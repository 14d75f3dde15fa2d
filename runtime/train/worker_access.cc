#include "runtime/train/worker_access.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <vector>

#include "parallel/comm/device_wait.h"
#include "runtime/core/json.h"
#include "runtime/data/data_set.h"
#include "runtime/data/sample_order.h"
#include "runtime/integrity/state_check.h"
#include "runtime/optim/schedule.h"
#include "runtime/os/foreign_text.h"
#include "runtime/rank/watch.h"

namespace holdfast::train {
namespace {

constexpr std::size_t tokens_shown = 16;
constexpr std::uint64_t samples_shown = 4;

std::string text_of(std::span<const std::int32_t> bytes) {
  std::string text;
  for (const std::int32_t byte : bytes) text.push_back(static_cast<char>(byte));
  return text;
}

// Returns the path of the sample's source, its number, its tokens' numbers within the source, and its first tokens;
// those of a text as characters. Of a sample that cannot be read, without the tokens.
std::string describe_sample(const DataSet& data, const Config& config, const SampleId& id) {
  const auto length = static_cast<std::uint64_t>(config.training.sequence_length);
  const SourceConfig& source = config.data.sources[id.source];
  std::string text = fmt::format("{} sample {} (tokens {} to {}", source.path, id.sample, id.sample * length,
                                 (id.sample + 1) * length);
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(length) + 1);
  const std::int64_t any_token = std::int64_t{1} << 31;
  if (!data.read(id, tokens, any_token).ok()) return text + ")";
  const std::span<const std::int32_t> first = std::span(tokens).first(std::min(tokens.size(), tokens_shown));
  if (source.format == "text")
    return fmt::format("{}, begins {})", text, Json(printable(text_of(first))).dump());
  return fmt::format("{}, begins {})", text, fmt::join(first, " "));
}

// Returns the samples of a microbatch, the first few described. `cursor`: RunState::data_cursor at the step's begin.
std::string describe_samples(const DataSet& data, const Config& config, std::uint64_t cursor, int lane,
                             int microbatch) {
  const auto size = static_cast<std::uint64_t>(config.training.microbatch_size);
  const auto index =
      static_cast<std::uint64_t>(lane) * static_cast<std::uint64_t>(config.training.microbatches_per_lane) +
      static_cast<std::uint64_t>(microbatch);
  const SampleOrder order = data.order(config.run.seed);
  std::vector<std::string> samples;
  for (std::uint64_t i = 0; i < std::min(size, samples_shown); ++i)
    samples.push_back(describe_sample(data, config, order.at(cursor + index * size + i)));
  const std::string others =
      size > samples_shown ? fmt::format("; and {} more", size - samples_shown) : std::string();
  return fmt::format("{}{}", fmt::join(samples, "; "), others);
}

// Returns the factors that the last update of this rank should have had, computed from the step once more.
UpdateFactors right_factors(const Worker& worker, UpdateScalars scalars) {
  scalars.learning_rate = learning_rate_of(worker, static_cast<std::uint64_t>(scalars.step));
  return update_factors(worker.rank().config.optimizer, scalars);
}

bool made_wrong_update(Worker& worker) {
  const auto& last = worker.optimizer().last_update();
  return last.has_value() && last->factors != right_factors(worker, last->scalars);
}

HeldState held_state(Worker& worker) {
  HeldState held{.run_state = {.digest = to_hex(digest_of_run_state(worker.state())),
                               .is_at = worker.position().is_at(worker.state()),
                               .step = worker.position().step_of(worker.state())}};
  if (made_wrong_update(worker)) {
    const auto& last = worker.optimizer().last_update();
    held.is_of_update = true;
    held.used_rate = last->factors.learning_rate;
    held.right_rate = right_factors(worker, last->scalars).learning_rate;
  }
  const std::optional<StateFinding> finding = worker.optimizer().finding();
  if (!finding.has_value()) return held;
  held.blocks = finding->block_count;
  held.tensor = finding->first_block.tensor;
  held.first_element = finding->first_block.first_element();
  held.elements = finding->first_block.element_count();
  held.is_of_gradients = finding->is_of_gradients;
  held.has_frozen = finding->frozen_verified_step.has_value();
  held.frozen_verified_step = finding->frozen_verified_step.value_or(0);
  return held;
}

void check_frozen(Worker& worker) {
  const RankContext& rank = worker.rank();
  if (worker.optimizer().finding().has_value()) return;
  worker.optimizer().launch_frozen_check(rank.device, worker.state().step);
  wait_for_device(rank.device, rank.communicator);
}

void check_state(Worker& worker) {
  const RankContext& rank = worker.rank();
  worker.optimizer().check_state(rank.device, worker.state().step, [&rank] {
    wait_for_device(rank.device, rank.communicator);
    mark(rank.watch);  // a large shard takes seconds, which is no hang
  });
}

// Returns how many roll-backs were made within rollback_window() steps before the step in hand.
std::uint64_t recent_rollbacks(const Worker& worker) {
  const RunState& state = worker.state();
  const std::uint64_t window = rollback_window(worker.rank().config.verdict);
  std::uint64_t made = 0;
  for (const DataJump& jump : state.jumps)
    if (jump.at_step + window > state.step) made += jump.times;
  return made;
}

}  // namespace

double learning_rate_of(const Worker& worker, std::uint64_t step) {
  const Config& config = worker.rank().config;
  const double scheduled =
      learning_rate_at(config.optimizer, static_cast<std::int64_t>(step), config.training.steps);
  return rate_after_rollbacks(scheduled, config.verdict.rate_after_rollback,
                              rollbacks_before(worker.state(), step));
}

StepAccess access_to_step(Worker& worker) {
  const Workload& workload = worker.workload();
  RunState& state = worker.state();
  const std::uint64_t bytes = workload.buckets.gradient_elements() * sizeof(float);
  return {.rank = worker.rank(),
          .parameters = worker.checks().parameters,
          .products = worker.checks().products,
          .history = state.numbers,
          .reduction = worker.reduction(),
          .segments = worker.optimizer().segments(),
          .gradients = {reinterpret_cast<std::byte*>(worker.stage().gradients()), bytes},
          .loss_sums = worker.stage().loss_sums(),
          .rank_lanes = workload.rank_lanes,
          .microbatches_per_lane = static_cast<std::size_t>(workload.batch_shape.microbatches_per_lane),
          .audit_every_steps = workload.audit_every_steps,
          .step = state.step,
          .first_step = worker.first_step(),
          .verified_step = worker.verified_step(),
          .next_data_cursor = state.data_cursor + workload.batch_shape.samples_per_step(),
          .rollbacks = recent_rollbacks(worker),
          .attempt_again = {},  // of run_step() alone
          .state = [&worker] { return held_state(worker); },
          .check_frozen = [&worker] { check_frozen(worker); },
          .check_state = [&worker] { check_state(worker); },
          .op_checks = [&worker] { return worker.checks().ops_on(worker.rank().device); },
          .describe_samples =
              [&worker](int lane, int microbatch) {
                return describe_samples(worker.data(), worker.rank().config, worker.state().data_cursor, lane,
                                        microbatch);
              }};
}

bool finds_corruption(Worker& worker) {
  return worker.optimizer().finding().has_value() || made_wrong_update(worker);
}

Digest run_state_term(const Worker& worker) {
  const Communicator& all = worker.rank().communicator;
  return integrity::run_state_term(digest_of_run_state(worker.state()),
                                   worker.position().is_at(worker.state()), all.rank(), all.size());
}

}  // namespace holdfast::train
