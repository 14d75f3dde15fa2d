// shared_memory_removal: whether this host removes shared memory that outlives its process.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/os/env.h"

namespace holdfast::os {

inline constexpr const char* shared_memory_directory = "/dev/shm";

// Returns whether logind would remove the shared memory of this user, and what to do, as a clause for a
// message; empty where it stays. systemd's logind removes the shared memory of users who have logged out of
// their last session (RemoveIPC in logind.conf), also in directories of /dev/shm, but not that of system
// users, nor of users who linger.
std::string shared_memory_removal(Env& env, std::uint32_t user_id, const std::string& user_name);
std::string shared_memory_removal(Env& env);  // of the user of this process

}  // namespace holdfast::os
