// The shared memory of posix_env: files of /dev/shm. For posix_env.cc and test twins of Env; the rest of the
// tree sees runtime/core/env.h, which says what these functions promise.
#pragma once

#include <memory>
#include <string>

#include "runtime/core/env.h"

namespace holdfast {

std::string shared_memory_path(const std::string& name);
Result<std::unique_ptr<SharedMemory>> create_posix_shared_memory(const std::string& name,
                                                                 std::uint64_t bytes);
Result<std::unique_ptr<SharedMemory>> open_posix_shared_memory(const std::string& name);

}  // namespace holdfast
