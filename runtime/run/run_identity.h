// Identity of a run directory: the id that names what its run has in shared memory (checkpoint/ram_tier.h).
//
// It is in the file run_id, and run_place says for which directory it was made. A run directory that is
// copied brings both along; so where run_place names another directory, and that one still has the same id,
// this one is a copy: what the id names belongs to the other one, and this one gets an id of its own. A
// directory that was moved keeps its id. One directory may have several paths (links, hosts that mount it
// elsewhere): a file that is made here and seen there is proof that the two are one.
//
// The id of what is saved (Manifest::run_id) is another thing: it stays with the checkpoints, wherever they
// are taken.
#pragma once

#include <string>

#include "runtime/core/result.h"
#include "runtime/os/env.h"
#include "runtime/run/run_directory.h"

namespace holdfast::run {

struct RunIdentity {
  std::string id = {};       // empty: the directory has none, or only that of the directory it is a copy of
  std::string copy_of = {};  // that directory
};

// Reads the file run_id. ExitCode::data where it is not an id of a run, because it is sent to other hosts,
// and what it names is removed there.
Result<std::string> read_run_id(Env& env, const RunPaths& paths);
// Makes and removes a file in the directory where it is known by another path; nothing else is changed.
Result<RunIdentity> identify_run(Env& env, const RunPaths& paths);
// Each file is whole or as it was; in between the id is that of this directory and of no other. The caller
// holds the directory's lock.
Result<void> record_identity(Env& env, const RunPaths& paths, const std::string& id);
std::string new_run_id(Env& env);  // 32 hex digits

}  // namespace holdfast::run
