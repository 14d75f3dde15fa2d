// AlignedBuffer: memory that direct I/O reads into from a disk or writes from.
#pragma once

#include <cstddef>
#include <memory>
#include <new>
#include <span>

namespace holdfast::os {

inline constexpr std::size_t io_alignment_bytes = 4096;

// Holds memory for an IoQueue; it is not initialised.
class AlignedBuffer {
 public:
  explicit AlignedBuffer(std::size_t bytes)
      : size_(bytes), memory_(static_cast<std::byte*>(::operator new(bytes, alignment))) {}
  std::span<std::byte> bytes() const { return {memory_.get(), size_}; }

 private:
  static constexpr std::align_val_t alignment{io_alignment_bytes};
  struct Release {
    void operator()(std::byte* memory) const { ::operator delete(memory, alignment); }
  };
  std::size_t size_;
  std::unique_ptr<std::byte, Release> memory_;
};

}  // namespace holdfast::os
