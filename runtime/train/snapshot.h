// Snapshot: a slot (checkpoint/snapshot_slot.h) that is filled with the state that this rank saves, as it is
// between two updates. On a device whose memory the host sees, a thread in the background copies it while the
// next forward and backward run; the next update waits for it. Any other device copies at once.
//
//   snapshot.begin();        // after an update
//   snapshot.complete();     // in the background; before the next update
//   write(snapshot.pieces());  // until the next begin()
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "checkpoint/snapshot_slot.h"
#include "runtime/train/worker.h"

namespace holdfast {

class Snapshot {
 public:
  // `memory` has Worker::snapshot_bytes() bytes and outlives it, as the worker does.
  Snapshot(Worker& worker, std::span<std::byte> memory, std::uint64_t writer);

  // The state after the last step, from now on. Of the thread that launches. Error: the device's; what is in
  // the slot then is of no use.
  Result<void> begin();
  // Once, of any thread: what begin() has left to copy, and the seal.
  void complete();

  const RunState& state() const { return state_; }
  // What complete() has made.
  const std::vector<StatePiece>& pieces() const { return slot_.pieces(); }

 private:
  void copy();

  Worker* worker_;
  SnapshotIdentity identity_;
  std::vector<std::span<const std::byte>> sources_;  // of the pieces
  SnapshotSlot slot_;
  RunState state_;
  Manifest manifest_;
};

}  // namespace holdfast
