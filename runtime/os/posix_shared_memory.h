// The shared memory of posix_env: files of /dev/shm, in a directory that only its user may enter. For
// posix_env.cc and test twins of Env; the rest of the tree sees runtime/os/env.h, which is the contract of
// these functions.
//
// The directory is /dev/shm/holdfast-UID; where that name belongs to another user, holdfast-UID-1 to
// holdfast-UID-7. Its owner and its mode are checked each time, and its files are opened relative to its
// descriptor.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "runtime/os/env.h"

namespace holdfast::inline os {

std::string posix_shared_memory_path(const std::string& name);
Result<std::unique_ptr<SharedMemory>> create_posix_shared_memory(const std::string& name,
                                                                 std::uint64_t bytes);
Result<std::unique_ptr<SharedMemory>> open_posix_shared_memory(const std::string& name);
Result<void> remove_posix_shared_memory(const std::string& name);
Result<std::vector<std::string>> list_posix_shared_memory();
Result<std::string> make_posix_shared_directory(const std::string& name);

}  // namespace holdfast::inline os
