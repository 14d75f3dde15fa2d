// Decides whether the ranks of a run fit into the memory of their hosts, and what to do if they do not: wait
// for memory that dying processes still hold, keep fewer snapshots, or fail. Pure; equal inputs give equal
// results on all ranks. memory_agreement.h measures, waits and carries the decision out.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "runtime/os/machine_facts.h"

namespace holdfast::rank {

// Tiers of snapshots in shared memory; each includes the ones before it.
enum class SnapshotTiers : std::uint8_t {
  none,  // one copy of ordinary memory, for saves to disk
  own,   // slots of the rank's own state
  all,   // and the replicas of other ranks' state
};
inline constexpr std::size_t snapshot_tier_count = 3;

// SnapshotRoom is the memory for snapshots that was decided on. With `third_slot_later` there is room for a
// rank's third slot once the snapshots that it resumed from are gone; it is made then in any case
// (snapshot.h).
struct SnapshotRoom {
  SnapshotTiers tiers = SnapshotTiers::all;
  bool third_slot_later = false;
  bool operator==(const SnapshotRoom&) const = default;
};

// RankMemory holds one rank's needs, and what it measures on its host. All sizes are in bytes.
struct RankMemory {
  struct Need {
    std::uint64_t own_bytes = 0;     // ordinary memory
    std::uint64_t shared_bytes = 0;  // shared memory

    static void visit_fields(auto& self, auto&& visit) {
      visit("own_bytes", self.own_bytes);
      visit("shared_bytes", self.shared_bytes);
    }
  };
  std::string host = {};
  std::string host_id = {};                         // Env::host_id(); empty: the name stands for it
  std::array<Need, snapshot_tier_count> need = {};  // by SnapshotTiers
  std::uint64_t slot_bytes = 0;                     // size of one slot of the rank's own snapshots
  std::uint64_t kept_bytes = 0;                     // ordinary memory that it holds already and will reuse
  // Sizes of the run's older snapshots on its host: those that are removed, or reused, once the state is
  // loaded; and those that stay until there are newer ones.
  std::uint64_t unneeded_bytes = 0, resumed_bytes = 0;
  std::optional<MemoryRoom> room = {};            // none: not known; then everything fits
  std::optional<std::uint64_t> shared_free = {};  // free shared memory; none: not known

  static void visit_fields(auto& self, auto&& visit) {
    visit("host", self.host);
    visit("host_id", self.host_id);
    visit("need", self.need);
    visit("slot_bytes", self.slot_bytes);
    visit("kept_bytes", self.kept_bytes);
    visit("unneeded_bytes", self.unneeded_bytes);
    visit("resumed_bytes", self.resumed_bytes);
    visit("room", self.room);
    visit("shared_free", self.shared_free);
  }
};

struct FitQuestion {
  std::span<const RankMemory> ranks;              // all ranks that compute
  SnapshotTiers wanted = SnapshotTiers::all;      // tiers that the config asks for
  SnapshotTiers waits_for = SnapshotTiers::none;  // tiers that the run had before, which are worth a wait
  bool time_is_over = false;                      // the wait is over
};

struct FitAnswer {
  enum class Kind : std::uint8_t {
    fits,       // the ranks fit with `room`
    wait,       // other processes hold memory that `room` needs
    lacks,      // other processes still hold it, and the wait is over
    too_large,  // would not fit on a machine that is otherwise empty
  };
  Kind kind = Kind::fits;
  SnapshotRoom room = {};
  // True if unneeded snapshots have to be removed before the state is loaded; else they may stay until the
  // state is known to be sound.
  bool removes_snapshots_first = false;
  // First host on which something that was wanted lacks memory.
  std::string host = {};
  bool is_of_shared_memory = false;  // shared memory is too small there, not the memory of the host
  std::uint64_t needed_bytes = 0, available_bytes = 0, total_bytes = 0;
};

FitAnswer decide_fit(const FitQuestion& question);

}  // namespace holdfast::rank
