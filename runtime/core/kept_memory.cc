#include "runtime/core/kept_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace holdfast::core {
namespace {

constexpr std::uint64_t page_bytes = 4096;
// Lengths are multiples of a huge page, so that memory that moves when it grows keeps its huge pages.
constexpr std::uint64_t grain_bytes = std::uint64_t{2} << 20;
// Allocations below this size are not worth a huge page each.
constexpr std::uint64_t small_bytes = grain_bytes / 2;

std::uint64_t rounded(std::uint64_t bytes) {
  const std::uint64_t grain = bytes < small_bytes ? page_bytes : grain_bytes;
  return (bytes + grain - 1) / grain * grain;
}

// Returns memory whose owner is another object.
OwnedMemory lent(const OwnedMemory& memory, std::uint64_t bytes) {
  return {memory.get(), {.release = [](std::byte*, std::uint64_t) {}, .bytes = bytes}};
}

constexpr std::size_t part_bytes = std::size_t{16} << 20;  // faulted in at once

// Returns false where the system cannot.
bool populate(std::span<std::byte> part) {
#ifdef MADV_POPULATE_WRITE
  return madvise(part.data(), part.size(), MADV_POPULATE_WRITE) == 0;
#else
  return part.empty();
#endif
}

void fault_in_part(std::span<std::byte> part) {
  if (populate(part)) return;
  // An older system: every page is written with what is in it. No other thread uses the memory yet.
  for (std::size_t at = 0; at < part.size(); at += page_bytes) {
    auto* const byte = reinterpret_cast<volatile std::byte*>(part.data() + at);
    *byte = *byte;
  }
}

}  // namespace

void fault_in(std::span<std::byte> memory, int threads, const std::function<void()>& progress) {
  std::atomic<std::size_t> next = 0;
  const auto work = [&](bool tells) {
    for (std::size_t begin = 0; (begin = next.fetch_add(part_bytes)) < memory.size();) {
      fault_in_part(memory.subspan(begin, std::min(part_bytes, memory.size() - begin)));
      if (tells && progress) progress();
    }
  };
  const auto parts = static_cast<int>(memory.size() / part_bytes);
  std::vector<std::jthread> others;  // joined at the end of the scope
  try {
    for (int i = 1; i < std::min(threads, parts); ++i) others.emplace_back(work, false);
  } catch (const std::system_error&) {
    // The system refuses a thread: the others do it.
  }
  work(true);
}

MemorySource KeptMemory::source(KeptMemoryOptions options, MemorySource fresh) {
  reused_bytes_ = 0;
  return [this, options = std::move(options), fresh = std::move(fresh)](
             MemoryKind kind, std::uint64_t bytes) { return take(kind, bytes, options, fresh); };
}

Result<void> KeptMemory::prepare(MemoryKind kind, std::uint64_t bytes, const KeptMemoryOptions& options) {
  Held& held = held_[static_cast<std::size_t>(kind)];
  return held.memory_bytes >= bytes ? Result<void>{} : take_host(held, rounded(bytes), options);
}

std::uint64_t KeptMemory::bytes() const {
  std::uint64_t sum = 0;
  for (const Held& held : held_) sum += held.memory_bytes;
  return sum;
}

void KeptMemory::release() {
  for (Held& held : held_) held = {};
}

Result<OwnedMemory> KeptMemory::take(MemoryKind kind, std::uint64_t bytes, const KeptMemoryOptions& options,
                                     const MemorySource& fresh) {
  Held& held = held_[static_cast<std::size_t>(kind)];
  const std::uint64_t before = held.memory_bytes;
  if (options.device_is_host) {
    HF_TRY_VOID(take_host(held, rounded(bytes), options));
    reused_bytes_ += std::min(before, bytes);
    if (spoil_) std::memset(held.memory.get(), 0xff, std::min(before, bytes));
  } else if (before >= bytes) {
    reused_bytes_ += bytes;
  } else {
    held = {};  // first: both may not fit beside each other
    HF_TRY(held.memory, fresh(kind, bytes));
    held.memory_bytes = bytes;
  }
  return lent(held.memory, bytes);
}

// Existing pages stay, even if the address changes.
Result<void> KeptMemory::take_host(Held& held, std::uint64_t bytes, const KeptMemoryOptions& options) {
  const std::uint64_t before = held.memory_bytes;
  if (held.memory == nullptr) {
    HF_TRY(held.memory, host_memory(MemoryKind::host_visible, bytes));
  } else if (bytes != before) {
    void* const base = mremap(held.memory.get(), before, bytes, MREMAP_MAYMOVE);
    if (base == MAP_FAILED) return fail(ExitCode::does_not_fit, "the system refused the allocation");
    const auto release = held.memory.get_deleter().release;
    static_cast<void>(held.memory.release());
    held.memory = {static_cast<std::byte*>(base), {.release = release, .bytes = bytes}};
  }
  held.memory_bytes = bytes;
  if (bytes <= before) return {};
  const std::span<std::byte> grown(held.memory.get() + before, bytes - before);
  madvise(grown.data(), grown.size(), MADV_HUGEPAGE);
  fault_in(grown, options.threads, options.progress);
  return {};
}

}  // namespace holdfast::core
