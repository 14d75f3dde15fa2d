#include "runtime/replay/step_session.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "kernels/product_plan.h"
#include "parallel/comm/agreement.h"
#include "parallel/comm/gather.h"
#include "runtime/elastic/resume.h"
#include "runtime/rank/device_choice.h"
#include "runtime/run/run_layout.h"
#include "runtime/save/save.h"

namespace holdfast::replay {

StepSession::StepSession(const SessionInputs& inputs)
    : inputs_(inputs),
      joined_{{.env = inputs.env, .faults = inputs.faults, .communicator = inputs.communicator},
              {.build = inputs.build, .place = {.rank_on_host = inputs.rank_on_host}},
              never_stops_,
              loaded_} {}

Result<void> StepSession::agree(const Result<void>& mine) const {
  return agree_on_outcome(inputs_.communicator, waiter(), mine, inputs_.env.host_name());
}

Result<void> StepSession::load_config(Result<LoadedConfig> loaded) {
  loaded_ = std::move(loaded);
  HF_TRY(config_, join_config(joined_, waiter()));
  return agree(prepare_cuda_for_nccl(inputs_.env, config_, inputs_.communicator.size()));
}

Result<void> StepSession::check_data(const SessionState& state) const {
  const std::string here = to_hex(data_->fingerprint());
  if (state.data_fingerprint.empty() || state.data_fingerprint == here) return {};
  return fail(
      ExitCode::data,
      "the data files have changed since the run used them (fingerprint {}, now {}), so its steps cannot be "
      "computed again. Put the files back, or name their place with --data.sources",
      state.data_fingerprint, here);
}

Result<void> StepSession::make_worker(const SessionState& state, bool with_checks) {
  Communicator& ranks = inputs_.communicator;
  HF_TRY(data_, join_data(joined_, waiter(), config_));
  HF_TRY_VOID(check_data(state));
  resolve_device(inputs_.env, config_, joined_.place);
  HF_TRY(const std::vector<std::string> hosts, all_gather_text(ranks, waiter(), inputs_.env.host_id()));
  joined_.ranks_on_host = static_cast<int>(std::ranges::count(hosts, inputs_.env.host_id()));
  HF_TRY(device_, join_device(joined_, waiter(), config_));
  HF_TRY_VOID(agree(resolve_with_data(config_, ranks.size(), *data_)));
  HF_TRY(const Mesh mesh, mesh_of(config_, hosts));
  HF_TRY(transport_, join_transport(joined_, waiter(), config_, *device_));
  if (with_checks) {
    Result<std::unique_ptr<StepChecks>> checks = StepChecks::make(*device_);
    HF_TRY_VOID(agree(outcome_of(checks)));
    checks_ = std::move(checks).value();
  }
  device_->prefer_plan(algorithms_of(state.device_plan));
  Result<std::unique_ptr<Worker>> worker =
      Worker::create({.rank = {joined_, *device_, config_, mesh},
                      .data = data_,
                      .nccl = transport_.nccl.get(),
                      .gpu = transport_.gpu,
                      .memory = {.timeout_ms = config_.elastic.memory_timeout_ms}});
  HF_TRY_VOID(agree(outcome_of(worker)));
  worker_ = std::move(worker).value();
  return compare_devices(state);
}

// Says where this device may give other bits than the one that computed the state.
Result<void> StepSession::compare_devices(const SessionState& state) {
  const std::string here = device_->identity(precision_of(config_));
  if (!state.device.empty() && state.device != here)
    say(fmt::format("the run computed on \"{}\" and this is \"{}\": other bits are to be expected",
                    state.device, here));
  HF_TRY(const std::string other, join_plan_difference(joined_, waiter(), *device_, state.device_plan));
  if (!other.empty())
    say(fmt::format("the run computed on another GPU of this kind, {}: other bits are to be expected",
                    other));
  return {};
}

Result<void> StepSession::load_state(const SessionState& state) {
  worker_->state().data_fingerprint = data_->fingerprint();
  if (state.checkpoint.empty()) {
    HF_TRY_VOID(initialize_weights(worker_->state_view()));
  } else {
    HF_TRY_VOID(restore_checkpoint(worker_->state_view(), state.checkpoint));
  }
  HF_TRY_VOID(agree(device_->status()));
  RunState& here = worker_->state();
  state.lineage.add_jumps_after({.generation = here.generation, .step = here.step}, here.jumps);
  take_jump(here);
  return agree(worker_->start_loader());
}

Result<StepOutcome> StepSession::step() {
  HF_TRY(StepOutcome outcome, run_step(*worker_, {}));
  if (!outcome.ends_steps) HF_TRY_VOID(std::exchange(outcome.gathers, {}));
  return outcome;
}

Digest StepSession::state_digest() {
  device_->synchronize();
  HostAccess& access = worker_->rank().host_access;
  DigestStream stream;
  for (const OwnedState& piece : worker_->state_view().optimizer.state()) {
    const std::span<const std::byte> all = bytes_of_state(piece);
    for (std::size_t at = 0; at < all.size(); at += HostAccess::buffer_bytes) {
      const std::size_t bytes = std::min<std::size_t>(HostAccess::buffer_bytes, all.size() - at);
      const Digest digest = digest_of(access.to_read(all.subspan(at, bytes)));
      stream.add(digest.high);
      stream.add(digest.low);
    }
  }
  return stream.finish();
}

void write_nothing(Config& config) {
  config.checkpoint.every_steps = 0;
  config.checkpoint.every_ms = 0;
  config.checkpoint.ram_every_steps = 0;
  config.checkpoint.replicas = "off";
  config.evaluation.every_steps = 0;
  config.elastic.spares = 0;
  config.data.ledger = false;
  config.trace.steps = 0;
}

}  // namespace holdfast::replay
