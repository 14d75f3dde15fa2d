// Mounts that only this process and what it starts can see: file systems of limited size in memory, which
// nobody else meets and which are gone with the last process that sees them, however it ends.
//
// Threads: one, and no other may be there when begin_own() is called. Errors: ExitCode::config with the
// system's reason.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/core/result.h"

namespace holdfast::inline os {

class Mounts {
 public:
  virtual ~Mounts() = default;
  // From now on this process has mounts of its own. Error: that is not permitted here (a container without
  // the right to, a system that keeps user namespaces from ordinary users); nothing has changed.
  virtual Result<void> begin_own() = 0;
  // On a directory, which is there; what it held before is hidden. begin_own() came before.
  virtual Result<void> mount_memory(const std::string& directory, std::uint64_t bytes) = 0;
  // What was mounted there, with all that is on it.
  virtual Result<void> unmount(const std::string& directory) = 0;
};

// The real one.
Mounts& posix_mounts();

}  // namespace holdfast::inline os
