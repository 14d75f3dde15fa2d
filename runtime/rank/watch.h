// The watchdog's part in a training run: a rank's RankWatch (watchdog/rank_watch.h) from what the environment
// and the config say, and how its users call one that may not be there.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>

#include "runtime/config/config.h"
#include "runtime/config/loader.h"
#include "runtime/os/env.h"
#include "watchdog/rank_watch.h"

namespace holdfast::inline rank {

DeadlineLimits deadline_limits(const WatchdogConfig& config);

// The name of the board that the ranks of this host have. Those of another PID namespace have another one,
// and a guard of their own: this one would take what it cannot see for dead.
std::string watched_board(Env& env);

// Before MPI starts, which may hang; of a rank that came later, whose number MPI knows first, behind that.
// Null with watchdog.guard = false, and where there is no shared memory to watch in: a line on stderr says so
// then, and the run goes on without. A config with errors is watched, too, until all ranks know of it.
std::unique_ptr<RankWatch> begin_watch(Env& env, const Result<LoadedConfig>& config, int launched_rank,
                                       std::int64_t join_timeout_ms);

// Returns how long a rank that shows no sign of life may take to come together with the others after a death:
// half of what these wait, so that the others can go on without one that does not.
inline std::int64_t rebuild_deadline_ms(const Config& config) {
  return std::max<std::int64_t>(1,
                                std::min(config.elastic.recovery_timeout_ms / 2, config.watchdog.ceiling_ms));
}
// Returns how long one that does show some may take, because on a machine where steps take ten times as long
// so does this. The rest of what the others wait is left to them to go on without it.
inline std::int64_t rebuild_ceiling_ms(const Config& config) {
  return std::min(config.elastic.recovery_timeout_ms / 5 * 4, config.watchdog.ceiling_ms);
}

inline void enter(RankWatch* watch, Phase phase, std::uint64_t step) {
  if (watch != nullptr) watch->enter(phase, step);
}
inline void enter(RankWatch* watch, Phase phase, std::uint64_t step, std::int64_t deadline_ms) {
  if (watch != nullptr) watch->enter(phase, step, deadline_ms);
}
// Begins a part of coming together after a death, or with new ranks.
inline void enter_recovery(RankWatch* watch, std::uint64_t step, const Config& config) {
  if (watch != nullptr)
    watch->enter(Phase::recovery, step, rebuild_deadline_ms(config), rebuild_ceiling_ms(config));
}
inline void mark(RankWatch* watch) {
  if (watch != nullptr) watch->mark();
}
inline void beside_save(RankWatch* watch) {
  if (watch != nullptr) watch->beside_save();
}

// The calls from here to the end of the block may block on a file system: a rank that stands there is told of
// and left alone until watchdog.ceiling. `what`: a literal, "training data".
class StorageWait {
 public:
  StorageWait(RankWatch* watch, const char* what) : watch_(watch) {
    if (watch_ != nullptr) watch_->waits_for_storage(what);
  }
  ~StorageWait() {
    if (watch_ != nullptr) watch_->storage_answers();
  }
  StorageWait(const StorageWait&) = delete;
  StorageWait& operator=(const StorageWait&) = delete;

 private:
  RankWatch* watch_;
};

}  // namespace holdfast::inline rank
