#include "runtime/train/token_staging.h"

#include <algorithm>

#include "kernels/elementwise.h"

namespace holdfast::train {

TokenStaging::TokenStaging(const TokenStagingShape& shape, Device& device, MemoryPlan& plan)
    : shape_(shape), device_(&device) {
  const std::uint64_t bytes = shape_.slots * slot_elements() * sizeof(std::int32_t);
  written_slot_ = plan.reserve("tokens", MemoryClass::data, bytes, MemoryKind::host_visible);
  read_slot_ =
      device.host_sees_memory() ? written_slot_ : plan.reserve("tokens.device", MemoryClass::data, bytes);
}

// Returns the elements of a slot, which holds inputs, targets and, where there are any, first keys, one after
// the other.
std::size_t TokenStaging::slot_elements() const {
  return (shape_.with_first_keys ? 3U : 2U) * static_cast<std::size_t>(shape_.microbatch.rows());
}

void TokenStaging::bind(const MemoryArena& arena) {
  written_ = arena.at<std::int32_t>(written_slot_);
  read_ = arena.at<std::int32_t>(read_slot_);
}

TokenBatch TokenStaging::stage(std::size_t slot, std::span<const std::int32_t> inputs,
                               std::span<const std::int32_t> targets,
                               std::span<const std::int32_t> first_keys) {
  const auto rows = static_cast<std::size_t>(shape_.microbatch.rows());
  HF_CHECK(slot < shape_.slots && inputs.size() <= rows && targets.size() <= rows &&
           first_keys.size() <= rows);
  std::int32_t* const written = written_ + slot * slot_elements();
  std::ranges::copy(inputs, written);
  std::ranges::copy(targets, written + rows);
  if (shape_.with_first_keys) std::ranges::copy(first_keys, written + 2 * rows);
  if (written_ != read_) {
    device_->launch(Copy{.source = written,
                         .target = read_ + slot * slot_elements(),
                         .bytes = static_cast<std::int64_t>(slot_elements() * sizeof(std::int32_t))});
  }
  return at(slot);
}

TokenBatch TokenStaging::at(std::size_t slot) const {
  const std::int32_t* const read = read_ + slot * slot_elements();
  const std::int64_t rows = shape_.microbatch.rows();
  return {.inputs = read,
          .targets = read + rows,
          .first_key = shape_.with_first_keys ? read + 2 * rows : nullptr,
          .shape = shape_.microbatch};
}

}  // namespace holdfast::train
