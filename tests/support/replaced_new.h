// operator new of a whole test program, with a look at every allocation. One file of the program includes
// this and defines note_allocation(). Sanitizers bring their own operator new: nothing is noted under them.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <new>

namespace holdfast::test {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool notes_allocations = false;
#else
inline constexpr bool notes_allocations = true;
#endif

// Before every allocation, on its thread. Allocates nothing itself.
void note_allocation(std::size_t bytes) noexcept;

}  // namespace holdfast::test

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// Not inlined, so that the compiler does not see free() of what new made.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  holdfast::test::note_allocation(bytes);
  void* const memory = std::malloc(bytes == 0 ? 1 : bytes);
  if (memory == nullptr) std::abort();
  return memory;
}
[[gnu::noinline]] void* operator new(std::size_t bytes, std::align_val_t alignment) {
  holdfast::test::note_allocation(bytes);
  const auto unit = static_cast<std::size_t>(alignment);
  void* const memory = std::aligned_alloc(unit, (bytes + unit - 1) / unit * unit);
  if (memory == nullptr) std::abort();
  return memory;
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
