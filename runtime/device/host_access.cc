#include "runtime/device/host_access.h"

#include <algorithm>
#include <cstring>

#include "kernels/elementwise.h"

namespace holdfast::device {
namespace {

void launch_copy(Device& device, void* target, const void* source, std::size_t bytes) {
  device.launch(Copy{.source = source, .target = target, .bytes = static_cast<std::int64_t>(bytes)});
}

// A device without kernels belongs to a planner: its memory is addresses alone.
bool runs_nothing(const Device& device) {
  return device.kernels()[static_cast<std::size_t>(OpId::copy)].order.empty();
}

std::size_t rounded_up(std::size_t bytes) {
  constexpr std::size_t alignment = MemoryPlan::alignment_bytes;
  return (bytes + alignment - 1) / alignment * alignment;
}

}  // namespace

void write_memory(Device& device, void* target, std::span<const std::byte> source) {
  if (source.empty()) return;
  if (device.host_sees_memory()) {
    if (runs_nothing(device)) return;
    std::memcpy(target, source.data(), source.size());
    return;
  }
  launch_copy(device, target, source.data(), source.size());
  device.synchronize();
}

void fill_memory(Device& device, std::span<std::byte> memory, std::span<const std::byte> pattern) {
  std::size_t filled = std::min(pattern.size(), memory.size());
  write_memory(device, memory.data(), pattern.first(filled));
  while (filled < memory.size()) {  // copies the filled part after itself
    const std::size_t bytes = std::min(filled, memory.size() - filled);
    launch_copy(device, memory.data() + filled, memory.data(), bytes);
    filled += bytes;
  }
  device.synchronize();
}

HostAccess::HostAccess(Device& device) : device_(&device), direct_(device.host_sees_memory()) {}

void HostAccess::reserve(MemoryPlan& plan) {
  if (direct_) return;
  slot_ = plan.reserve("host_access.buffer", MemoryClass::workspace, buffer_bytes, MemoryKind::host_visible);
}

void HostAccess::bind(const MemoryArena& arena) {
  if (!direct_) buffer_ = arena.bytes(slot_);
}

std::uint64_t HostAccess::room_bytes() const {
  return direct_ ? std::numeric_limits<std::uint64_t>::max() : buffer_.size() - used_bytes_;
}

std::span<std::byte> HostAccess::to_write(std::span<std::byte> region) {
  HF_CHECK(region.size() <= room_bytes());
  if (direct_) return region;
  pending_.push_back({region, used_bytes_});
  const std::span<std::byte> window = buffer_.subspan(used_bytes_, region.size());
  used_bytes_ = std::min(buffer_.size(), rounded_up(used_bytes_ + region.size()));
  return window;
}

void HostAccess::flush() {
  for (const Pending& each : pending_) {
    launch_copy(*device_, each.region.data(), buffer_.data() + each.offset_bytes, each.region.size());
  }
  if (!pending_.empty()) device_->synchronize();
  pending_.clear();
  used_bytes_ = 0;
}

std::span<const std::byte> HostAccess::to_read(std::span<const std::byte> region) {
  HF_CHECK(pending_.empty());
  device_->synchronize();
  if (direct_) return region;
  HF_CHECK(region.size() <= buffer_.size());
  launch_copy(*device_, buffer_.data(), region.data(), region.size());
  device_->synchronize();
  return buffer_.first(region.size());
}

}  // namespace holdfast::device
