// Fifo: a named pipe that this process reads and that others write to as to a file. Their output is read as
// it comes, or left unread so that they meet a full pipe.
//
// Threads: one. Errors: ExitCode::config with the system's reason.
#pragma once

#include <memory>
#include <string>

#include "runtime/core/result.h"

namespace holdfast::os {

class Fifo {
 public:
  virtual ~Fifo() = default;  // removes it; later writes of others fail as on a broken pipe
  // Returns what has been written since the last call, without the bytes of fill(); does not wait.
  virtual std::string read() = 0;
  // Fills the pipe: from now on every writer blocks until read() is called.
  virtual Result<void> fill() = 0;
};

// Makes the pipe at `path`, where nothing may exist, with the least capacity that the system gives: a page.
Result<std::unique_ptr<Fifo>> make_posix_fifo(const std::string& path);

// Returns whether `path` leads to a pipe, a device or a socket: it has no size, and may wait when it is opened.
bool is_stream(const std::string& path);

}  // namespace holdfast::os
