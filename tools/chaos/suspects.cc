#include "tools/chaos/suspects.h"

#include <algorithm>
#include <array>
#include <limits>

namespace holdfast::chaos {
namespace {

constexpr std::int64_t never_us = std::numeric_limits<std::int64_t>::max();

bool ends_everybody(ChaosFault fault) {
  return facts_of(fault).ends_job || fault == ChaosFault::mpirun_killed || fault == ChaosFault::all_killed;
}

struct Hang {
  std::size_t index = 0;  // in run.injected
  std::int64_t time_us = 0;
  int rank = -1;
  std::int64_t over_us = never_us;
  bool by_other = false;  // another injected fault ended it
  bool settled = false;
  bool killed = false;  // a verdict named it, be it the first or not
};

class Checker {
 public:
  explicit Checker(const ChaosRun& run) : run_(&run) {
    suspects_.each.resize(run.injected.size());
    for (std::size_t i = 0; i < run.injected.size(); ++i) {
      if (is_hang(run.injected[i].fault)) hangs_.push_back(hang_of(i));
    }
  }

  Suspects check() {
    for (const ReportedHang& verdict : run_->verdicts) take(verdict);
    for (Hang& hang : hangs_) {
      if (!hang.settled && !hang.by_other && was_noticed(hang) && !is_excused(hang))
        settle(hang, NamedRank::nobody);
    }
    return std::move(suspects_);
  }

 private:
  Hang hang_of(std::size_t index) const {
    const ChaosInjected& injected = run_->injected[index];
    Hang hang{.index = index, .time_us = injected.time_us, .rank = injected.rank};
    for (const ChaosLaunch& launch : run_->launches) {
      if (launch.ended_us < hang.time_us) continue;
      hang.over_us = launch.ended_us;
      break;
    }
    // The launcher's own entry comes after the end of a start; an entry of ranks names the lost ranks.
    for (const FaultEntry& entry : run_->ledger.faults) {
      const bool of_launcher = entry.level == FaultLevel::restart && entry.who.empty();
      if (of_launcher && entry.time_us + same_moment_us >= hang.time_us)
        hang.over_us = std::min(hang.over_us, entry.time_us);
    }
    for (std::size_t i = 0; i < run_->injected.size(); ++i) {
      const ChaosInjected& other = run_->injected[i];
      const bool ends = ends_everybody(other.fault) || (facts_of(other.fault).kills_rank &&
                                                        !is_hang(other.fault) && other.rank == hang.rank);
      if (i == index || !ends || other.time_us < hang.time_us || other.time_us > hang.over_us) continue;
      hang.over_us = other.time_us;
      hang.by_other = true;
    }
    return hang;
  }

  void take(const ReportedHang& verdict) {
    const auto is_there = [&](const Hang& hang) {
      return hang.time_us <= verdict.time_us + same_moment_us &&
             verdict.time_us <= hang.over_us + same_moment_us;
    };
    for (Hang& hang : hangs_) {
      if (!is_there(hang) || hang.killed || hang.rank != verdict.rank) continue;
      hang.killed = true;
      if (hang.settled) return;
      settle(hang, NamedRank::right);
      suspects_.each[hang.index].verdict_us = verdict.time_us;
      return;
    }
    for (Hang& hang : hangs_) {
      if (!is_there(hang) || hang.settled) continue;
      settle(hang, verdict.rank < 0 ? NamedRank::nobody : NamedRank::other);
      return;
    }
    if (verdict.rank < 0) return;
    ++suspects_.baseless_verdicts;
    const bool is_slow = std::ranges::any_of(run_->injected, [&](const ChaosInjected& injected) {
      return injected.fault == ChaosFault::slow_storage && injected.time_us <= verdict.time_us;
    });
    if (is_slow && !suspects_.on_slow_storage.has_value()) suspects_.on_slow_storage = verdict;
  }

  void settle(Hang& hang, NamedRank named) {
    hang.settled = true;
    suspects_.each[hang.index].named = named;
  }

  bool was_noticed(const Hang& hang) const {
    if (run_->ran_out_of_time && hang.over_us >= run_->launches.back().ended_us) return true;
    return std::ranges::any_of(run_->ledger.faults, [&](const FaultEntry& entry) {
      return entry.level != FaultLevel::none && entry.time_us + same_moment_us >= hang.time_us;
    });
  }

  // Another start, which another fault led to, ended it.
  bool is_excused(const Hang& hang) const {
    const FaultEntry* entry = entry_of(run_->ledger, hang.time_us);
    if (entry == nullptr || entry->level == FaultLevel::in_place) return false;
    return std::ranges::any_of(run_->injected, [&](const ChaosInjected& other) {
      const bool same = &other == &run_->injected[hang.index];
      return !same && facts_of(other.fault).kills_rank && other.time_us <= hang.over_us &&
             entry_of(run_->ledger, other.time_us) == entry;
    });
  }

  const ChaosRun* run_;
  std::vector<Hang> hangs_;
  Suspects suspects_;
};

}  // namespace

std::string_view name_of(NamedRank named) {
  constexpr std::array<std::string_view, named_ranks> names = {"right", "other", "nobody"};
  return names[static_cast<std::size_t>(named)];
}

const FaultEntry* entry_of(const IncidentLog& ledger, std::int64_t time_us) {
  for (const FaultEntry& entry : ledger.faults) {
    if (entry.level == FaultLevel::none) continue;
    if (entry.resumed_us == 0 || entry.resumed_us > time_us) return &entry;
  }
  return nullptr;
}

Suspects find_suspects(const ChaosRun& run) {
  return Checker(run).check();
}

}  // namespace holdfast::chaos
