// Mounts that only this process and its children can see: file systems of limited size in memory, which no
// other process sees and which are gone with the last process that does, however it ends.
//
// Threads: one, and no other may exist when begin_own() is called. Errors: ExitCode::config with the system's
// reason.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/core/result.h"

namespace holdfast::os {

class Mounts {
 public:
  virtual ~Mounts() = default;
  // Gives this process mounts of its own from now on. Error: that is not permitted here (a container without
  // the right to, a system that denies user namespaces to ordinary users); nothing has changed.
  virtual Result<void> begin_own() = 0;
  // Mounts memory on an existing directory and hides what it held before. begin_own() must come first.
  virtual Result<void> mount_memory(const std::string& directory, std::uint64_t bytes) = 0;
  // Unmounts what was mounted there, with all its content.
  virtual Result<void> unmount(const std::string& directory) = 0;
};

// Returns the mounts of the real operating system.
Mounts& posix_mounts();

}  // namespace holdfast::os
