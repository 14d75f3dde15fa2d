// Prepares the memory of a new rank before it joins the run. This can take seconds, while the others go on.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/core/kept_memory.h"
#include "runtime/core/result.h"
#include "runtime/rank/memory_agreement.h"
#include "runtime/rank/rank_context.h"

namespace holdfast::elastic {

// NewRankTask describes what a new rank prepares before it joins.
struct NewRankTask {
  std::uint64_t device_bytes = 0, host_bytes = 0;  // by MemoryKind, for a device that is the host
  std::string shm_run_id = {};                     // RunState::shm_run_id, for the names of slots
  std::uint64_t slot_bytes = 0;                    // size of each slot for its snapshots; 0: there are none
  std::uint64_t given_back_bytes = 0;              // memory that other ranks of its host free when it joins
  std::int64_t timeout_ms = 0;                     // longest wait for memory that a dead process still holds

  static void visit_fields(auto& self, auto&& visit) {
    visit("device_bytes", self.device_bytes);
    visit("host_bytes", self.host_bytes);
    visit("shm_run_id", self.shm_run_id);
    visit("slot_bytes", self.slot_bytes);
    visit("given_back_bytes", self.given_back_bytes);
    visit("timeout_ms", self.timeout_ms);
  }
};

// Returns the task for the largest rank of a run with `data_ranks` copies of the model. It is empty for a
// device that is not the host: its memory needs the device, on which the ranks of the host must agree first.
Result<NewRankTask> plan_new_rank(const PlacedRank& rank, int data_ranks);

// Faults in the device and host memory of the task if the host has that much and a reserve beside it, or gets
// it within the timeout; then as many slots as the first saves need, while there is still room. It does not
// wait for memory that the other ranks will give back. The agreement on memory handles whatever is missing.
// Slots have names that no search finds, until a save takes them.
// `options`: progress is called while it waits, too.
void prepare_new_rank(Env& env, const std::string& task, const KeptMemoryOptions& options,
                      ProcessMemory& prepared);

}  // namespace holdfast::elastic
