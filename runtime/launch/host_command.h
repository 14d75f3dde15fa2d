// Commands that the launcher runs on a host of the run: directly on its own host, and on distant hosts by
// ssh, as `holdfast launch --on-host DUTY TOKEN [RUN_ID]`; and what it asks before a start, `--on-host ready ...`
// (host_ready.h), or of a host on which a run trains, `--on-host meet ...`.
//
// The token identifies all starts of a run, whichever launcher made them: it is in RUN/launch/token, and the
// name of every start (launch_record.h) begins with it. So leftovers of starts are found by the token, and
// never those of another run.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "runtime/core/result.h"
#include "runtime/launch/host_ready.h"
#include "runtime/os/env.h"
#include "runtime/run/run_directory.h"

namespace holdfast::launch {

// Returns the token of the run, and makes it when there is none. The caller holds the launcher's lock.
Result<std::string> launch_token(Env& env, const RunPaths& paths);

enum class HostCommand {
  look,    // looks for living processes of starts
  clean,   // ends what is left of starts, and removes Open MPI's shared memory
  finish,  // cleans, and removes RAM snapshots: `run_id`, or several separated by commas
};
const char* name_of(HostCommand duty);

// Runs the command on this host. Returns false if a process is alive; after clean and finish this means that
// it could not be killed.
bool do_host_command(Env& env, HostCommand duty, const std::string& token, const std::string& run_id);

// arguments_of() returns the words after the program on the command line for a distant host.
// run_host_command() runs them there and returns 0 when do_host_command() is true, else 1; ExitCode::config
// when the words are invalid. For a ReadyQuestion it cleans, calls `prove`, attends the meeting, and returns 0; the
// message of an error is one line then, because the last line is what the launcher hears (HostAnswer). For a
// MeetQuestion it only attends.
using HostProof = std::function<Result<void>(const ReadyQuestion& question)>;
std::vector<std::string> arguments_of(HostCommand duty, const std::string& token, const std::string& run_id);
Result<int> run_host_command(Env& env, const std::vector<std::string>& words, const HostProof& prove);

}  // namespace holdfast::launch
