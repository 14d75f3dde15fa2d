// Reports how much memory a process can still take before the system starts to kill: what the host has left,
// or what the control groups of the process leave it (version 1 and 2, at every level), whichever is less.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "runtime/os/env.h"

namespace holdfast::os {

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

}  // namespace holdfast::os
