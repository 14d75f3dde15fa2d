// The faults that happen to hosts: which option of `holdfast chaos` says how each is made, and which how it
// is ended. Pure.
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/chaos/chaos_plan.h"

namespace holdfast::inline chaos {

struct HostFault {
  ChaosFault fault;
  std::string_view begin;  // option, without dashes; its command makes it
  std::string_view end;    // empty: nothing has to end it
  std::string_view text;   // behind the name of the host
  bool renames = false;    // its end puts a host with another name into the hostfile
};
std::span<const HostFault> host_faults();
// Returns null for a fault that is not one of hosts.
const HostFault* host_fault_of(ChaosFault fault);

// All options of host_faults(), each once.
std::vector<std::string_view> host_fault_options();

// Holds what the user does to hosts, by option: commands for a shell, with {host} for the name, or the name
// after them. Where an option is missing nobody can do it.
using HostCommands = std::map<std::string, std::string, std::less<>>;

// Returns which option is missing; empty: the fault can be made and ended.
std::string missing_commands(const HostFault& fault, const HostCommands& commands);

}  // namespace holdfast::inline chaos
