// FencedBuffer: memory that ends where the process has none, so that whoever goes past its end is killed by SIGSEGV.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

namespace holdfast::os {

// Holds at least so many bytes, all zero, in front of a page that nobody may touch. Throws std::bad_alloc where the
// system has no memory.
class FencedBuffer {
 public:
  explicit FencedBuffer(std::size_t bytes);
  std::span<std::byte> bytes() const { return {memory_.get(), size_}; }

 private:
  struct Unmap {
    std::size_t mapped = 0;
    void operator()(std::byte* memory) const;
  };
  std::size_t size_;
  std::unique_ptr<std::byte, Unmap> memory_;
};

}  // namespace holdfast::os
