#include "runtime/elastic/inventory.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "parallel/comm/gather.h"

namespace holdfast::inline elastic {
RecoveryInventory merge_inventories(std::span<const RecoveryInventory> inventories) {
  RecoveryInventory all{.joined = true};
  bool some_did_not = false, some_did = false;
  for (const RecoveryInventory& one : inventories) {
    all.launched_ranks = std::max(all.launched_ranks, one.launched_ranks);
    all.joined = all.joined && one.joined;
    some_did_not = some_did_not || one.log_opened == false;
    some_did = some_did || one.log_opened == true;
    all.step = std::max(all.step, one.step);
    all.gemm_peak = std::max(all.gemm_peak, one.gemm_peak);
    if (all.shm_run_id.empty()) all.shm_run_id = one.shm_run_id;
    if (all.verdict.empty()) all.verdict = one.verdict;
    all.lost_some = all.lost_some || one.lost_some;
    all.lost_starter = all.lost_starter || one.lost_starter;
    if (std::pair(one.redone_step, one.redone) > std::pair(all.redone_step, all.redone)) {
      all.redone_step = one.redone_step;
      all.redone = one.redone;
    }
    const bool nearer = std::pair(one.told, one.noticed_us) < std::pair(all.told, all.noticed_us);
    if (!one.noticed.empty() && (all.noticed.empty() || nearer)) {
      all.noticed_us = one.noticed_us;
      all.told = one.told;
      all.noticed = one.noticed;
    }
  }
  // Spares alone have seen others begin; a rank that came later has seen nothing.
  if (all.joined || some_did) all.log_opened = !some_did_not;
  return all;
}

Result<RecoveryInventory> gather_inventories(Communicator& communicator, const Waiter& waiter,
                                             const RecoveryInventory& mine) {
  HF_TRY(const std::vector<RecoveryInventory> inventories, gather(communicator, waiter, mine));
  return merge_inventories(inventories);
}

Result<void> limit_retries(RecoveryInventory& inventory) {
  constexpr int redone_max = 3;
  if (inventory.lost_some) return {};
  inventory.redone = inventory.step == inventory.redone_step ? inventory.redone + 1 : 1;
  inventory.redone_step = inventory.step;
  if (inventory.redone <= redone_max) return {};
  return fail(ExitCode::communication,
              "step {} was begun again {} times with nobody lost, and failed each time: {}",
              inventory.step + 1, redone_max, inventory.noticed);
}

}  // namespace holdfast::inline elastic
