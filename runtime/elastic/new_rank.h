// A new rank of a run makes its memory ready before it is taken in, which can take seconds, while the
// others go on.
#pragma once

#include <cstdint>
#include <string>

#include "checkpoint/slot_pool.h"
#include "runtime/core/kept_memory.h"
#include "runtime/core/result.h"
#include "runtime/train/worker.h"

namespace holdfast::inline elastic {

// Tells a new rank what to do before it is taken in.
struct NewRankTask {
  std::uint64_t device_bytes = 0, host_bytes = 0;  // by MemoryPlace, of a device that is the host
  std::string shm_run_id = {};                     // RunState::shm_run_id, for the names of slots
  std::uint64_t slot_bytes = 0;                    // of each slot for its snapshots; 0: it has none
  std::uint64_t given_back_bytes = 0;              // by the others of its host, when they take it in
  std::int64_t timeout_ms = 0;                     // for memory that a process which died still holds
};
std::string to_text(const NewRankTask& task);

// Returns the task of the largest rank of a run with `data_ranks` copies of the model. It is empty on a
// device that is not the host: its memory needs the device, which the ranks of the host agree on.
Result<NewRankTask> plan_new_rank(const WorkerInputs& inputs, int data_ranks);

// Holds what a new rank has made ready when it is taken in.
struct PreparedRank {
  KeptMemory memory;
  SlotPool slots;  // under names that nobody looks for, until a save takes them
};

// Faults in the device and host memory of the task where the host has it, and a reserve beside it, or gets it
// in time; then as many slots as the first saves need, where there is still room. Does not wait for what the
// others will give back. What is missing is for the agreement on memory.
// `options`: progress is called while it waits, too.
void prepare_new_rank(Env& env, const std::string& task, const KeptMemoryOptions& options,
                      PreparedRank& prepared);

}  // namespace holdfast::inline elastic
