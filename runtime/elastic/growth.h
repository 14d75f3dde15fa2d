// Starts new ranks of a run ahead, so that it does not stand still for their start. The leader starts them
// between two steps; they take the memory of their plan, which can take seconds, while the others go on; and
// only when they are ready all stand still to take them in.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/slot_pool.h"
#include "parallel/group/membership.h"
#include "runtime/core/kept_memory.h"
#include "runtime/core/result.h"
#include "runtime/train/worker.h"

namespace holdfast {

// Object of the leader that decides when new ranks are started, and when they are taken in; for one epoch.
class Growth {
 public:
  struct Terms {
    std::int64_t at_ns = 0;        // earliest time; Env::monotonic_ns()
    std::int64_t retry_ns = 0;     // after new ranks that were lost
    std::int64_t patience_ns = 0;  // longest wait for their preparation
    std::int64_t settle_ns = 0;    // longest wait for ranks that still take memory
    // Functions that call those of Membership; all empty where the leader cannot start any ahead.
    std::function<Result<void>()> start = {};
    std::function<std::string()> obstacle = {};  // empty: none, as far as is known
    std::function<NewRankState()> state = {};
    std::function<void()> dismiss = {};
  };
  // State of the saves of the ranks that there are.
  struct Saves {
    bool is_settled = true;  // they take no more memory, so that what new ranks find free is free
    // Steps of the saves to disk that are under way or due after the next step, the oldest first: those that
    // stand still wait for them.
    std::vector<std::uint64_t> under_way = {};
  };
  explicit Growth(Terms terms) : terms_(std::move(terms)) {}

  // Returns whether to stand still after the next step, and starts new ranks when it is time, one step after
  // announces() has said so. Called between steps. It returns true, too, where none could be started: then
  // Membership::grow() says why. Steps go on while the saves are made that were under way when the new ranks
  // were ready, however slow the disk is.
  bool due(std::int64_t now_ns, const Saves& saves);
  // Returns whether the next call starts new ranks. A start cannot be given up, and a rank that never comes
  // back from it is lost; so the vote of the step between tells the others, who then start none any more.
  bool announces() const { return announces_; }

  // Returns whether the new ranks were ready at the last call of due(): a save to disk that may be made later
  // is then not begun, because all would stand still for it.
  bool ready() const { return is_ready_; }

 private:
  bool may_stand_still(std::int64_t now_ns, bool is_settled);
  bool give_up(std::int64_t now_ns, const std::string& why);
  void put_off(std::int64_t now_ns, const std::string& why);

  Terms terms_;
  std::int64_t started_ns_ = 0;  // 0: not by this object
  bool announces_ = false;
  std::optional<std::uint64_t> awaited_save_;
  bool is_ready_ = false;
};

// Tells a new rank what to do before it is taken in.
struct NewRankTask {
  std::uint64_t device_bytes = 0, host_bytes = 0;  // by MemoryPlace, of a device that is the host
  std::string memory_id = {};                      // RunState::memory_id, for the names of slots
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

}  // namespace holdfast
