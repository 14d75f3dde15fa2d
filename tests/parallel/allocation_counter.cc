#include "tests/parallel/allocation_counter.h"

#include <atomic>

#include "tests/support/replaced_new.h"

namespace {
std::atomic<std::uint64_t> allocations{0};
}  // namespace

namespace holdfast::test {

void note_allocation(std::size_t) noexcept {
  allocations.fetch_add(1, std::memory_order_relaxed);
}

std::uint64_t allocation_count() {
  return allocations.load();
}

}  // namespace holdfast::test
