#include "tests/cuda_emulator/shared_memory.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <map>
#include <mutex>

namespace holdfast::cuda_emulator {
namespace {

constexpr std::size_t kib = 1024;

struct Allowed {
  std::mutex mutex;
  std::map<const void*, std::size_t> bytes;  // by kernel
};
Allowed& allowed() {
  static Allowed& one = *new Allowed;
  return one;
}

std::atomic<int>& capability() {
  static std::atomic<int> asked = [] {
    const char* const text = std::getenv("EMULATED_GPU_COMPUTE");
    return text == nullptr ? 80 : std::atoi(text);
  }();
  return asked;
}

}  // namespace

int compute_capability() {
  return capability();
}
void set_compute_capability(int compute_capability) {
  capability() = compute_capability;
}

std::size_t shared_bytes_of_block(int compute_capability) {
  switch (compute_capability) {
    case 80:
    case 87:
      return 163 * kib;
    case 86:
    case 89:
    case 120:
      return 99 * kib;
    default:
      return 227 * kib;
  }
}

std::size_t dynamic_shared_bytes(int compute_capability) {
  return shared_bytes_of_block(compute_capability) - 2 * kib;
}

bool allow_shared_memory(const void* kernel, std::size_t bytes) {
  if (bytes > dynamic_shared_bytes(compute_capability())) return false;
  const std::lock_guard lock(allowed().mutex);
  allowed().bytes[kernel] = bytes;
  return true;
}

bool may_have_shared_memory(const void* kernel, std::size_t bytes) {
  constexpr std::size_t unasked = 48 * kib;
  if (bytes <= unasked) return true;
  const std::lock_guard lock(allowed().mutex);
  const auto found = allowed().bytes.find(kernel);
  return found != allowed().bytes.end() && bytes <= found->second;
}

}  // namespace holdfast::cuda_emulator
