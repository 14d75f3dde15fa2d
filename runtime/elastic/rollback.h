// RunRollback is what a rank knows of a roll-back that a verdict has decided on, from the decision until it is certain to
// be in the lineage: whether there is a state to go back to, and the record, which is made before anything else happens,
// so that whoever dies now the run goes back.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "checkpoint/kept_rollback.h"
#include "runtime/elastic/run_journal.h"
#include "runtime/elastic/run_saves.h"

namespace holdfast::elastic {

class RunRollback {
 public:
  // All of them outlive this object.
  RunRollback(Group& group, const RunSetup& setup, const RunJournal& journal, RunSaves& saves)
      : group_(group), setup_(setup), journal_(journal), saves_(saves) {}

  // Records a roll-back. Returns false, on all ranks, where there is no state to go back to. What fails otherwise is
  // tried again by the recovery. Collective.
  bool decide(Worker& worker, const Rollback& rollback, std::span<const int> leaving_ranks,
              const std::string& reason);
  // Returns the reason of the decision that is not certain to be in the lineage; empty: there is none.
  std::string reason() const { return decided_.has_value() ? decided_->generation.reason : ""; }
  // Has the decision in the lineage before a state is chosen. A disk that does not take it is waited for; if that lasts,
  // the ranks end to be started again, and the next start finds what they have kept. Collective.
  Result<void> complete(const RecoveryInventory& known);

 private:
  bool disk_goes_back(const RunState& state, std::uint64_t trusted_step);
  bool has_nothing_to_lose(const RunState& state);
  Result<bool> all_say(bool mine);
  Result<bool> knows_state(const RunState& state, const Rollback& rollback,
                           std::span<const int> leaving_ranks);
  Result<bool> fetch_state(std::uint64_t step, std::uint64_t trusted_step,
                           std::span<const int> leaving_ranks);
  Result<bool> is_possible(const RunState& state, const Rollback& rollback,
                           std::span<const int> leaving_ranks);
  void keep(const RunState& state, const Rollback& rollback, const std::string& reason);
  Result<void> record();

  Group& group_;
  const RunSetup& setup_;
  const RunJournal& journal_;
  RunSaves& saves_;
  std::optional<DecidedRollback> decided_;
};

}  // namespace holdfast::elastic
