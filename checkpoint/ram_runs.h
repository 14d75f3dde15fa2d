// The runs that have RAM snapshots on this host, whoever started them: to list them, and to remove those of
// runs that are gone.
//
// A snapshot's name has only a digest of the run's id, so every sealed snapshot says in its manifest where
// the run directory is (run_directory_key).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/ram_tier.h"

namespace holdfast::checkpoint {

// The value of a snapshot's manifest that is the absolute path of its run directory on that host.
inline constexpr const char* run_directory_key = "run_directory";

struct RunInMemory {
  Digest run = {};                 // digest of its id
  SharedSnapshots snapshots = {};  // all of this host, sealed or not
  std::uint64_t sealed = 0;        // of them
  std::uint64_t newest_step = 0;   // of those that are sealed
  bool keeps_rollback = false;     // one that may not be in its lineage yet (kept_rollback.h)
  std::string directory = {};      // as the newest of those says; empty where none does
  bool in_use = false;             // a process that is visible here has one of them mapped
};

// Lists the runs by digest. What cannot be read counts as not sealed. Empty where there is no shared memory.
std::vector<RunInMemory> list_runs_in_memory(Env& env);

}  // namespace holdfast::checkpoint
