#include "kernels/cpu/context.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

#include "kernels/cpu/team.h"

namespace holdfast::kernels::cpu {

namespace {

constexpr std::size_t alignment_bytes = 64;

std::size_t aligned(std::size_t bytes) {
  return (bytes + alignment_bytes - 1) / alignment_bytes * alignment_bytes;
}

}  // namespace

void Scratch::Free::operator()(std::byte* memory) const {
  ::operator delete (memory, std::align_val_t{alignment_bytes});
}

bool Scratch::Block::allocate(std::size_t copies) {
  if (allocated_bytes >= bytes) return true;
  memory.reset();
  allocated_bytes = 0;
  void* fresh = ::operator new (bytes* copies, std::align_val_t{alignment_bytes}, std::nothrow);
  if (fresh == nullptr) return false;
  std::memset(fresh, 0, bytes * copies);
  memory.reset(static_cast<std::byte*>(fresh));
  allocated_bytes = bytes;
  return true;
}

void Scratch::request(std::size_t bytes_per_thread) {
  per_thread_.bytes = std::max(per_thread_.bytes, aligned(bytes_per_thread));
}

void Scratch::request_shared(std::size_t bytes) {
  shared_.bytes = std::max(shared_.bytes, aligned(bytes));
}

bool Scratch::allocate() {
  if (threads_ < 0) {
    per_thread_.allocated_bytes = per_thread_.bytes;
    shared_.allocated_bytes = shared_.bytes;
    return true;
  }
  return per_thread_.allocate(static_cast<std::size_t>(threads_)) && shared_.allocate(1);
}

std::byte* Scratch::of_thread(int thread) const {
  return per_thread_.memory.get() + static_cast<std::size_t>(thread) * per_thread_.allocated_bytes;
}

std::uint64_t Scratch::bytes() const {
  return per_thread_.allocated_bytes * static_cast<std::size_t>(std::abs(threads_)) + shared_.allocated_bytes;
}

void Context::parallel_for(std::int64_t count, TaskRef body) const {
  team_->run(count, body);
}

}  // namespace holdfast::kernels::cpu
