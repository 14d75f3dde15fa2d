// KeptMemory: memory of one process that outlives the plans that use it. When the ranks of a run change, the
// next plan takes the pages of the last one: a page that the system must find and clear costs several times
// what a copy of it does, and most where a hypervisor has taken back what was freed.
//
//   KeptMemory kept;
//   HF_TRY(MemoryArena arena, MemoryArena::allocate(plan, kept.source(options, fresh)));
//   arena = MemoryArena();      // before the next plan takes what it used
//
// What an arena gets has the content that the last one left there, and zeros behind that: unlike other
// sources this one promises no zeros. On the CPU the memory grows in place, is faulted in by several threads
// before it is handed out, and gives back at once what a smaller plan does not need, because other ranks of
// the host may need it. Memory of a GPU is reused where the plan fits in it, else freed and allocated anew.
//
// Threads: one.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "runtime/core/memory_plan.h"

namespace holdfast::inline core {

struct KeptMemoryOptions {
  bool device_is_host = true;  // both places are memory of the system's
  int threads = 1;             // that fault it in
  // Called by the thread that asked, now and then while pages are faulted in; slow is not stuck.
  std::function<void()> progress = {};
};

class KeptMemory {
 public:
  KeptMemory() = default;
  KeptMemory(const KeptMemory&) = delete;
  KeptMemory& operator=(const KeptMemory&) = delete;

  // Hands out memory for one arena, which is gone before the next takes any and before this object.
  // `fresh`: where memory comes from that cannot be had by growing. Errors: those of `fresh`.
  MemorySource source(KeptMemoryOptions options, MemorySource fresh);

  // Makes at least `bytes` ready, faulted in, for an arena to come, on a device that is the host. Errors:
  // ExitCode::does_not_fit.
  Result<void> prepare(MemoryPlace place, std::uint64_t bytes, const KeptMemoryOptions& options);

  // Bytes held. They count once: a plan that takes them needs no more than what it has beyond them.
  std::uint64_t bytes() const;
  std::uint64_t bytes(MemoryPlace place) const { return held_of(place).memory_bytes; }
  // Bytes of the last arena that were there before.
  std::uint64_t reused_bytes() const { return reused_bytes_; }
  // Gives all of it back.
  void release();

  // For tests: fills what is reused with bytes that are no sensible number, to find whoever relies on zeros.
  // Only on a device that is the host.
  void spoil_reused(bool spoil) { spoil_ = spoil; }

 private:
  struct Held {
    OwnedMemory memory;
    std::uint64_t memory_bytes = 0;
  };

  Result<OwnedMemory> take(MemoryPlace place, std::uint64_t bytes, const KeptMemoryOptions& options,
                           const MemorySource& fresh);
  Result<void> take_host(Held& held, std::uint64_t bytes, const KeptMemoryOptions& options);
  const Held& held_of(MemoryPlace place) const { return held_[static_cast<std::size_t>(place)]; }

  std::array<Held, 2> held_;  // by MemoryPlace
  std::uint64_t reused_bytes_ = 0;
  bool spoil_ = false;
};

// Faults in the pages of private or shared memory for writing, by several threads, and keeps their content.
// `progress` as above.
void fault_in(std::span<std::byte> memory, int threads, const std::function<void()>& progress = {});
// Does the same on this thread for memory that others may write meanwhile, until `is_cancelled`, which is
// asked some times in a second. Does nothing where the system cannot (Linux before 5.14).
void fault_in_beside(std::span<std::byte> memory, const std::function<bool()>& is_cancelled);

}  // namespace holdfast::inline core
