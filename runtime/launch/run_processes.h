// Finds the processes of a start on this host by the variable that the launcher set for mpirun and that all
// its descendants inherit (launch_record.h): this is exact, unlike names and process ids.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/os/env.h"
#include "runtime/os/processes.h"

namespace holdfast::launch {

// Returns the processes of the start in `directory`, except this one; those of other users cannot be seen.
std::vector<std::unique_ptr<Process>> processes_of_start(Env& env, const std::string& directory);
// Returns the processes of all starts whose names begin with the token (host_command.h).
std::vector<std::unique_ptr<Process>> processes_of_starts(Env& env, const std::string& token);

// Wait `grace_ms` for the processes to end by themselves, then kill them until none is left. Return false if
// some did not die within ten seconds, like a process that waits for a device or for a network file system
// that is down.
bool end_processes_of_start(Env& env, const std::string& directory, std::int64_t grace_ms);
bool end_processes_of_starts(Env& env, const std::string& token, std::int64_t grace_ms);

// Reaps processes that lost their parent, if this process is process 1 of a container and therefore their new
// parent. `own` is left to the code that started it.
void reap_adopted(Env& env, std::int64_t own);

}  // namespace holdfast::launch
