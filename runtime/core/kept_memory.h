// KeptMemory: memory of one process that outlives the plans that use it. When the ranks of a run change, the
// next plan takes the pages of the last one: a page that the system must find and clear costs several times
// as much as a copy of it, and most where a hypervisor has taken back freed memory.
//
//   KeptMemory kept;
//   HF_TRY(MemoryArena arena, MemoryArena::allocate(plan, kept.source(options, fresh)));
//   arena = MemoryArena();      // before the next plan takes what it used
//
// An arena gets the content that the last one left there, and zeros after that: unlike other sources this one
// promises no zeros. On the CPU the memory grows in place, is faulted in by several threads before it is
// handed out, and what a smaller plan does not need is returned to the system at once, because other ranks of
// the host may need it. Memory of a GPU is reused where the plan fits in it, otherwise freed and allocated
// anew.
//
// Threads: one.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "runtime/core/memory_plan.h"

namespace holdfast::core {

struct KeptMemoryOptions {
  bool device_is_host = true;  // both places are memory of the host
  int threads = 1;             // number of threads that fault it in
  // The requesting thread calls this now and then while pages are faulted in: slow is not stuck.
  std::function<void()> progress = {};
};

class KeptMemory {
 public:
  KeptMemory() = default;
  KeptMemory(const KeptMemory&) = delete;
  KeptMemory& operator=(const KeptMemory&) = delete;

  // Returns a source that hands out memory for one arena, which must be gone before the next takes any and
  // before this object. `fresh` provides the memory that cannot be got by growing. Errors: those of `fresh`.
  MemorySource source(KeptMemoryOptions options, MemorySource fresh);

  // Makes at least `bytes` ready, faulted in, for a future arena, on a device that is the host. Errors:
  // ExitCode::does_not_fit.
  Result<void> prepare(MemoryKind kind, std::uint64_t bytes, const KeptMemoryOptions& options);

  // Returns the bytes held. They count once: a plan that takes them needs only what it has beyond them.
  std::uint64_t bytes() const;
  std::uint64_t bytes(MemoryKind kind) const { return held_of(kind).memory_bytes; }
  // Returns how many bytes of the last arena were reused.
  std::uint64_t reused_bytes() const { return reused_bytes_; }
  // Returns all memory to the system or the device.
  void release();

  // Fills reused memory with bytes that are no sensible number, for tests that look for code that relies on
  // zeros. Only on a device that is the host.
  void spoil_reused(bool spoil) { spoil_ = spoil; }

 private:
  struct Held {
    OwnedMemory memory;
    std::uint64_t memory_bytes = 0;
  };

  Result<OwnedMemory> take(MemoryKind kind, std::uint64_t bytes, const KeptMemoryOptions& options,
                           const MemorySource& fresh);
  Result<void> take_host(Held& held, std::uint64_t bytes, const KeptMemoryOptions& options);
  const Held& held_of(MemoryKind kind) const { return held_[static_cast<std::size_t>(kind)]; }

  std::array<Held, 2> held_;  // by MemoryKind
  std::uint64_t reused_bytes_ = 0;
  bool spoil_ = false;
};

// Faults in the pages of private or shared memory for writing, by several threads, and keeps their content.
// `progress` is that of KeptMemoryOptions.
void fault_in(std::span<std::byte> memory, int threads, const std::function<void()>& progress = {});

}  // namespace holdfast::core
