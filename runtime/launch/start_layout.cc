#include "runtime/launch/start_layout.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <tuple>

#include "runtime/run/run_layout.h"

namespace holdfast::launch {
namespace {

// Returns how many groups of `tensor` ranks fit inside single hosts.
int groups_inside_hosts(std::span<const LaunchHost> hosts, int tensor) {
  int groups = 0;
  for (const LaunchHost& host : hosts) {
    if (!host.answers) continue;
    if (host.slots == 0) return std::numeric_limits<int>::max();  // number of slots not known
    groups += host.slots / tensor;
  }
  return groups;
}

bool can_run(Config run, const StartLayout& layout) {
  run.parallel.data = 0;
  run.parallel.tensor = layout.tensor;
  run.parallel.pipeline = layout.pipeline;
  if (layout.pipeline == 1) run.parallel.pipeline_chunks = 1;
  return check_layout(run, layout.ranks).ok();
}

}  // namespace

std::optional<StartLayout> narrower_layout(const Config& run, std::span<const LaunchHost> hosts,
                                           const RanksWanted& wanted, int min_ranks) {
  const int room = room_on_hosts_left(hosts, wanted);
  const int max_copies = (wanted.ranks - wanted.spares) / wanted.per_copy;
  std::optional<StartLayout> best;
  const auto rank = [](const StartLayout& layout) {
    return std::tuple(layout.ranks, layout.pipeline * layout.tensor, layout.tensor);
  };
  for (int tensor = 1; tensor <= run.parallel.tensor; tensor *= 2) {
    const int groups = std::min(room / tensor, groups_inside_hosts(hosts, tensor));
    for (int pipeline = 1; pipeline <= run.parallel.pipeline; ++pipeline) {
      for (int copies = std::min(groups / pipeline, max_copies); copies >= std::max(wanted.min_copies, 1);
           --copies) {
        const StartLayout layout{.ranks = copies * pipeline * tensor, .pipeline = pipeline, .tensor = tensor};
        if (layout.ranks < min_ranks) break;
        if (!can_run(run, layout)) continue;
        if (!best.has_value() || rank(layout) > rank(*best)) best = layout;
        break;
      }
    }
  }
  return best;
}

}  // namespace holdfast::launch
