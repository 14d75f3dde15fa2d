// Snapshot: a slot (checkpoint/snapshot_slot.h) that is filled with the state that this rank saves, as it is
// between two updates. On a device whose memory the host sees, threads in the background copy it while the
// next forward and backward run; the next update waits for them. As many as compute: one alone would take its
// time from one of the threads that compute, and the others would wait for that one. Any other device copies
// at once.
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
  const Manifest& manifest() const { return manifest_; }         // of that state, without shards
  std::span<const std::byte> memory() const { return memory_; }  // the slot, sealed by complete()
  // What complete() has made.
  const std::vector<StatePiece>& pieces() const { return slot_.pieces(); }

 private:
  void copy_from_device();
  void copy_from_host();

  Worker* worker_;
  SnapshotIdentity identity_;
  struct Part {
    std::size_t piece = 0;
    std::uint64_t offset = 0;
    std::span<const std::byte> source;
  };
  std::vector<Part> parts_;  // of the state, as they are copied
  std::span<const std::byte> memory_;
  SnapshotSlot slot_;
  RunState state_;
  Manifest manifest_;
};

}  // namespace holdfast
