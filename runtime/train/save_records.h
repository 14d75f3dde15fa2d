// What ranks tell each other, and the user, about the saves that are under way.
#pragma once

#include <array>
#include <cstdint>

#include "runtime/core/result.h"

namespace holdfast {

// What is to be saved when a step is made.
struct SaveDue {
  bool to_disk = false;
  bool to_ram = false;
  bool asked_for = false;  // somebody asked this rank for a save to disk: counts on every rank
};

// How a rank's saves stand, as words that the vote of a step adds up over all ranks.
struct SaveVotes {
  // Of the oldest save that is being written: the shard of this rank is on the disk, or it cannot be.
  std::int64_t durable = 0;
  std::int64_t failed = 0;
  // Of the oldest that all ranks have on the disk; rank 0 alone: it is visible now, or it cannot be.
  std::int64_t published = 0;
  std::int64_t unpublished = 0;
  // Of the snapshot that is sent to buddies: this rank's replica is sealed, or it could not be.
  std::int64_t replicated = 0;
  std::int64_t unreplicated = 0;
  // Has one more slot for snapshots than it uses.
  std::int64_t last_slots = 0;
  // Will still make or give up slots for snapshots in this epoch.
  std::int64_t settling = 0;
  // Rank 0 alone, so that clocks that differ never part the ranks: what is saved after this step.
  std::int64_t to_disk = 0;
  std::int64_t to_ram = 0;
  // Any rank: somebody asked it for a save to disk.
  std::int64_t asked_for = 0;

  bool wants_disk() const { return to_disk + asked_for > 0; }

  using Words = std::array<std::int64_t, 11>;
  Words words() const {
    return {durable,    failed,  published, unpublished, replicated, unreplicated,
            last_slots, to_disk, to_ram,    asked_for,   settling};
  }
  static SaveVotes of(const Words& words) {
    return {.durable = words[0],
            .failed = words[1],
            .published = words[2],
            .unpublished = words[3],
            .replicated = words[4],
            .unreplicated = words[5],
            .last_slots = words[6],
            .settling = words[10],
            .to_disk = words[7],
            .to_ram = words[8],
            .asked_for = words[9]};
  }
};

// How a save ended; equal on all ranks but for the times, which are this rank's.
struct SaveReport {
  std::uint64_t step = 0;
  Result<void> outcome;           // on other ranks than 0 without the reason that it could not be published
  std::uint64_t bytes = 0;        // of all shards
  std::int64_t stall_ns = 0;      // that the training loop waited for it
  std::int64_t copy_ns = 0;       // of copying the state, beside the training
  std::int64_t drain_ns = 0;      // of writing this rank's shard
  std::int64_t processor_ns = 0;  // that the thread of these had of a processor, from the copy's end on
  std::int64_t publish_ns = 0;    // on rank 0: of making it visible and removing what is too old
  std::int64_t durable_ns = 0;    // on rank 0: from its begin until it was visible, and so durable
  std::int64_t duration_ns = 0;   // from its begin until all ranks knew that
};

// How the replicas of a snapshot were made: it is confirmed if the outcome is ok. The outcome is equal on all
// ranks; bytes and time are this rank's.
struct ReplicaReport {
  std::uint64_t step = 0;
  Result<void> outcome;
  std::uint64_t bytes = 0;       // sent
  std::int64_t duration_ns = 0;  // until all ranks knew
};

}  // namespace holdfast
