#include "tools/chaos/host_fault.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>

namespace holdfast::chaos {

std::span<const HostFault> host_faults() {
  static constexpr std::array table = {
      HostFault{ChaosFault::lost_host, "lose-host", "return-host", "is lost"},
      HostFault{ChaosFault::cut_link, "cut-link", "mend-link", "is cut off"},
      HostFault{ChaosFault::host_killed, "kill-host", "", "has all its ranks killed"},
      HostFault{ChaosFault::deaf_host, "deafen-host", "undeafen-host", "hears nobody"},
      HostFault{ChaosFault::mute_host, "mute-host", "unmute-host", "is heard by nobody"},
      HostFault{ChaosFault::lossy_link, "spoil-link", "clean-link", "loses some of what it sends and gets"},
      HostFault{ChaosFault::slow_link, "slow-link", "fast-link", "sends and gets everything late"},
      HostFault{ChaosFault::replaced_host, "lose-host", "replace-host", "is lost and not replaced", true},
      HostFault{ChaosFault::unfit_host, "unfit-host", "fit-host", "is unfit"},
      HostFault{ChaosFault::cut_pair, "cut-pair", "mend-pair", "is cut off from", false, true},
      HostFault{ChaosFault::stopped_host, "stop-host", "continue-host", "is stopped"},
  };
  return table;
}

const HostFault* host_fault_of(ChaosFault fault) {
  const std::span<const HostFault> all = host_faults();
  const auto found = std::ranges::find(all, fault, &HostFault::fault);
  return found == all.end() ? nullptr : &*found;
}

std::vector<std::string_view> host_fault_options() {
  std::vector<std::string_view> options;
  for (const HostFault& fault : host_faults()) {
    for (const std::string_view option : {fault.begin, fault.end}) {
      if (!option.empty() && std::ranges::find(options, option) == options.end()) options.push_back(option);
    }
  }
  return options;
}

std::string missing_commands(const HostFault& fault, const HostCommands& commands) {
  const auto reported = [&](std::string_view option) {
    const auto found = commands.find(option);
    return option.empty() || (found != commands.end() && !found->second.empty());
  };
  if (reported(fault.begin) && reported(fault.end)) return "";
  return fault.end.empty() ? fmt::format("--{} CMD", fault.begin)
                           : fmt::format("--{} CMD and --{} CMD", fault.begin, fault.end);
}

}  // namespace holdfast::chaos
