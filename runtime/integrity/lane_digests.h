// LaneDigests holds the digests of one lane's gradients, by bucket: as the rank that runs the lane in any case
// computed them, and as a rank did that computed the lane once more (a lane audit, verdict/audit_plan.h). The
// device makes them where each bucket is complete, before it is sent or overwritten.
#pragma once

#include <array>
#include <span>

#include "kernels/digest.h"
#include "parallel/data/buckets.h"
#include "runtime/core/digest.h"
#include "runtime/core/memory_plan.h"
#include "runtime/device/device.h"

namespace holdfast::integrity {

class LaneDigests {
 public:
  enum class Of { owner, auditor };
  // Reserves its memory in `plan`. `buckets` and `device` outlive this object.
  LaneDigests(const BucketPlan& buckets, Device& device, MemoryPlan& plan);
  // Binds the memory, once; `gradients` is the flat gradient buffer of this rank's lanes.
  void bind(const MemoryArena& arena, const float* gradients);

  // Launches the digest of a bucket whose gradients of the lane are complete in the queue.
  void launch(Of of, int bucket);
  // Returns the digest of all buckets. The device has run what was launched for them.
  Digest total(Of of) const;

 private:
  std::span<DigestWords> words(Of of) const;

  const BucketPlan* buckets_;
  Device* device_;
  MemoryPlan::Slot slot_;
  const float* gradients_ = nullptr;
  DigestWords* words_ = nullptr;
};

}  // namespace holdfast::integrity
