// Guard: the process beside the ranks of one host that looks at their board. It sees them end, ends those
// that hang, and writes what every rank was at when something happened.
//
// It has no MPI, no thread, no config: what it needs is on the board. It lives as long as one of the ranks,
// and removes the board at the end. One at a time: a second one finds the first and leaves.
//
// On a host that is cut off the daemon of MPI never hears that mpirun has gone, and would stay. The guard
// ends it behind the last rank: the parent that the ranks had, and nobody else.
//
// A guard whose own tick came late (the machine was suspended, or it was stopped) throws its evidence away
// and begins to count anew.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "runtime/core/env.h"
#include "runtime/core/result.h"

namespace holdfast {

struct GuardSettings {
  std::string board;
  std::int64_t tick_ms = 25;
  std::int64_t late_ms = 1'000;            // a tick that took so long was no tick
  std::int64_t kill_patience_ms = 10'000;  // one that does not die of SIGKILL: level 2 (death_patience_ns)
  std::int64_t storage_quiet_ms = 10'000;  // ranks that wait for storage for so long are told of
  // A variable that the ranks of a launcher's start have, and the mpirun that it has started, but not MPI's
  // daemons on other hosts. Empty: those are left alone.
  std::string start_variable = {};
  // Called when `rank` (launched; -1: all of this host) has been ended, with the reason; may be null.
  std::function<void(int rank, const std::string& sentence)> on_verdict = {};
};

// Until the last rank has gone. Error: the board cannot be opened.
Result<void> run_guard(Env& env, const GuardSettings& settings);

}  // namespace holdfast
