// The shared memory of posix_env: files of /dev/shm, in a directory that its user alone may enter. For
// posix_env.cc and test twins of Env; the rest of the tree sees runtime/os/env.h, which says what these
// functions promise.
//
// The directory is /dev/shm/holdfast-UID; where somebody else has that name, holdfast-UID-1 to
// holdfast-UID-7. Its owner and its mode are looked at each time, and what is in it is reached from its
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
