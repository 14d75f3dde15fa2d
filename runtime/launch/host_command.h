// What the launcher does on a host of the run: there itself, on distant ones as a command that it calls by
// ssh, `holdfast launch --on-host DUTY TOKEN [RUN_ID]`.
//
// The token names all starts of a run, by whatever launcher: it is in RUN/launch/token, and every start's
// name (launch_record.h) begins with it. So what starts have left is found by it, and never anything of
// another run.
#pragma once

#include <string>
#include <vector>

#include "runtime/core/result.h"
#include "runtime/os/env.h"
#include "runtime/run/run_directory.h"

namespace holdfast::inline launch {

// The one of the run; made when there is none. The caller holds the launcher's lock.
Result<std::string> launch_token(Env& env, const RunPaths& paths);

enum class HostCommand {
  look,    // is a process of a start alive?
  clean,   // end what is left of starts, and remove what Open MPI had in shared memory
  finish,  // and the run's RAM snapshots: `run_id`, or several with commas between them
};
const char* name_of(HostCommand duty);

// On this host. False: a process is alive, which for the other two means that it does not die.
bool do_host_command(Env& env, HostCommand duty, const std::string& token, const std::string& run_id);

// The words behind the program for a distant host, and what it does with them there: 0 when
// do_host_command() is true, else 1. ExitCode::config when they are wrong.
std::vector<std::string> arguments_of(HostCommand duty, const std::string& token, const std::string& run_id);
Result<int> run_host_command(Env& env, const std::vector<std::string>& words);

}  // namespace holdfast::inline launch
