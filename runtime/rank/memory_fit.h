// Decides whether the ranks of a run fit into the memory of their hosts, and what to do where they do not:
// wait for what dying processes still hold, keep fewer snapshots, or give up. Pure; equal on all ranks from
// equal inputs. memory_agreement.h measures, waits and carries it out.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "runtime/os/available_memory.h"

namespace holdfast::inline rank {

// Tiers of snapshots in shared memory, each including the ones before it.
enum class SnapshotTiers : std::uint8_t {
  none,  // one copy of ordinary memory, for saves to disk
  own,   // slots of the rank's own state
  all,   // and the replicas of other ranks' state
};
inline constexpr std::size_t snapshot_tier_count = 3;

// Memory for snapshots as it was decided. With `third_slot_later` there is room for a rank's third slot when
// the snapshots that it resumed from are gone; it is made then in any case (snapshot_memory.h).
struct SnapshotRoom {
  SnapshotTiers tiers = SnapshotTiers::all;
  bool third_slot_later = false;
  bool operator==(const SnapshotRoom&) const = default;
};

// One rank's needs, and what it measures of its host. All in bytes.
struct RankMemory {
  struct Need {
    std::uint64_t own_bytes = 0;     // of ordinary memory
    std::uint64_t shared_bytes = 0;  // of shared memory

    static void visit_fields(auto& self, auto&& visit) {
      visit("own_bytes", self.own_bytes);
      visit("shared_bytes", self.shared_bytes);
    }
  };
  std::string host = {};
  std::string host_id = {};                         // Env::host_id(); empty: the name stands for it
  std::array<Need, snapshot_tier_count> need = {};  // by SnapshotTiers
  std::uint64_t slot_bytes = 0;                     // of one slot of its own
  std::uint64_t kept_bytes = 0;  // of ordinary memory that it holds already, and takes again
  // Bytes of the run's older snapshots on its host: those that go, or are taken again, once the state is
  // loaded; and those that stay until there are newer ones.
  std::uint64_t unneeded_bytes = 0, resumed_bytes = 0;
  std::optional<MemoryRoom> room = {};            // none: not known, and then everything fits
  std::optional<std::uint64_t> shared_free = {};  // what shared memory has room for; none: not known

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
  std::span<const RankMemory> ranks;              // all that compute
  SnapshotTiers wanted = SnapshotTiers::all;      // by the config
  SnapshotTiers waits_for = SnapshotTiers::none;  // that the run had: worth a wait
  bool time_is_over = false;                      // of the wait
};

struct FitAnswer {
  enum class Kind : std::uint8_t {
    fits,       // with `room`
    wait,       // for memory that others hold, and which `room` needs
    lacks,      // others still hold it though the time is over
    too_large,  // for a machine on which nobody else holds any
  };
  Kind kind = Kind::fits;
  SnapshotRoom room = {};
  // Whether unneeded snapshots have to go before the state is loaded, else they may wait until it is sound.
  bool removes_snapshots_first = false;
  // First host on which anything that was wanted lacks memory.
  std::string host = {};
  bool is_of_shared_memory = false;  // which is too small there, not the host
  std::uint64_t needed_bytes = 0, available_bytes = 0, total_bytes = 0;
};

FitAnswer decide_fit(const FitQuestion& question);

}  // namespace holdfast::inline rank
