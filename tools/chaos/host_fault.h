// Host faults are those that happen to hosts: which option of `holdfast chaos` makes each one, and which
// option ends it. Pure.
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tools/chaos/chaos_plan.h"

namespace holdfast::chaos {

struct HostFault {
  ChaosFault fault;
  std::string_view begin;  // option, without dashes, whose command makes the fault
  std::string_view end;    // option whose command ends it; empty: none is needed
  std::string_view text;   // text after the name of the host
  bool renames = false;    // its end puts a host with another name into the hostfile
  bool of_pair = false;    // happens between the host and one other, whose name comes after the text
};
std::span<const HostFault> host_faults();
// Returns the host fault, or null for a fault that does not happen to hosts.
const HostFault* host_fault_of(ChaosFault fault);

// Returns all options of host_faults(), each once.
std::vector<std::string_view> host_fault_options();

// Shell commands by which the user makes host faults, by option, with {host} for the name and {peer} for that of the
// other host of a pair, or the names after them. A fault whose option is missing cannot be made.
using HostCommands = std::map<std::string, std::string, std::less<>>;

// Returns which option is missing; empty: the fault can be made and ended.
std::string missing_commands(const HostFault& fault, const HostCommands& commands);

}  // namespace holdfast::chaos
