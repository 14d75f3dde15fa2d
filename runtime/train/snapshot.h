// Snapshot: a copy, in host memory that is planned with the rest, of the state that this rank saves, as it is
// between two updates. On a device whose memory the host sees, a thread in the background makes it while the
// next forward and backward run; the next update waits for it. Any other device copies in its queue, at once.
//
//   HF_TRY_VOID(snapshot.begin());   // after an update
//   snapshot.complete();             // in the background; before the next update
//   write(snapshot.pieces());        // until the next begin()
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "checkpoint/shard_file.h"
#include "runtime/train/worker.h"

namespace holdfast {

// Memory that a snapshot of these pieces takes.
std::uint64_t snapshot_bytes(std::span<const ShardSpec> pieces);

class Snapshot {
 public:
  // The worker outlives it and has planned memory for it.
  explicit Snapshot(Worker& worker);

  // The state after the last step, from now on. Of the thread that launches. Error: the device's.
  Result<void> begin();
  // Once, of any thread: what begin() has left to copy.
  void complete();

  const RunState& state() const { return state_; }
  // What complete() has made.
  const std::vector<StatePiece>& pieces() const { return pieces_; }

 private:
  Worker* worker_;
  std::vector<std::span<const std::byte>> sources_;  // of the pieces
  std::vector<StatePiece> pieces_;
  RunState state_;
};

}  // namespace holdfast
