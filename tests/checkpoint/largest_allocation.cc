#include "tests/checkpoint/largest_allocation.h"

#include <atomic>

#include "tests/support/replaced_new.h"

namespace {

std::atomic<bool> counting{false};
std::atomic<std::size_t> largest_bytes{0};

}  // namespace

void holdfast::test::note_allocation(std::size_t bytes) noexcept {
  if (!counting) return;
  std::size_t seen = largest_bytes;
  while (bytes > seen && !largest_bytes.compare_exchange_weak(seen, bytes)) {
  }
}

namespace holdfast::test {

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

}  // namespace holdfast::test
