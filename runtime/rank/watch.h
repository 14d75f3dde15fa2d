// Makes the RankWatch of a rank (watchdog/rank_watch.h) from the environment and the config, and wraps its
// calls for callers that may not have one.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>

#include "runtime/config/config.h"
#include "runtime/config/loader.h"
#include "runtime/os/env.h"
#include "watchdog/rank_watch.h"

namespace holdfast::rank {

DeadlineLimits deadline_limits(const WatchdogConfig& config);

// Returns the name of the board of the ranks on this host. Ranks in another PID namespace have another board,
// and a guard of their own, because this guard would take processes that it cannot see for dead.
std::string watched_board(Env& env);

// Starts watching this rank before MPI starts, which may hang; for a joiner after that, because only MPI
// knows its number. Returns null with watchdog.guard = false, if there is no shared memory for the board, and if
// another process makes it, lives and never finishes: then a line on stderr says so, and the run goes on
// unwatched. A rank whose config has errors is watched, too, until all ranks know of them.
std::unique_ptr<RankWatch> begin_watch(Env& env, const Result<LoadedConfig>& config, int launched_rank,
                                       std::int64_t join_timeout_ms);

// Returns how long a rank that shows no sign of life may take to rebuild the group with the others after a
// death: half of the time that these wait, so that the others can go on without a rank that does not come.
inline std::int64_t rebuild_deadline_ms(const Config& config) {
  return std::max<std::int64_t>(1,
                                std::min(config.elastic.recovery_timeout_ms / 2, config.watchdog.ceiling_ms));
}
// Returns how long a rank that shows signs of life may take to rebuild the group. A machine on which steps
// take ten times as long also needs ten times as long for this. The rest of the time is left to the others,
// to go on without it.
inline std::int64_t rebuild_ceiling_ms(const Config& config) {
  return std::min(config.elastic.recovery_timeout_ms / 5 * 4, config.watchdog.ceiling_ms);
}

inline void enter(RankWatch* watch, Phase phase, std::uint64_t step) {
  if (watch != nullptr) watch->enter(phase, step);
}
inline void enter(RankWatch* watch, Phase phase, std::uint64_t step, std::int64_t deadline_ms) {
  if (watch != nullptr) watch->enter(phase, step, deadline_ms);
}
// Begins a part of rebuilding the group after a death, or with new ranks.
inline void enter_recovery(RankWatch* watch, std::uint64_t step, const Config& config) {
  if (watch != nullptr)
    watch->enter(Phase::recovery, step, rebuild_deadline_ms(config), rebuild_ceiling_ms(config));
}
inline void mark(RankWatch* watch) {
  if (watch != nullptr) watch->mark();
}
// Lets the limits of the present phase begin anew, after a wait for others that may take long.
inline void renew_limits(RankWatch* watch) {
  if (watch != nullptr) watch->renew_limits();
}
inline void beside_save(RankWatch* watch) {
  if (watch != nullptr) watch->beside_save();
}

// StorageWait marks calls that may block on a file system, until the end of its scope: a rank that blocks
// there is reported, but not ended before watchdog.ceiling without progress. `what`: a literal, "training data".
class StorageWait {
 public:
  StorageWait(RankWatch* watch, const char* what) : watch_(watch) {
    if (watch_ != nullptr) watch_->waits_for_storage(what);
  }
  ~StorageWait() {
    if (watch_ != nullptr) watch_->storage_answers();
  }
  // Says that so many bytes have come; called by the thread that made it.
  void progress(std::uint64_t bytes) const {
    if (watch_ == nullptr) return;
    watch_->moved(bytes);
    watch_->renew_limits();
  }
  StorageWait(const StorageWait&) = delete;
  StorageWait& operator=(const StorageWait&) = delete;

 private:
  RankWatch* watch_;
};

}  // namespace holdfast::rank
