// Guard: the process beside the ranks of one host that looks at their board. It sees them end, ends those
// that hang, and writes what every rank was at when something happened.
//
// It has no MPI and no config: what it needs is on the board. It lives as long as one of the ranks, and
// removes the board at the end. One at a time: a second one finds the first and leaves.
//
// Its ticks touch /proc, shared memory and sockets, which do not block. Files are written on another thread
// (guard_writer.h), because a file system may not respond for minutes, and a guard that is silent for
// watchdog.floor makes its host unreachable.
//
// On a host that is cut off the daemon of MPI never hears that mpirun has gone, and would stay. The guard
// ends it behind the last rank: the parent that the ranks had, and nobody else.
//
// GuardMind decides; here are the board, the processes, the network and the loop.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "runtime/core/result.h"
#include "runtime/os/env.h"
#include "watchdog/guard_mind.h"

namespace holdfast::watchdog {

// RankDeath says how the process of a rank ended.
struct RankDeath {
  int rank = -1;  // launched
  std::int64_t process = 0;
  std::string cause = {};  // "signal 9 (SIGKILL)"
  std::uint64_t step = 0;  // newest step that the rank had completed
};

struct GuardSettings {
  std::string board;
  GuardMindSettings mind = {};
  // A variable that the ranks of a launcher's start have, and the mpirun that it has started, but not MPI's
  // daemons on other hosts. Empty: those are left alone.
  std::string start_variable = {};
  // Longest wait, after the end of the last rank, for reports and records that are not written yet. The
  // launcher gives mpirun, which waits for the guard, 5 s.
  std::int64_t write_patience_ms = 4'000;
  // The functions below are called on another thread than run_guard(), possibly after it has returned.
  // Called when `rank` (launched; -1: all of this host) has been ended, with the reason; may be null.
  std::function<void(int rank, const std::string& sentence)> on_hang = {};
  // Called when the process of a rank has ended without saying that it would, and not by this guard, where the
  // system tells how; may be null.
  std::function<void(const RankDeath& death)> on_end = {};
  // Called when a rank has ended in the kernel of a plug-in, with the run directory (empty: not known); may be null.
  std::function<void(const std::string& run_directory, const KernelFault& fault)> on_kernel_fault = {};
  // Called with the hosts that are out of reach, when they have become others; may be null.
  std::function<void(const std::vector<std::string>& hosts)> on_silent = {};
  // Called once, by the thread of run_guard(), which it must not hold up: the ranks have said which run they are of. May be
  // null.
  std::function<void(const std::string& run_directory)> on_run = {};
};

// Runs the guard until the last rank has gone. Error: the board cannot be opened.
Result<void> run_guard(Env& env, const GuardSettings& settings);

}  // namespace holdfast::watchdog
