#include "runtime/os/aligned_buffer.h"

#include <sys/mman.h>

#include <new>

namespace holdfast::os {
namespace {

std::byte* mapped(std::size_t bytes) {
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  return static_cast<std::byte*>(memory);
}

}  // namespace

AlignedBuffer::AlignedBuffer(std::size_t bytes) : memory_(mapped(bytes), Unmap{bytes}) {}

void AlignedBuffer::Unmap::operator()(std::byte* memory) const {
  munmap(memory, size);
}

}  // namespace holdfast::os
