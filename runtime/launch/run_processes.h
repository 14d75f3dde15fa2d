// The processes of a start on this host, found by the variable that the launcher gave to mpirun and that all
// which come from it inherit (launch_record.h): exact where names and numbers are not.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/os/env.h"
#include "runtime/os/processes.h"

namespace holdfast::inline launch {

// Those of the start in `directory`, this process apart; those of other users cannot be seen.
std::vector<std::unique_ptr<Process>> processes_of_start(Env& env, const std::string& directory);
// Those of all starts whose names begin with the token (host_command.h).
std::vector<std::unique_ptr<Process>> processes_of_starts(Env& env, const std::string& token);

// Waits `grace_ms` for them to go by themselves, then kills until none is left. False: some did not die
// within ten seconds, as a process does that waits for a device or a dead network file system.
bool end_processes_of_start(Env& env, const std::string& directory, std::int64_t grace_ms);
bool end_processes_of_starts(Env& env, const std::string& token, std::int64_t grace_ms);

// The duty of process 1 of a container: what lost its parent came to it, and waits to be reaped. `own` is
// left to whoever started it.
void reap_adopted(Env& env, std::int64_t own);

}  // namespace holdfast::inline launch
