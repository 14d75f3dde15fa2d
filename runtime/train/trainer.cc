#include "runtime/train/trainer.h"

#include <algorithm>

#include "parallel/agreement.h"
#include "runtime/train/save.h"

namespace holdfast {
namespace {

bool due(std::int64_t every_steps, std::uint64_t step) {
  return every_steps > 0 && step % static_cast<std::uint64_t>(every_steps) == 0;
}

}  // namespace

Result<ExitCode> Trainer::run() {
  Worker& worker = parts_.worker;
  const Config& config = worker.config();
  const auto last_step = static_cast<std::uint64_t>(config.training.steps);
  while (worker.state().step < last_step) {
    HF_TRY(const StepOutcome outcome, step());
    const bool last = outcome.step == last_step;
    if (parts_.held_out && (due(config.evaluation.every_steps, outcome.step) || last))
      HF_TRY_VOID(evaluate());
    if (last || outcome.stop || due(config.checkpoint.every_steps, outcome.step)) HF_TRY_VOID(save());
    if (outcome.stop && !last) return end(ExitCode::saved);
  }
  return end(ExitCode::done);
}

// The last log lines have no vote after them, so they are agreed on here.
Result<ExitCode> Trainer::end(ExitCode code) {
  Worker& worker = parts_.worker;
  HF_TRY_VOID(agree_on_outcome(worker.communicator(), worker.waiter(), trouble_, worker.env().host_name()));
  return code;
}

void Trainer::keep(const Result<void>& result) {
  if (trouble_.ok()) trouble_ = result;
}

// One more step and a save must still fit; the longest seen, with half as much again, is what they may take.
bool Trainer::time_is_up() const {
  const std::int64_t limit_ms = parts_.worker.config().run.stop_after_ms;
  if (limit_ms == 0) return false;
  const std::int64_t elapsed_ns = parts_.worker.env().monotonic_ns() - parts_.started_ns;
  const std::int64_t needed_ns = (2 * longest_step_ns_ + longest_save_ns_) * 3 / 2;
  return elapsed_ns + needed_ns >= limit_ms * 1'000'000;
}

Result<StepOutcome> Trainer::step() {
  Env& env = parts_.worker.env();
  const bool stop = parts_.stop.stop_requested() || time_is_up();
  const std::int64_t begin_ns = env.monotonic_ns();
  HF_TRY(const StepOutcome outcome, run_step(parts_.worker, {.stop = stop, .trouble = trouble_}));
  const std::int64_t duration_ns = env.monotonic_ns() - begin_ns;
  if (Ledger* ledger = parts_.worker.ledger()) keep(ledger->close_step(outcome.step));
  longest_step_ns_ = std::max(longest_step_ns_, duration_ns);
  keep(parts_.progress.stepped(outcome, parts_.worker.state().data_digest, duration_ns));
  return outcome;
}

Result<void> Trainer::evaluate() {
  Env& env = parts_.worker.env();
  const std::int64_t begin_ns = env.monotonic_ns();
  HF_TRY(const double loss, parts_.held_out->loss(parts_.worker));
  keep(parts_.progress.evaluated(parts_.worker.state().step, loss, env.monotonic_ns() - begin_ns));
  return {};
}

Result<void> Trainer::save() {
  Worker& worker = parts_.worker;
  const std::int64_t begin_ns = worker.env().monotonic_ns();
  HF_TRY_VOID(save_checkpoint(worker, parts_.store, worker.config().checkpoint.keep));
  const std::int64_t duration_ns = worker.env().monotonic_ns() - begin_ns;
  longest_save_ns_ = std::max(longest_save_ns_, duration_ns);
  const std::uint64_t step = worker.state().step;
  keep(parts_.progress.saved(step, parts_.store.checkpoint_directory(step), duration_ns));
  return {};
}

}  // namespace holdfast
