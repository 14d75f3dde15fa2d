// Records of what ranks tell each other, and the user, about the saves that are under way.
#pragma once

#include <array>
#include <cstdint>

#include "runtime/core/result.h"

namespace holdfast::inline save {

// Says which saves are due when a step is made: by one rank's count, or, after the step's vote, for all.
struct SaveDue {
  bool to_disk = false;
  bool to_ram = false;
  bool asked_for = false;  // somebody asked for a save to disk, of one rank, which may be any

  bool wants_disk() const { return to_disk || asked_for; }
};

// State of a rank's saves, as words that the vote of a step adds up over all ranks.
struct SaveVotes {
  // Whether this rank's shard of the oldest save that is being written is on the disk, or cannot be.
  std::int64_t durable = 0;
  std::int64_t failed = 0;
  // Whether the oldest save that all ranks have on the disk is visible now, or cannot be; rank 0 alone.
  std::int64_t published = 0;
  std::int64_t unpublished = 0;
  // Whether this rank's replica of the snapshot that is sent to buddies is sealed, or could not be.
  std::int64_t replicated = 0;
  std::int64_t unreplicated = 0;
  // Whether this rank has one more slot for snapshots than it uses.
  std::int64_t last_slots = 0;
  // Whether this rank will still make or give up slots for snapshots in this epoch.
  std::int64_t settling = 0;
  // Whether this rank's part of the upload that is under way (shard_uploads.h) is sent, or cannot be.
  std::int64_t sent = 0;
  std::int64_t unsent = 0;

  using Words = std::array<std::int64_t, 10>;
  Words words() const {
    return {durable,      failed,     published, unpublished, replicated,
            unreplicated, last_slots, settling,  sent,        unsent};
  }
  static SaveVotes of(const Words& words) {
    return {.durable = words[0],
            .failed = words[1],
            .published = words[2],
            .unpublished = words[3],
            .replicated = words[4],
            .unreplicated = words[5],
            .last_slots = words[6],
            .settling = words[7],
            .sent = words[8],
            .unsent = words[9]};
  }
};

// Outcome of a save; equal on all ranks but for the times, which are this rank's.
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

// Outcome of the replicas of a snapshot, which is confirmed if it is ok. The outcome is equal on all ranks;
// bytes and time are this rank's.
struct ReplicaReport {
  std::uint64_t step = 0;
  Result<void> outcome;
  std::uint64_t bytes = 0;       // sent
  std::int64_t duration_ns = 0;  // until all ranks knew
};

}  // namespace holdfast::inline save
