// Records of the saves that are under way, for other ranks and for the user, and of the work that none has.
#pragma once

#include <algorithm>
#include <cstdint>

#include "runtime/core/result.h"

namespace holdfast::save {

// SaveDue says which saves are due when a step is made: by one rank's count or, after the step's vote, for
// all ranks.
struct SaveDue {
  bool to_disk = false;
  bool to_ram = false;
  bool asked_for = false;  // a save to disk was requested, on any rank

  bool wants_disk() const { return to_disk || asked_for; }
};

// SaveVotes is the state of a rank's saves, which the vote of a step sums over all ranks (rank_sum.h).
struct SaveVotes {
  // This rank's shard of the oldest save that is being written is on the disk, or cannot be written.
  std::int64_t durable = 0;
  std::int64_t failed = 0;
  // The oldest save that all ranks have on the disk is visible now, or cannot be published; set by rank 0
  // alone.
  std::int64_t published = 0;
  std::int64_t unpublished = 0;
  // This rank's replica of the snapshot that is being sent to buddies is sealed, or could not be.
  std::int64_t replicated = 0;
  std::int64_t unreplicated = 0;
  // This rank has one more slot for snapshots than it uses.
  std::int64_t last_slots = 0;
  // This rank will still make or release slots for snapshots in this epoch.
  std::int64_t settling = 0;
  // This rank's part of the upload that is under way (uploads.h) is sent, or cannot be sent.
  std::int64_t sent = 0;
  std::int64_t unsent = 0;

  static constexpr void visit_words(auto& self, auto&& visit) {
    visit(self.durable);
    visit(self.failed);
    visit(self.published);
    visit(self.unpublished);
    visit(self.replicated);
    visit(self.unreplicated);
    visit(self.last_slots);
    visit(self.settling);
    visit(self.sent);
    visit(self.unsent);
  }
};

// SaveReport is the outcome of a save, equal on all ranks except for the times, which are this rank's.
struct SaveReport {
  std::uint64_t step = 0;
  Result<void> outcome;           // on ranks other than 0 without the reason that publishing failed
  std::uint64_t bytes = 0;        // bytes of all shards
  std::int64_t stall_ns = 0;      // time that the training loop waited for it
  std::int64_t copy_ns = 0;       // time of copying the state while training goes on
  std::int64_t drain_ns = 0;      // time of writing this rank's shard
  std::int64_t processor_ns = 0;  // processor time of the thread that writes, from the end of the copy on
  std::int64_t publish_ns = 0;    // rank 0: time of publishing it and removing old checkpoints
  std::int64_t durable_ns = 0;    // rank 0: from its begin until it was visible and durable
  std::int64_t duration_ns = 0;   // from its begin until all ranks knew that it was visible
};

// ReplicaReport is the outcome of the replicas of a snapshot, which is confirmed if it is ok. The outcome is
// equal on all ranks; bytes and time are this rank's.
struct ReplicaReport {
  std::uint64_t step = 0;
  Result<void> outcome;
  std::uint64_t bytes = 0;       // bytes sent
  std::int64_t duration_ns = 0;  // until all ranks knew
};

// UnsavedWork says what of a run is in no checkpoint, and when a save is worth a try again where saves fail.
// Pure: the caller has the clock.
class UnsavedWork {
 public:
  static constexpr std::int64_t first_pause_ns = 10'000'000'000, longest_pause_ns = 600'000'000'000;

  // Begins with a run of which nothing is saved.
  explicit UnsavedWork(std::int64_t now_ns) : saved_ns_(now_ns) {}

  // Records that there is a checkpoint of this step, whose save was begun then.
  void saved(std::uint64_t step, std::int64_t begun_ns) {
    step_ = std::max(step_, step);
    saved_ns_ = std::max(saved_ns_, begun_ns);
    forget_failures();
  }
  // Records that a save has failed. After the first in a row the next one that is due is another try; each further
  // one doubles the pause before it.
  void failed(std::int64_t now_ns) {
    pause_ns_ = failures_ == 0 ? 0 : std::clamp(2 * pause_ns_, first_pause_ns, longest_pause_ns);
    until_ns_ = now_ns + pause_ns_;
    ++failures_;
  }
  void forget_failures() { failures_ = pause_ns_ = until_ns_ = 0; }
  bool may_try(std::int64_t now_ns) const { return now_ns >= until_ns_; }

  struct Size {
    std::uint64_t steps = 0;       // made since the newest checkpoint
    std::int64_t duration_ns = 0;  // since its save was begun, or since this process was started
    std::int64_t pause_ns = 0;     // before the next try; 0: none
  };
  Size size(std::uint64_t step, std::int64_t now_ns) const {
    return {
        .steps = step > step_ ? step - step_ : 0, .duration_ns = now_ns - saved_ns_, .pause_ns = pause_ns_};
  }

 private:
  std::uint64_t step_ = 0;
  std::int64_t saved_ns_;
  std::int64_t failures_ = 0, pause_ns_ = 0, until_ns_ = 0;
};

}  // namespace holdfast::save
