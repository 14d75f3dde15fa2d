// Finds which machine this is and what it offers a process: facts for `holdfast check` and --version, memory and
// processors within the limits of control groups, and whether shared memory stays. It only probes: nothing that it
// makes stays.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/os/env.h"

namespace holdfast::os {

struct MachineFact {
  std::string name;  // "io_uring"
  bool there = false;
  std::string detail;  // "available", or why not and what is lost
};

// Returns a text that stays the same over boots and names of a host, and differs between machines: the identity that
// the firmware of the machine has, else that of its installation. Empty where neither can be read. Containers of one
// image may have the same one.
std::string machine_identity(Env& env);

// Returns facts about processors, memory, io_uring and /dev/shm.
std::vector<MachineFact> machine_facts(Env& env);

// Finds the control groups (cgroup version 1 and 2) that limit this process. Each of them is a folder; a
// limit of a group holds for all groups below it, so the folders of all its ancestors count, too.
//
// /proc/self/cgroup says which group, /proc/self/mountinfo where the hierarchy is mounted. In a container
// the two may disagree: without a namespace of its own for groups the path is the host's, while the mount
// begins at the container's group. What does not exist under the mount point is left out, so that what can
// be read of it still counts.
struct ControlGroup {
  enum class Version : std::uint8_t { v1, v2 };
  Version version = Version::v2;
  std::string folder;   // without a slash at its end
  bool is_own = false;  // the group of this process, not an ancestor
};

// Returns the groups of `controller` ("memory", "cpu") from the own one up to the visible root: those of
// version 1 where the controller is mounted there, and those of version 2 where that hierarchy exists,
// whatever controllers it has. A folder need not exist.
std::vector<ControlGroup> control_groups(Env& env, const std::string& controller);

// Reports how much memory a process can still take before the system starts to kill: what the host has left,
// or what the control groups of the process leave it (version 1 and 2, at every level), whichever is less.
struct MemoryRoom {
  std::uint64_t available_bytes = 0;
  std::uint64_t total_bytes = 0;  // if nothing were in use: of the host, or the lowest limit
  std::string limited_by = {};    // folder of the control group that leaves the least; empty: the host does

  bool operator==(const MemoryRoom&) const = default;
  static void visit_fields(auto& self, auto&& visit) {
    visit("available_bytes", self.available_bytes);
    visit("total_bytes", self.total_bytes);
    visit("limited_by", self.limited_by);
  }
};

// Returns std::nullopt when the system does not report it. The result is a snapshot: other processes allocate
// and free memory all the time.
std::optional<MemoryRoom> memory_room(Env& env);
std::optional<std::uint64_t> available_memory_bytes(Env& env);

// Returns MemAvailable + SwapFree of the text of /proc/meminfo, and MemTotal + SwapTotal.
std::optional<MemoryRoom> room_of_meminfo(const std::string& meminfo);

// Returns the room of a control group from the texts of its files: its limit ("max" of version 2 is none),
// what all processes below it use, and its memory.stat. Half of the file pages that are in use count as
// droppable at once, and all file pages that are not in use. Returns std::nullopt when there is no limit.
std::optional<MemoryRoom> room_of_group(const std::string& limit, const std::string& usage,
                                        const std::string& stat);

// Returns the number of processors that this process may really use, at least 1. Reads sched_getaffinity and the cpu.max of this process's cgroup v2 and its
// ancestors.
int available_processors();

// Returns the processors of one cpu.max file ("QUOTA PERIOD" in microseconds, or "max PERIOD"), rounded up; 0
// means no limit.
int processors_of_quota(std::string_view cpu_max);

inline constexpr const char* shared_memory_directory = "/dev/shm";

// Returns whether logind would remove the shared memory of this user, and what to do, as a clause for a
// message; empty where it stays. systemd's logind removes the shared memory of users who have logged out of
// their last session (RemoveIPC in logind.conf), also in directories of /dev/shm, but not that of system
// users, nor of users who linger.
std::string shared_memory_removal(Env& env, std::uint32_t user_id, const std::string& user_name);
std::string shared_memory_removal(Env& env);  // of the user of this process

}  // namespace holdfast::os
