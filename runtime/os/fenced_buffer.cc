#include "runtime/os/fenced_buffer.h"

#include <sys/mman.h>
#include <unistd.h>

#include <new>

namespace holdfast::os {
namespace {

std::size_t page_bytes() {
  return static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}
std::size_t whole_pages(std::size_t bytes) {
  return (bytes + page_bytes() - 1) / page_bytes() * page_bytes();
}

// Returns memory whose part behind `usable` bytes is forbidden.
std::byte* fenced(std::size_t usable) {
  void* const memory = mmap(nullptr, usable + page_bytes(), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  if (usable > 0 && mprotect(memory, usable, PROT_READ | PROT_WRITE) != 0) throw std::bad_alloc();
  return static_cast<std::byte*>(memory);
}

}  // namespace

FencedBuffer::FencedBuffer(std::size_t bytes)
    : size_(whole_pages(bytes)), memory_(fenced(size_), Unmap{size_ + page_bytes()}) {}

void FencedBuffer::Unmap::operator()(std::byte* memory) const {
  munmap(memory, mapped);
}

}  // namespace holdfast::os
