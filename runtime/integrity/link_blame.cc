#include "runtime/integrity/link_blame.h"

#include <algorithm>
#include <map>
#include <utility>

namespace holdfast::integrity {

std::vector<Link> changed_links(std::span<const RankEnds> ranks) {
  std::map<Link, const LinkEnd*> sources;
  for (const RankEnds& each : ranks)
    for (const LinkEnd& end : each.ends) sources[{.source = each.rank, .target = end.peer}] = &end;
  std::vector<Link> changed;
  for (const RankEnds& each : ranks) {
    for (const LinkEnd& end : each.ends) {
      const Link link{.source = end.peer, .target = each.rank};
      const auto found = sources.find(link);
      if (found == sources.end()) continue;
      const LinkEnd& source = *found->second;
      if (source.sent_sum != end.received_sum || source.sent_weighted != end.received_weighted)
        changed.push_back(link);
    }
  }
  std::ranges::sort(changed);
  return changed;
}

std::optional<int> only_common_end(std::span<const Link> links) {
  if (links.empty()) return {};
  const auto is_common = [&](int rank) {
    return std::ranges::all_of(
        links, [rank](const Link& link) { return link.source == rank || link.target == rank; });
  };
  const bool source = is_common(links.front().source), target = is_common(links.front().target);
  if (source == target) return {};
  return source ? links.front().source : links.front().target;
}

}  // namespace holdfast::integrity
