// OpDigests: an inspector that takes the digest of every tensor that any op writes, as soon as it is written.
// Two runs of the same ops have the same list, so the first difference names the op that computed something
// else, and the first digest that counts what is not finite names the op where a NaN came from.
//
//   const MemoryPlan::Slot slot = OpDigests::reserve(plan, capacity);
//   OpDigests digests(device, {arena.at<DigestWords>(slot), capacity});
//   device.inspect_with(&digests);
//   ...launch a step...
//   device.inspect_with(nullptr);
//   device.synchronize();
//   const std::vector<OpDigest> list = digests.list();
//
// It costs a read of all that ops write, and a launch for each output. Threads: the launching thread only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kernels/digest.h"
#include "kernels/op_scope.h"
#include "runtime/device/device.h"
#include "runtime/device/op_inspector.h"

namespace holdfast::device {

// Digest of one output of one op, the gaps between its rows (OpOutput) included.
struct OpDigest {
  std::int64_t order = 0;  // number of the op among those that were launched since clear()
  OpId op = OpId::count;
  int output = 0;                // index in outputs_of(op)
  bool may_be_infinite = false;  // as OpOutput has it
  OpScope scope = {};            // what the op was launched for
  DigestWords words;

  bool operator==(const OpDigest&) const = default;
};

class OpDigests final : public OpInspector {
 public:
  // Reserves memory for `capacity` digests, which the device writes and the host reads.
  static MemoryPlan::Slot reserve(MemoryPlan& plan, std::size_t capacity);

  // `memory` holds one element for each digest: MemoryKind::host_visible, and it outlives what was launched.
  // `device` outlives this object.
  OpDigests(Device& device, std::span<DigestWords> memory);

  void launched(OpId id, const void* arguments) override;
  // Begins a new list. Nothing that was launched for the old one is still running.
  void clear();
  // Returns the digests in the order of their ops. What was launched has run.
  std::vector<OpDigest> list() const;
  // Returns how many outputs have no digest because the memory was full. They are the last ones.
  std::int64_t left_out() const { return left_out_; }
  // Returns how many ops it has seen since clear(); those without an output count, too.
  std::int64_t ops() const { return ops_; }

 private:
  Device& device_;
  const std::span<DigestWords> memory_;
  std::vector<OpDigest> taken_;  // their words are in memory_; never larger than it
  std::int64_t ops_ = 0;
  std::int64_t left_out_ = 0;
};

// Returns the digest of a tensor that has a NaN or an infinity, where there should be none: the first in the
// order of is_computed_before(), and in a scope the first that was launched.
std::optional<OpDigest> first_nonfinite(std::span<const OpDigest> digests);

// Returns the index of the first element in which two lists differ, as far as both go; or none.
std::optional<std::size_t> first_difference(std::span<const OpDigest> one, std::span<const OpDigest> other);

// Digest with the factor by which its largest magnitude exceeds that of all digests before it.
struct OpGrowth {
  OpDigest digest;
  double factor = 0.0;
};
// Returns where finite magnitudes exceeded those of all earlier ops by the largest factor; none when they
// never did. Zeros count as no magnitude.
std::optional<OpGrowth> largest_growth(std::span<const OpDigest> digests);

}  // namespace holdfast::device
