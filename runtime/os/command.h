// Command: a user's command line that a run starts beside itself, as Env::run_command takes it, and its
// outcome.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

namespace holdfast::os {

struct Command {
  std::string line;                                   // for /bin/sh -c
  std::map<std::string, std::string> variables = {};  // added to the environment of this process
  std::int64_t timeout_ms = 0;                        // then it is killed, with all that it has started
  std::size_t output_bytes = 2000;                    // how much is kept of the end of what it prints
  // The command is killed when this becomes true; may be nullptr.
  const std::atomic<bool>* cancelled = nullptr;
};

struct CommandEnd {
  enum class How : std::uint8_t { exited, killed, timed_out, cancelled };
  How how = How::exited;
  int code = 0;             // its exit code, or the signal that killed it
  std::string output = {};  // the end of what it printed, on either stream

  bool succeeded() const { return how == How::exited && code == 0; }
};

}  // namespace holdfast::os
