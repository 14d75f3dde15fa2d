// How much memory a process can still take before the system starts to kill: what the host has left, or what
// the control groups of the process leave it (version 1 and 2, at every level), whichever is less.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "runtime/os/env.h"

namespace holdfast::inline os {

struct MemoryRoom {
  std::uint64_t available_bytes = 0;
  std::uint64_t total_bytes = 0;  // that there would be if nobody held any: of the host, or the least limit
  std::string limited_by = {};    // folder of the control group that leaves the least; empty: the host does

  bool operator==(const MemoryRoom&) const = default;
  static void visit_fields(auto& self, auto&& visit) {
    visit("available_bytes", self.available_bytes);
    visit("total_bytes", self.total_bytes);
    visit("limited_by", self.limited_by);
  }
};

// std::nullopt when the system does not say. A snapshot: other processes take and give back all the time.
std::optional<MemoryRoom> memory_room(Env& env);
std::optional<std::uint64_t> available_memory_bytes(Env& env);

// MemAvailable + SwapFree of the text of /proc/meminfo, and MemTotal + SwapTotal.
std::optional<MemoryRoom> room_of_meminfo(const std::string& meminfo);

// What files of a group say: its limit ("max" of version 2 is none), what all processes below it hold, and
// its memory.stat. Half of the file pages that are in use count as what can be dropped at once, and all that
// are not. std::nullopt when there is no limit.
std::optional<MemoryRoom> room_of_group(const std::string& limit, const std::string& usage,
                                        const std::string& stat);

}  // namespace holdfast::inline os
