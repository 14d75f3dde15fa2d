#include "tools/chaos/left_out.h"

#include <fmt/core.h>

#include <algorithm>

#include "runtime/run/event_reading.h"

namespace holdfast::chaos {
namespace {

bool each_host_must_have_ranks(const ChaosRun& run, std::span<const LaunchHost> hosts) {
  const ChaosLayout& layout = run.plan.layout;
  if (layout.pipeline != 1 || layout.tensor != 1 || layout.spares != 0 || run.starts.empty()) return false;
  int slots = 0;
  for (const LaunchHost& host : hosts) {
    if (host.slots <= 0) return false;
    slots += host.slots;
  }
  const bool same_names = std::ranges::all_of(run.starts.front(), [&](const auto& used) {
    return std::ranges::find(hosts, used.first, &LaunchHost::name) != hosts.end();
  });
  return slots == layout.ranks && same_names;
}

}  // namespace

std::optional<HostRanks> ranks_of_start(const Json& event) {
  const std::optional<StartEvent> start = event_as<StartEvent>(event);
  return start.has_value() ? start->hosts : std::nullopt;
}

std::string host_left_out(const ChaosRun& run, std::span<const LaunchHost> hosts, const std::string& here) {
  if (!each_host_must_have_ranks(run, hosts)) return "";
  for (const LaunchHost& host : hosts) {
    const bool met = std::ranges::any_of(run.injected, [&](const ChaosInjected& injected) {
      return (injected.host.empty() ? here : injected.host) == host.name || injected.peer == host.name;
    });
    if (met) continue;
    for (std::size_t i = 0; i < run.starts.size(); ++i) {
      const auto used = run.starts[i].find(host.name);
      if (used != run.starts[i].end() && used->second > 0) continue;
      return fmt::format("start {} of {} had no rank on host {}, to which nothing had happened", i + 1,
                         run.starts.size(), host.name);
    }
  }
  return "";
}

}  // namespace holdfast::chaos
