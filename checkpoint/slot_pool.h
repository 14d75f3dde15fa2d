// SlotPool: the shared memory of a rank's snapshot slots, from one membership epoch to the next. Every epoch
// has a writer number of its own and so slots with other names (ram_tier.h); their pages are those of slots
// that are not needed any more, because new pages cost several times what a copy of them does.
//
//   pool.begin(env, run, writer, resumed);          // what must stay: the slots of the step that was loaded
//   pool.trim(env, lengths);                        // all ranks of the host do, before any makes a slot
//   HF_TRY(memory, pool.make(name, bytes));         // an old slot under the new name, or new memory
//   pool.keep(name, std::move(memory));             // at the end of the epoch
//
// A slot may be taken when it is of the run, when it is not the one copy of a part of the step that must stay
// (needed_snapshots()), and when no living process holds it (SharedMemory::hold): those that this object
// keeps come first, then those that dead processes left on this host. It is unsealed before it gets its new
// name, so a process that is killed at any point leaves either the old slot, which is of no use, or one that
// is not sealed and is removed with the others of the run. The step that must stay is never touched. Several
// ranks of a host may take slots at the same time: a slot has one name, and one of them renames it.
//
// The slots of a host never take more memory while they are replaced than before or after it, because a host
// may have no more than the run needs: with trim() each rank first gives back what its new slots do not need,
// and before make() takes new memory it removes as many bytes of slots that dead processes left, as long as
// there are any.
//
// Threads: one at a time.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "checkpoint/ram_tier.h"
#include "runtime/os/env.h"
#include "runtime/os/fault_point.h"

namespace holdfast::checkpoint {

class SlotPool {
 public:
  // Begins an epoch. `writer`: the writer number in the names that make() will be asked for. `resumed`: the
  // step whose slots and replicas stay until confirmed(); none: all may be taken.
  void begin(Env& env, const Digest& run, std::uint64_t writer, const std::optional<SnapshotStep>& resumed);
  // Says that a newer step is whole everywhere, so that the slots of begin()'s step need not stay.
  void confirmed() { needed_.clear(); }
  // Gives back what this process keeps beyond slots of these lengths, which are those that make() will be
  // asked for.
  void trim(Env& env, std::vector<std::uint64_t> lengths);
  // Returns memory of at least `bytes` under an unused name: a slot that is not needed, made as long as that,
  // else new memory. This process holds it. Errors: those of Env::create_shared_memory().
  Result<std::unique_ptr<SharedMemory>> make(Env& env, FaultPoints& faults, const std::string& name,
                                             std::uint64_t bytes);
  // Keeps the mapping of a slot whose epoch is over, so that its pages need not be mapped anew.
  void keep(const std::string& name, std::unique_ptr<SharedMemory> memory);
  // Returns the bytes of slots that are kept and need not stay.
  std::uint64_t unneeded_bytes() const;
  // Unmaps all that is kept, or what holds no part of the step that must stay; names and content stay.
  void forget() { kept_.clear(); }
  void forget_unneeded();

 private:
  struct Candidate {
    std::string name;
    std::unique_ptr<SharedMemory> memory;
  };
  bool may_go(const std::string& name) const { return !needed_.contains(name); }
  std::optional<Candidate> next_kept(std::uint64_t bytes);
  std::optional<Candidate> next_of_the_dead(Env& env);
  void free_of_the_dead(Env& env, std::uint64_t bytes);
  std::unique_ptr<SharedMemory> adopt(Env& env, FaultPoints& faults, Candidate candidate,
                                      const std::string& name, std::uint64_t bytes);

  Digest run_;
  std::uint64_t writer_ = 0;
  std::set<std::string> needed_;                               // names of slots that must stay
  std::map<std::string, std::unique_ptr<SharedMemory>> kept_;  // by name
};

}  // namespace holdfast::checkpoint
