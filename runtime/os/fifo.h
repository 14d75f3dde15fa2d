// Fifo: a named pipe that this process reads and that others write to as to a file: their output, which is
// read as it comes, or left unread so that they meet a pipe that is full.
//
// Threads: one. Errors: ExitCode::config with the system's reason.
#pragma once

#include <memory>
#include <string>

#include "runtime/core/result.h"

namespace holdfast::inline os {

class Fifo {
 public:
  virtual ~Fifo() = default;  // removes it; what writers write then is lost to them as a broken pipe
  // Returns what has been written since the last call, and does not wait. What fill() put there is left out.
  virtual std::string read() = 0;
  // Leaves no room in it: from now on whoever writes waits, until read() is called.
  virtual Result<void> fill() = 0;
};

// Makes it at `path`, where nothing may be, with as little room as the system gives: a page.
Result<std::unique_ptr<Fifo>> make_posix_fifo(const std::string& path);

}  // namespace holdfast::inline os
