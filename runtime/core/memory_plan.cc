#include "runtime/core/memory_plan.h"

#include <fmt/core.h>
#include <sys/mman.h>

#include <algorithm>
#include <utility>

#include "runtime/core/units.h"

namespace holdfast::core {
namespace {

constexpr std::array<MemoryClass, 8> all_classes = {
    MemoryClass::weights,   MemoryClass::gradients,     MemoryClass::optimizer, MemoryClass::activations,
    MemoryClass::workspace, MemoryClass::communication, MemoryClass::data,      MemoryClass::snapshot};

// A plan of absurd sizes saturates here, where no system can grant it, instead of wrapping around to a small
// one.
constexpr std::uint64_t largest_bytes = std::uint64_t{1} << 62;

std::string table_of(const MemoryPlan& plan) {
  std::string table;
  for (const MemoryClass memory_class : all_classes) {
    const std::uint64_t bytes = plan.total_bytes(memory_class);
    if (bytes > 0) table += fmt::format("\n  {:<14}{:>12}", name_of(memory_class), format_bytes(bytes));
  }
  return table;
}

Result<OwnedMemory> mapped(std::uint64_t bytes, int flags) {
  void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
  if (base == MAP_FAILED) return fail(ExitCode::does_not_fit, "the system refused the allocation");
  const auto release = [](std::byte* memory, std::uint64_t size) { munmap(memory, size); };
  return OwnedMemory(static_cast<std::byte*>(base), {.release = release, .bytes = bytes});
}

}  // namespace

std::string_view name_of(MemoryClass memory_class) {
  switch (memory_class) {
    case MemoryClass::weights:
      return "weights";
    case MemoryClass::gradients:
      return "gradients";
    case MemoryClass::optimizer:
      return "optimizer";
    case MemoryClass::activations:
      return "activations";
    case MemoryClass::workspace:
      return "workspace";
    case MemoryClass::communication:
      return "communication";
    case MemoryClass::data:
      return "data";
    case MemoryClass::snapshot:
      return "snapshot";
  }
  return "unknown";
}

MemoryPlan::Slot MemoryPlan::reserve(std::string name, MemoryClass memory_class, std::uint64_t bytes,
                                     MemoryKind kind) {
  std::uint64_t& total = bytes_by_kind_[static_cast<std::size_t>(kind)];
  const Slot slot{.offset_bytes = total, .bytes = std::min(bytes, largest_bytes), .kind = kind};
  const std::uint64_t padded = (slot.bytes + alignment_bytes - 1) / alignment_bytes * alignment_bytes;
  total = std::min(total + padded, largest_bytes);
  entries_.push_back(Entry{.name = std::move(name), .memory_class = memory_class, .slot = slot});
  return slot;
}

std::uint64_t MemoryPlan::total_bytes() const {
  return std::min(bytes_by_kind_[0] + bytes_by_kind_[1], largest_bytes);
}

std::uint64_t MemoryPlan::total_bytes(MemoryClass memory_class) const {
  std::uint64_t total = 0;
  for (const Entry& entry : entries_) {
    if (entry.memory_class == memory_class) total = std::min(total + entry.slot.bytes, largest_bytes);
  }
  return total;
}

Result<void> check_fits(const MemoryPlan& plan, std::optional<std::uint64_t> available_bytes, int ranks,
                        bool device_is_host) {
  HF_CHECK(ranks >= 1);
  if (!available_bytes.has_value()) return {};
  const std::uint64_t share = *available_bytes / static_cast<std::uint64_t>(ranks);
  const std::uint64_t needed =
      device_is_host ? plan.total_bytes() : plan.total_bytes(MemoryKind::host_visible);
  if (needed <= share) return {};
  const std::string each =
      ranks == 1 ? "" : fmt::format(", {} for each of the {} ranks on it", format_bytes(share), ranks);
  return fail(
      ExitCode::does_not_fit,
      "the memory plan of {} does not fit: this host has {} available{}; reduce the model, "
      "training.microbatch_size or training.sequence_length, set training.recompute, or use more hosts. The "
      "plan of a rank:{}",
      format_bytes(needed), format_bytes(*available_bytes), each, table_of(plan));
}

Result<OwnedMemory> host_memory(MemoryKind, std::uint64_t bytes) {
  HF_TRY(OwnedMemory memory, mapped(bytes, 0));
  madvise(memory.get(), bytes, MADV_HUGEPAGE);  // a hint: fewer TLB misses where the system has huge pages
  return memory;
}

Result<OwnedMemory> unbacked_memory(MemoryKind, std::uint64_t bytes) {
  return mapped(bytes, MAP_NORESERVE);
}

Result<MemoryArena> MemoryArena::allocate(const MemoryPlan& plan, const MemorySource& source) {
  MemoryArena arena;
  for (const MemoryKind kind : {MemoryKind::device, MemoryKind::host_visible}) {
    const std::uint64_t bytes = plan.total_bytes(kind);
    if (bytes == 0) continue;
    Result<OwnedMemory> memory = source(kind, bytes);
    if (!memory.ok() && memory.error().code != ExitCode::does_not_fit) return memory.error();
    if (!memory.ok()) {
      return fail_because(
          memory.error(), ExitCode::does_not_fit,
          "the memory plan of {} does not fit: {}; reduce the model, training.microbatch_size or "
          "training.sequence_length, set training.recompute, or use more hosts. The plan of a rank:{}",
          format_bytes(plan.total_bytes()), memory.error().message, table_of(plan));
    }
    arena.places_[static_cast<std::size_t>(kind)] = std::move(memory).value();
  }
  return arena;
}

}  // namespace holdfast::core
