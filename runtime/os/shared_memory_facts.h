// What becomes of shared memory that outlives its process, on this host.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/os/env.h"

namespace holdfast::inline os {

inline constexpr const char* shared_memory_directory = "/dev/shm";

// systemd's logind removes the shared memory of users who have logged out of their last session (RemoveIPC in
// logind.conf), also in directories of /dev/shm, but not that of system users, nor of users who linger.
// Whether it would remove that of this user, and what to do, as a clause for a sentence; empty where it
// stays.
std::string shared_memory_removal(Env& env, std::uint32_t user_id, const std::string& user_name);
std::string shared_memory_removal(Env& env);  // of the user of this process

}  // namespace holdfast::inline os
