// SnapshotMemory is the memory for the snapshots of a rank. With checkpoint.ram_every_steps it is three slots
// in shared memory, which outlive the process: one is confirmed, one is filled, one is drained to disk. Two
// slots are enough until a step of this epoch is confirmed, so the third is made only then: a start need not
// wait for its pages, and after a RAM snapshot was resumed it is one of the slots that had to stay. Without
// this key, and where some host has no room for the slots or would remove them at logout
// (runtime/os/machine_facts.h), it is one slot of ordinary memory.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/os/env.h"
#include "runtime/save/snapshot_plan.h"
#include "runtime/save/state_view.h"

namespace holdfast::save {

class SnapshotMemory {
 public:
  static constexpr int shared_slots = SnapshotPlan::shared_slots;
  static constexpr int slots_at_once = shared_slots - 1;
  // Makes the memory; all ranks call it together, after the state is there. Errors: communication, or no
  // memory at all.
  static Result<SnapshotMemory> create(StateView& view, std::uint64_t writer);

  const std::vector<std::span<std::byte>>& slots() const { return slots_; }
  bool outlives_process() const { return is_shared_; }
  // Returns why the memory is not shared though the config requests it; empty where nothing is wrong.
  const std::string& warning() const { return warning_; }
  // Returns whether there are fewer shared slots than there will be.
  bool lacks_slot() const { return outlives_process() && shared_.size() < shared_slots; }
  // Makes the missing slot, which slots() contains from then on. Each rank calls it alone, on any thread
  // while no other thread uses this object.
  Result<void> make_last(StateView& view, std::uint64_t writer);
  // Leaves the shared slots, whatever their content, to the next epoch of this process.
  void keep_in(SlotPool& pool);

 private:
  static Result<SnapshotMemory> reserve(StateView& view, std::uint64_t writer);
  Result<void> make_shared(StateView& view, std::uint64_t writer);
  Result<void> make_one(StateView& view, std::uint64_t writer, int slot);

  bool is_shared_ = false;
  std::vector<std::unique_ptr<SharedMemory>> shared_;
  std::vector<std::string> names_;  // names of shared_
  OwnedMemory owned_;
  std::vector<std::span<std::byte>> slots_;
  std::string warning_;
};

}  // namespace holdfast::save
