#include "runtime/elastic/inventory.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "runtime/core/json.h"
#include "runtime/run/event_reading.h"

namespace holdfast::inline elastic {
namespace {

Json json_of(const RecoveryInventory& inventory) {
  Json json = {{"launched_ranks", inventory.launched_ranks},
               {"joined", inventory.joined},
               {"step", inventory.step},
               {"gemm_peak", inventory.gemm_peak},
               {"memory_id", inventory.shm_run_id},
               {"verdict", inventory.verdict},
               {"lost_some", inventory.lost_some},
               {"lost_starter", inventory.lost_starter},
               {"redone_step", inventory.redone_step},
               {"redone", inventory.redone},
               {"noticed_us", inventory.noticed_us},
               {"told", inventory.told},
               {"noticed", inventory.noticed}};
  if (inventory.log_opened.has_value()) json["log_opened"] = *inventory.log_opened;
  return json;
}

bool truth_of(const Json& json, const char* key) {
  const auto found = json.find(key);
  return found != json.end() && found->is_boolean() && found->get<bool>();
}

// Ranks may run different programs here, which the agreement that comes next finds out; so a field that is
// missing has its default.
RecoveryInventory inventory_of(const std::string& text) {
  const Json json = Json::parse_any(text);
  if (!json.is_object()) return {};
  RecoveryInventory inventory{.launched_ranks = static_cast<int>(count_of(json, "launched_ranks")),
                              .joined = truth_of(json, "joined"),
                              .step = count_of(json, "step"),
                              .gemm_peak = number_of(json, "gemm_peak", 0.0),
                              .shm_run_id = text_of(json, "memory_id"),
                              .verdict = text_of(json, "verdict"),
                              .lost_some = truth_of(json, "lost_some"),
                              .lost_starter = truth_of(json, "lost_starter"),
                              .redone_step = count_of(json, "redone_step"),
                              .redone = static_cast<int>(count_of(json, "redone")),
                              .noticed_us = static_cast<std::int64_t>(count_of(json, "noticed_us")),
                              .told = truth_of(json, "told"),
                              .noticed = text_of(json, "noticed")};
  if (json.contains("log_opened")) inventory.log_opened = truth_of(json, "log_opened");
  return inventory;
}

}  // namespace

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
  HF_TRY(const std::vector<std::string> texts,
         all_gather_text(communicator, waiter, json_of(mine).dump_any()));
  std::vector<RecoveryInventory> inventories;
  for (const std::string& text : texts) inventories.push_back(inventory_of(text));
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
