#include "tests/checkpoint/largest_allocation.h"

#include <atomic>
#include <cstdlib>
#include <new>

namespace {

std::atomic<bool> counting{false};
std::atomic<std::size_t> largest_bytes{0};

[[maybe_unused]] void* counted(void* memory, std::size_t bytes) {
  if (memory == nullptr) std::abort();
  if (!counting) return memory;
  std::size_t seen = largest_bytes;
  while (bytes > seen && !largest_bytes.compare_exchange_weak(seen, bytes)) {
  }
  return memory;
}

}  // namespace

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// Not inlined, so that the compiler does not see free() of what new made.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  return counted(std::malloc(bytes == 0 ? 1 : bytes), bytes);
}
[[gnu::noinline]] void* operator new(std::size_t bytes, std::align_val_t alignment) {
  const auto unit = static_cast<std::size_t>(alignment);
  return counted(std::aligned_alloc(unit, (bytes + unit - 1) / unit * unit), bytes);
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::align_val_t) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
  std::free(memory);
}
#endif

namespace holdfast {

LargestAllocation::LargestAllocation() {
  largest_bytes = 0;
  counting = true;
}
LargestAllocation::~LargestAllocation() {
  counting = false;
}
std::uint64_t LargestAllocation::bytes() const {
  return largest_bytes;
}

}  // namespace holdfast
