// Memory for the snapshots of a rank. With checkpoint.ram_every_steps it is three slots in shared memory,
// which outlive the process: one is confirmed, one is filled, one is drained to disk. Else, and where some
// host has no room for them or would remove them at logout (runtime/core/shared_memory_facts.h), it is one
// slot of ordinary memory. Where memory is short the third slot comes later (SnapshotRoom, memory_fit.h).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/core/env.h"
#include "runtime/train/worker.h"

namespace holdfast {

class SnapshotMemory {
 public:
  static constexpr int shared_slots = 3;
  // All ranks together, after the state is there. Errors: communication, or no memory at all.
  static Result<SnapshotMemory> create(Worker& worker, std::uint64_t writer);

  const std::vector<std::span<std::byte>>& slots() const { return slots_; }
  bool outlives_process() const { return !shared_.empty(); }
  // Whether there is room for another slot only when the snapshots are gone that the run resumed from. Then
  // make_last_slot() makes and touches it, on any thread, and add() takes it.
  bool lacks_slot() const { return outlives_process() && slots_.size() < shared_slots; }
  static Result<std::unique_ptr<SharedMemory>> make_last_slot(Worker& worker, std::uint64_t writer);
  std::span<std::byte> add(std::unique_ptr<SharedMemory> slot);
  // Why it is not shared though the run asks for it; empty where nothing is wrong.
  const std::string& complaint() const { return complaint_; }

 private:
  static Result<SnapshotMemory> reserve(Worker& worker, std::uint64_t writer);
  static void touch(std::span<std::byte> slot, int threads);
  Result<void> make_shared(Worker& worker, std::uint64_t writer);

  std::vector<std::unique_ptr<SharedMemory>> shared_;
  OwnedMemory owned_;
  std::vector<std::span<std::byte>> slots_;
  std::string complaint_;
};

}  // namespace holdfast
