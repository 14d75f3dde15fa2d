// LinkDigests: digests of the gradients that a rank sends to each other rank of its group in a step, and of those
// that it receives from each. What left at one end of a link must have arrived at the other.
//
//   links.begin_step(/*wanted=*/true);
//   links.launch_sent(peer, range, first_index);      // complete in the queue, and not yet overwritten
//   links.launch_received(peer, range, first_index);  // before it is added
//   ... the device has run what was launched ...
//   vote += links.balance();                          // 0 over all ranks: every link delivered what was sent
//
// Both ends give the elements of one direction of a link the same indices (DigestWords::weighted), each of them once
// in a step, so that parts which are lost, repeated or change places are seen. A digest covers the memory at both
// ends as well: that of the sender from the digest to the send, that of the receiver from the arrival to the digest.
//
// In a step in which nothing is wanted nothing is launched. Nothing is allocated after construction. Threads: one.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/digest.h"
#include "parallel/comm/transport.h"
#include "runtime/core/digest.h"
#include "runtime/core/memory_plan.h"
#include "runtime/device/device.h"

namespace holdfast::parallel {

// Returns the weight of the link on which `source` sends to `target`, both as Transport::global_rank(): odd, so
// that no product with it is 0 unless the other factor is, and, being a hash, another one for each direction.
std::uint64_t link_weight(int source, int target);

class LinkDigests {
 public:
  // Reserves its memory in `plan`; none for a rank alone. `device` outlives this object.
  LinkDigests(const Transport& transport, Device& device, MemoryPlan& plan);
  void bind(const MemoryArena& arena);  // once

  // Launches the largest digest, of so many values, while the device plans.
  void plan(std::uint64_t values_max);
  // Begins a step. The device has run what was launched for the step before.
  void begin_step(bool wanted);
  bool wanted() const { return wanted_; }
  // Launch the digest of values that are sent to a rank of the group, or were received from it. `first_index`:
  // index of the first value among all that travel that way in the step.
  void launch_sent(int peer, std::span<const float> values, std::uint64_t first_index);
  void launch_received(int peer, std::span<const float> values, std::uint64_t first_index);

  // The rest is valid when the device has run what was launched, in a step in which it is wanted.
  int ranks() const { return static_cast<int>(global_ranks_.size()); }  // size of the group
  int global_rank(int rank) const { return global_ranks_[static_cast<std::size_t>(rank)]; }
  const DigestWords& sent(int peer) const { return words_[2 * static_cast<std::size_t>(peer)]; }
  const DigestWords& received(int peer) const { return words_[2 * static_cast<std::size_t>(peer) + 1]; }
  // Returns the weighted digests of all that was sent less those of all that was received. Added over the ranks it
  // is 0 where no link changed anything, and not 0 where one did. Zero where nothing is wanted.
  Digest balance() const;

 private:
  void launch(DigestWords& words, const float* values, std::uint64_t count, std::uint64_t first_index);

  int rank_;
  std::vector<int> global_ranks_;  // by rank of the group
  Device* device_;
  MemoryPlan::Slot slot_;
  std::span<DigestWords> words_;  // by peer: sent, received
  bool wanted_ = false;
};

}  // namespace holdfast::parallel
