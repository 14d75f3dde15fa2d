// Runs a user's command line from the config (checkpoint.upload_command, notify.command and similar keys), with its time
// limit and its retries.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "runtime/core/result.h"
#include "runtime/os/command.h"
#include "runtime/os/env.h"

namespace holdfast::run {

struct UserCommand {
  std::string key;  // key of the config, for messages
  std::string line;
  std::string timeout_key;
  std::int64_t timeout_ms = 0;                    // time limit of one attempt
  std::vector<std::int64_t> retry_after_ms = {};  // delays before further attempts
};

struct CommandAttempts {
  Result<void> outcome;  // the error says how the last attempt ended, and quotes nothing of what it printed
  std::string printed = {};  // end of what the last attempt printed, if it failed, in one line
  int attempts = 0;
  std::int64_t duration_ns = 0;  // time of all attempts and the waits between them
};

// Returns "it ended with exit code 7; it printed: no route", for the console alone: users print what they were given.
std::string with_printed(const std::string& sentence, const std::string& printed);

// Runs the command. Blocks until it has succeeded, has failed in every attempt, or is cancelled; meant for a
// thread that has nothing else to do. Its error is ExitCode::checkpoint.
CommandAttempts run_user_command(Env& env, const UserCommand& command,
                                 const std::map<std::string, std::string>& variables,
                                 const std::atomic<bool>& cancelled);

}  // namespace holdfast::run
