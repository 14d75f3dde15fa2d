// AlignedBuffer: memory that direct I/O reads into from a disk or writes from.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

namespace holdfast::os {

inline constexpr std::size_t io_alignment_bytes = 4096;

// Holds whole pages for an IoQueue, all zero. They are mapped, not taken from the heap: a thread that ends
// would leave them in its part of the heap, and each later one could take as much again in another part.
// Throws std::bad_alloc where the system has no memory.
class AlignedBuffer {
 public:
  explicit AlignedBuffer(std::size_t bytes);
  std::span<std::byte> bytes() const { return {memory_.get(), memory_.get_deleter().size}; }

 private:
  struct Unmap {
    std::size_t size = 0;
    void operator()(std::byte* memory) const;
  };
  std::unique_ptr<std::byte, Unmap> memory_;
};

}  // namespace holdfast::os
