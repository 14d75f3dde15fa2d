// The locks of posix_env: files with a flock on them, whose content names the holder (Env::lock). For
// posix_env.cc; the rest of the tree sees runtime/os/env.h.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "runtime/core/result.h"
#include "runtime/os/env.h"

namespace holdfast::inline os {

// The next three implement Env::lock, Env::replace_lock and Env::is_locked. `env` provides the clock and the
// operations that are not about locks.
Result<std::unique_ptr<FileLock>> lock_posix_file(Env& env, const std::string& path,
                                                  const std::string& content, std::int64_t timeout_ms);
Result<std::unique_ptr<FileLock>> replace_posix_lock(Env& env, const std::string& path,
                                                     const std::string& content);
Result<bool> is_posix_locked(const std::string& path);

}  // namespace holdfast::inline os
