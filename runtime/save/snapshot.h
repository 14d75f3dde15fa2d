// Snapshot is a slot (checkpoint/snapshot_slot.h) that is filled with the state that this rank saves, as it
// is between two updates. Either the update writes what it leaves of the state to the slot as well, which costs the
// least, where it can (ShardedOptimizer::can_keep()):
//
//   launch_update(device, scalars, &snapshot.begin_by_update());
//   snapshot.complete_by_update();   // when the step is made
//
// Or threads in the background copy it while the next forward and backward run; the next
// update waits for them. On a device whose memory the host sees, as many threads copy as compute: a single
// one would take its time from one of the threads that compute, and the others would wait for that one. On
// any other device several threads copy, so that one gets its part from the device while another fills the
// slot.
//
//   snapshot.begin();        // after an update
//   snapshot.complete();     // in the background; before the next update
//   write(snapshot.pieces());  // until the next begin()
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/snapshot_slot.h"
#include "runtime/os/env.h"
#include "runtime/os/thread.h"
#include "runtime/save/snapshot_plan.h"
#include "runtime/save/state_view.h"

namespace holdfast::save {

class Snapshot {
 public:
  // Builds a snapshot in `memory`, which has SnapshotPlan::bytes() bytes. The memory and the view outlive it.
  Snapshot(StateView& view, std::span<std::byte> memory, std::uint64_t writer);

  // Begins a snapshot that the coming update writes: returns the table for it. Called by the thread that launches.
  const std::vector<OptimizerTensor>& begin_by_update();
  // Completes it with what that update does not write, and seals the slot, when the device has run the update and the
  // step is made. The same thread.
  void complete_by_update();

  // Begins a copy of the state after the last step. Called by the thread that launches.
  void begin();
  // Copies that state and seals the slot; called once, by any thread. Returns false where the device has
  // failed, before or since (StateView::device_outcome()); the content of the slot is then of no use.
  bool complete();

  const RunState& state() const { return state_; }
  const Manifest& manifest() const { return manifest_; }         // manifest of that state, without shards
  std::span<const std::byte> memory() const { return memory_; }  // the slot, sealed by complete()
  // Returns the pieces that complete() has copied.
  const std::vector<StatePiece>& pieces() const { return slot_.pieces(); }

 private:
  void take_state();
  bool copy(std::size_t first_part, std::size_t end_part);

  StateView* view_;
  Device::Ticket updated_ = 0;  // ticket that is reached when the device has that state
  bool sound_ = false;          // everything that computes the state could be launched
  SnapshotIdentity identity_;
  std::string run_directory_;  // absolute; empty where it cannot be told
  struct Part {
    std::size_t piece = 0;
    std::uint64_t offset = 0;
    std::span<const std::byte> source;
    bool is_digests = false;  // block digests of the piece
  };
  void add_parts(std::size_t piece, std::span<const std::byte> source, bool is_digests);
  // Parts of the state that is trained, of what is frozen, and of block digests, in the order in which they are copied.
  std::vector<Part> parts_;
  std::size_t trained_parts_ = 0, state_parts_ = 0;  // the first of frozen state, the first of digests
  std::size_t copied_parts_ = 0;                     // of this snapshot
  bool has_frozen_ = false;                          // the slot has what is frozen, which does not change
  std::vector<OptimizerTensor> table_;  // of updates that write to the slot; empty before the first
  std::span<const std::byte> memory_;
  SnapshotSlot slot_;
  RunState state_;
  Manifest manifest_;
};

// SnapshotCopy is one copy of the state into a snapshot, with its durations. The thread that makes it writes
// the fields that make() fills in; others read them when it is done.
struct SnapshotCopy {
  explicit SnapshotCopy(Env& of_env) : env(&of_env), changed(of_env.make_condition()) {}

  Env* const env;
  Snapshot* snapshot = nullptr;       // already begun; null only before
  bool is_by_update = false;          // the update has made it, not a copy
  std::int64_t begin_ns = 0;          // Env::monotonic_ns()
  std::int64_t stall_ns = 0;          // time that the training loop waited for a snapshot and for the copy
  std::atomic<bool> is_done = false;  // set under the mutex
  Result<void> outcome = {};          // error: the device failed, and the content of the slot is of no use
  std::int64_t duration_ns = 0, processor_ns = 0;

  // Copies the state; called once, on any thread.
  void make();
  // Waits until the state has been copied.
  void wait();

 private:
  std::mutex mutex;
  const std::unique_ptr<Condition> changed;
};

// SnapshotMemory is the memory for the snapshots of a rank. With checkpoint.ram_every_steps it is three slots
// in shared memory, which outlive the process: one is confirmed, one is filled, one is drained to disk. Two
// slots are enough until a step of this epoch is confirmed, so the third is made only then, and by a single rank
// only when a snapshot finds none free: a start need not wait for its pages, and after a RAM snapshot was
// resumed it is one of the slots that had to stay. Without
// this key, and where some host has no room for the slots or would remove them at logout
// (runtime/os/machine_facts.h), it is one slot of ordinary memory.
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
