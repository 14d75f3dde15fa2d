// SlowFiles lets each call to some files take long: a view (FUSE) of a directory, or of one file, that is mounted over
// it. The files are the same ones, also when the view is gone.
//
// Threads: slow_down() may be called by one; the view has its own. Errors: ExitCode::config with the system's reason.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "runtime/core/result.h"

namespace holdfast::os {

class SlowFiles {
 public:
  virtual ~SlowFiles() = default;  // unmounts it; calls that wait are made first
  // Lets each call of another process take at least so long from now on: opens, reads, writes, syncs, renames. 0: no
  // longer than it takes anyway, which also ends the calls that wait.
  virtual void slow_down(std::int64_t call_ms) = 0;
};

// Mounts the view on a directory or a file. Requires an earlier Mounts::begin_own(), and that no other thread of this
// process uses the files: it would wait for the view as others do. Error: FUSE is not there, or not permitted.
Result<std::unique_ptr<SlowFiles>> mount_slow_files(const std::string& path);
// Returns the reason why this process cannot have such a view; empty: it may.
std::string why_no_slow_files();

}  // namespace holdfast::os
