// Trainer's part for verdicts: how one ends the steps, what is recorded of a roll-back, and what has to be kept
// so that one is possible.
#include <fmt/core.h>

#include <algorithm>
#include <array>

#include "parallel/comm/agreement.h"
#include "runtime/train/damage_judgement.h"
#include "runtime/train/trainer.h"

namespace holdfast::train {

// Returns the error by which a verdict ends the steps. Where a rank has to leave, the others lose it like one
// that died; where the state cannot be trusted, all go back to one that can. Batches that are left out say
// nothing against the saves under way.
Error Trainer::end_by_verdict(VerdictEvent verdict, std::span<const int> leaving_ranks,
                              const std::optional<Rollback>& rollback) {
  const RankContext& rank = parts_.worker.rank();
  Communicator& all = rank.communicator;
  rollback_ = rollback;
  const bool leaves_batches = rollback.has_value() && rollback->data_cursor.has_value();
  if (!record_rollback(verdict.reason, leaving_ranks)) {
    rollback_.reset();
    if (leaves_batches) {
      verdict.action = name_of(VerdictAction::stop);
      verdict.reason += "; but no such state is left. Set verdict.on_spike = \"tell\" to go on from here";
    } else {
      verdict.reason += fmt::format("; but no state of step {} or before is left, so the newest one counts",
                                    rollback->trusted_step);
    }
  }
  parts_.progress.judged(verdict, rollback_);
  goes_back_together_ = rollback_.has_value() && leaves_batches;
  if (goes_back_together_ || verdict.action == name_of(VerdictAction::stop))
    return fail(ExitCode::numerics, "{}", verdict.reason);
  goes_back_together_ = all.size() == 1;
  if (goes_back_together_) return fail(ExitCode::communication, "{}", verdict.reason);
  has_to_leave_ = std::ranges::find(leaving_ranks, all.rank()) != leaving_ranks.end();
  // No rank gives up the group before all have the verdict. One that is given up here has it.
  static_cast<void>(barrier(all, rank.waiter).ok());
  all.abandon();
  return fail(ExitCode::communication, "{}", verdict.reason);
}

// Records a roll-back before anything else happens, so that whoever dies now the run goes back. Returns false,
// on all ranks, where there is no state to go back to. What fails otherwise is tried again by the recovery.
bool Trainer::record_rollback(const std::string& reason, std::span<const int> leaving_ranks) {
  if (!rollback_.has_value() || !parts_.record_rollback) return true;
  const Result<bool> can_go_back = parts_.can_go_back(*rollback_, leaving_ranks);
  if (can_go_back.ok() && !*can_go_back) return false;
  parts_.record_rollback(*rollback_, reason);
  return true;
}

// Looks for damage of the state before it is saved: what the last update found, and where no update follows all
// that is in memory.
Result<void> Trainer::check_state(bool update_follows) {
  if (!parts_.worker.optimizer().checks_state()) return {};
  HF_TRY(std::optional<DamagedState> damaged, look_for_damage(parts_.worker));
  if (!damaged.has_value() && !update_follows) {
    HF_TRY(damaged, examine_state(parts_.worker));
  }
  if (!damaged.has_value()) return {};
  return end_by_verdict(damaged->report, damaged->leaving_ranks,
                        Rollback{.trusted_step = damaged->trusted_step});
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
