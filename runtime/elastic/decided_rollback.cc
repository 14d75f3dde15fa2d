#include "runtime/elastic/decided_rollback.h"

#include <algorithm>
#include <string>
#include <vector>

#include "checkpoint/kept_rollback.h"
#include "parallel/comm/agreement.h"
#include "parallel/comm/gather.h"
#include "runtime/os/console.h"
#include "runtime/os/retry.h"
#include "runtime/rank/watch.h"
#include "runtime/run/run_directory.h"

namespace holdfast::elastic {
namespace {

// Returns the id that names the run's objects in shared memory, on all ranks; empty where no rank knows one.
Result<std::string> id_of_run(const TrainInputs& inputs, const Waiter& waiter, const Config& config,
                              bool holds_claim) {
  Result<RunIdentity> known = RunIdentity{};
  if (holds_claim) {
    const StorageWait storage(inputs.watch, "the run directory");
    known = retry_storage(inputs.env, [&] { return identify_run(inputs.env, {config.run.directory}); });
  }
  HF_TRY_VOID(agree_on_outcome(inputs.communicator, waiter, outcome_of(known), inputs.env.host_name()));
  HF_TRY(const std::vector<std::string> ids, all_gather_text(inputs.communicator, waiter, known->id));
  const auto first = std::ranges::find_if(ids, [](const std::string& id) { return !id.empty(); });
  return first == ids.end() ? std::string() : *first;
}

Result<std::vector<DecidedRollback>> gather_kept(const TrainInputs& inputs, const Waiter& waiter,
                                                 const Digest& run) {
  std::vector<DecidedRollback> mine;
  for (KeptRollback& kept : kept_rollbacks(inputs.env, run)) mine.push_back(std::move(kept.decided));
  HF_TRY(const std::vector<std::vector<DecidedRollback>> all, gather(inputs.communicator, waiter, mine));
  std::vector<DecidedRollback> decided;
  for (const std::vector<DecidedRollback>& each : all)
    decided.insert(decided.end(), each.begin(), each.end());
  return decided;
}

}  // namespace

Result<void> record_kept_rollbacks(const TrainInputs& inputs, const Waiter& waiter, const Config& config,
                                   const ClaimCheck& claim) {
  if (config.run.resume == "never") return {};
  const Waiter patient = waiter.with_timeout(waiter.timeout_ms() + storage_patience_ms);
  HF_TRY(const std::string id, id_of_run(inputs, patient, config, claim != nullptr));
  if (id.empty()) return {};
  const Digest run = digest_of(id);
  HF_TRY(const std::vector<DecidedRollback> decided, gather_kept(inputs, waiter, run));
  if (decided.empty()) return {};
  Result<std::optional<DecidedRollback>> recorded = std::optional<DecidedRollback>();
  if (claim != nullptr) {
    const StorageWait storage(inputs.watch, "the record of a roll-back");
    recorded = retry_storage(
        inputs.env, [&] { return record_unrecorded(inputs.env, config.run.directory, decided, claim); });
  }
  HF_TRY_VOID(agree_on_outcome(inputs.communicator, patient, outcome_of(recorded), inputs.env.host_name()));
  if (recorded->has_value() && inputs.communicator.rank() == 0) {
    const Generation& generation = (*recorded)->generation;
    print_message("the run goes back to step {} or before, as a verdict has decided: {}",
                  generation.parent.step, generation.reason);
  }
  static_cast<void>(remove_kept_rollbacks(inputs.env, run).ok());  // what stays is known to be recorded
  return {};
}

}  // namespace holdfast::elastic
