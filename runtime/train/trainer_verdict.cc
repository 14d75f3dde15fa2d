// Trainer's part for verdicts: the state is checked before it is saved, and what is kept so that the run can go back.
#include <algorithm>
#include <utility>

#include "runtime/train/damage_judgement.h"
#include "runtime/train/trainer.h"

namespace holdfast::train {

// Looks for damage of the state before it is saved: what the last update found, and where no update follows all
// that is in memory.
Result<void> Trainer::check_state(bool update_follows) {
  if (!parts_.worker.optimizer().checks_state()) return {};
  HF_TRY(std::optional<DamagedState> damaged, look_for_damage(parts_.worker));
  if (!damaged.has_value() && !update_follows) {
    HF_TRY(damaged, examine_state(parts_.worker));
  }
  if (!damaged.has_value()) return {};
  return leave_by({.event = std::move(damaged->report),
                   .leaving_ranks = std::move(damaged->leaving_ranks),
                   .rollback = Rollback{.trusted_step = damaged->trusted_step}});
}

// Keeps checkpoints that a verdict may want to go back to.
void Trainer::keep_what_is_needed() {
  const Worker& worker = parts_.worker;
  const VerdictConfig& verdict = worker.rank().config.verdict;
  const RunState& state = worker.state();
  if (verdict.preset != "guard") return;
  std::uint64_t needed = state.step;
  if (verdict.on_spike == "rollback")
    needed = std::min(needed, rollback_target(state.step + 1, verdict.rollback_steps));
  const bool compares_replicas =
      worker.workload().audit_every_steps > 0 && worker.workload().lanes.ranks() > 1;
  if (compares_replicas && verdict.on_wrong_rank == "rollback") needed = std::min(needed, state.audited_step);
  // Frozen tensors are compared at audits alone.
  const ParameterDigests& parameters = worker.checks().parameters;
  if (worker.workload().audit_every_steps > 0 && parameters.has_frozen())
    needed = std::min(needed, parameters.sound_step().value_or(worker.first_step()));
  if (needed < state.step) parts_.store.keep_around(needed);
}

}  // namespace holdfast::train
