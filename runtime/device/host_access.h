// HostAccess: lets the host fill and read device memory that it may not be able to touch: initial weights,
// checkpoints, tables. It is for use outside of the training loop: it waits for launched ops and copies
// through one bounded buffer. On a device whose memory the host sees, it gives access to that memory, and
// nothing is copied.
//
//   HostAccess access(device, plan);                 // plans the buffer
//   access.bind(arena);
//   for (Piece& piece : pieces) {                    // as many at once as fit
//     if (access.room_bytes() < piece.bytes.size()) { fill(batch); access.flush(); batch.clear(); }
//     batch.push_back(access.to_write(piece.bytes));
//   }
//   fill(batch);
//   access.flush();
//
// Threads: one at a time; several may fill the memory that it hands out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "runtime/core/memory_plan.h"
#include "runtime/device/device.h"

namespace holdfast::device {

// Writes host memory to a device's memory, of either place; waits until it is there. For small tables.
void write_memory(Device& device, void* target, std::span<const std::byte> source);

// Fills a device's memory with repetitions of a pattern; the last one may be cut. Waits until it is there.
void fill_memory(Device& device, std::span<std::byte> memory, std::span<const std::byte> pattern);

class HostAccess {
 public:
  // Maximum size that to_read() takes on every device.
  static constexpr std::uint64_t buffer_bytes = std::uint64_t{8} << 20;

  // `device` outlives this object.
  explicit HostAccess(Device& device);
  HostAccess(Device& device, MemoryPlan& plan) : HostAccess(device) { reserve(plan); }
  // Reserves the buffer, where one is needed.
  void reserve(MemoryPlan& plan);
  void bind(const MemoryArena& arena);

  // Returns how many bytes to_write() takes until the next flush(); at least buffer_bytes after one.
  std::uint64_t room_bytes() const;
  // Returns host memory in the place of `region`, with unknown content. Its new content is in `region` after
  // flush().
  std::span<std::byte> to_write(std::span<std::byte> region);
  void flush();
  // Returns host memory with the content of `region`, valid until the next call of any method.
  std::span<const std::byte> to_read(std::span<const std::byte> region);

 private:
  struct Pending {
    std::span<std::byte> region;
    std::size_t offset_bytes;  // in the buffer
  };

  Device* device_;
  bool direct_;
  MemoryPlan::Slot slot_;
  std::span<std::byte> buffer_;
  std::size_t used_bytes_ = 0;
  std::vector<Pending> pending_;
};

}  // namespace holdfast::device
