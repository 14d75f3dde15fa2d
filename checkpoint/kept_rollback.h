// Roll-backs that a verdict has decided on and that are not yet certain to be in the lineage. The disk may be full,
// and all ranks may end before it has room again, so every rank keeps the decision in the shared memory of its host
// first, where it outlives its process. The next start records it before it chooses a state.
//
// Its name (rollback_name() of ram_tier.h) goes with those of the run's snapshots where all of them go. The memory holds a header and a text, both under a checksum: one whose writer died on the way
// counts for nothing. It never leaves its host, so its numbers have the processor's byte order.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/lineage.h"
#include "runtime/core/digest.h"
#include "runtime/os/env.h"

namespace holdfast::checkpoint {

// DecidedRollback is a roll-back that all ranks have agreed on, as the lineage is to have it.
struct DecidedRollback {
  std::string run_id = {};     // of the lineage
  Generation generation = {};  // without its number
  bool operator==(const DecidedRollback&) const = default;

  static void visit_fields(auto& self, auto&& visit) {
    visit("run_id", self.run_id);
    visit("generation", self.generation);
  }
};

// Returns whether the lineage has it, or a later generation, whose author knew more.
bool is_recorded(const DecidedRollback& decided, const Lineage& lineage);
// Returns the one that is still to be recorded: of the newest generation, the one that goes back furthest. Those of
// another run than the lineage's say nothing. Pure.
std::optional<DecidedRollback> unrecorded(std::span<const DecidedRollback> decided, const Lineage& lineage);

// Has the roll-back that is still to be recorded in the lineage, and returns it; none: there is nothing to record. The
// caller holds the lock of the run directory, as `check` says.
Result<std::optional<DecidedRollback>> record_unrecorded(Env& env, const std::string& run_directory,
                                                         std::span<const DecidedRollback> decided,
                                                         const WriterCheck& check);

// KeptRollback is what the memory of a host holds.
struct KeptRollback {
  DecidedRollback decided = {};
  std::string run_directory = {};  // absolute path on that host

  static void visit_fields(auto& self, auto&& visit) {
    visit("decided", self.decided);
    visit("run_directory", self.run_directory);
  }
};

// Keeps the roll-back in place of an earlier one of the same rank.
Result<void> keep_rollback(Env& env, const Digest& run, std::uint64_t writer, int rank,
                           const KeptRollback& rollback);
// Returns those of the run on this host that are whole; none where there is no shared memory.
std::vector<KeptRollback> kept_rollbacks(Env& env, const Digest& run);
// Removes those of the run on this host. It is not an error if another process removes some at the same time.
Result<void> remove_kept_rollbacks(Env& env, const Digest& run);

}  // namespace holdfast::checkpoint
