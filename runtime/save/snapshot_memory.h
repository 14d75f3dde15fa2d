// Memory for the snapshots of a rank. With checkpoint.ram_every_steps it is three slots in shared memory,
// which outlive the process: one is confirmed, one is filled, one is drained to disk. Until a step of this
// epoch is confirmed two of them do, so the third is made then: a start need not wait for its pages, and
// after a RAM snapshot was resumed it is one of the slots that had to stay. Else, and where some host has no
// room for them or would remove them at logout (runtime/os/shared_memory_facts.h), it is one slot of
// ordinary memory.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/os/env.h"
#include "runtime/save/snapshot_plan.h"
#include "runtime/save/state_view.h"

namespace holdfast::inline save {

class SnapshotMemory {
 public:
  static constexpr int shared_slots = SnapshotPlan::shared_slots;
  static constexpr int slots_at_once = shared_slots - 1;
  // Makes the memory, all ranks together, after the state is there. Errors: communication, or no memory at
  // all.
  static Result<SnapshotMemory> create(StateView& view, std::uint64_t writer);

  const std::vector<std::span<std::byte>>& slots() const { return slots_; }
  bool outlives_process() const { return is_shared_; }
  // Says why it is not shared though the run asks for it; empty where nothing is wrong.
  const std::string& warning() const { return warning_; }
  // Returns whether there are fewer shared slots than there will be.
  bool lacks_slot() const { return outlives_process() && shared_.size() < shared_slots; }
  // Makes the slot that lacks, which slots() has from then on. Each rank calls it alone, on any thread while
  // nobody else uses this object.
  Result<void> make_last(StateView& view, std::uint64_t writer);
  // Leaves the shared slots, whatever is in them, to the next epoch of this process.
  void keep_in(SlotPool& pool);

 private:
  static Result<SnapshotMemory> reserve(StateView& view, std::uint64_t writer);
  Result<void> make_shared(StateView& view, std::uint64_t writer);
  Result<void> make_one(StateView& view, std::uint64_t writer, int slot);

  bool is_shared_ = false;
  std::vector<std::unique_ptr<SharedMemory>> shared_;
  std::vector<std::string> names_;  // of shared_
  OwnedMemory owned_;
  std::vector<std::span<std::byte>> slots_;
  std::string warning_;
};

}  // namespace holdfast::inline save
