// Parts of posix_env that have a file each: commands, locks and shared memory. For posix_env.cc and test twins
// of Env; the rest of the tree sees runtime/os/env.h, which is the contract of these functions.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/os/command.h"
#include "runtime/os/env.h"

namespace holdfast::os {

Result<CommandEnd> run_posix_command(Env& env, const Command& command);

// Locks are files with a flock on them, whose content names the holder. The next three implement Env::lock,
// Env::replace_lock and Env::is_locked. `env` provides the clock and the operations that are not about locks.
Result<std::unique_ptr<FileLock>> lock_posix_file(Env& env, const std::string& path,
                                                  const std::string& content, std::int64_t timeout_ms);
Result<std::unique_ptr<FileLock>> replace_posix_lock(Env& env, const std::string& path,
                                                     const std::string& content);
Result<bool> is_posix_locked(const std::string& path);

// Shared memory is files of /dev/shm, in a directory that only its user may enter: /dev/shm/holdfast-UID;
// where that name belongs to another user, holdfast-UID-1 to holdfast-UID-7. Its owner and its mode are
// checked each time, and its files are opened relative to its descriptor.
std::string posix_shared_memory_path(const std::string& name);
Result<std::unique_ptr<SharedMemory>> create_posix_shared_memory(const std::string& name,
                                                                 std::uint64_t bytes);
Result<std::unique_ptr<SharedMemory>> open_posix_shared_memory(const std::string& name);
Result<void> remove_posix_shared_memory(const std::string& name);
Result<std::vector<std::string>> list_posix_shared_memory();
Result<std::string> make_posix_shared_directory(const std::string& name);

}  // namespace holdfast::os
