// Repeats what failed for a reason of this minute.
#pragma once

#include <cstdint>

#include "runtime/core/result.h"
#include "runtime/os/env.h"

namespace holdfast::os {

// Longest time for which a rank repeats a call of the file system before it counts as unfit. Callers on a rank's own
// thread mark the wait for its guard (StorageWait); the peers of a rank wait longer (parallel.timeout).
inline constexpr std::int64_t storage_patience_ms = 20'000;
inline constexpr std::int64_t storage_pause_ms = 100;

// Calls `attempt`, which returns a Result, until it succeeds, fails for a reason that lasts (not Reach::minute), or
// storage_patience_ms is over. `gives_up`: asked between attempts; true ends them.
template <typename Attempt, typename GivesUp>
auto retry_storage(Env& env, Attempt attempt, GivesUp gives_up) {
  const std::int64_t until_ns = env.monotonic_ns() + storage_patience_ms * 1'000'000;
  while (true) {
    auto result = attempt();
    const bool may_pass = !result.ok() && result.error().reach == Reach::minute;
    if (!may_pass || env.monotonic_ns() >= until_ns || gives_up()) return result;
    env.sleep_us(storage_pause_ms * 1000);
  }
}

template <typename Attempt>
auto retry_storage(Env& env, Attempt attempt) {
  return retry_storage(env, attempt, [] { return false; });
}

}  // namespace holdfast::os
