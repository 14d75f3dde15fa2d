#include "runtime/elastic/growth_places.h"

#include <algorithm>

#include "watchdog/growing_pauses.h"

namespace holdfast::elastic {
namespace {

// Replays what has become of the joiners.
GrowingPauses pauses_of(std::span<const Joiner> joiners, const ElasticConfig& config) {
  GrowingPauses pauses(config.grow_after_ms, config.settle_after_ms);
  for (const Joiner& joiner : joiners) {
    pauses.returned(joiner.place, joiner.came_ns);
    if (joiner.lost_ns != 0) pauses.failed(joiner.place, joiner.lost_ns);
  }
  return pauses;
}

}  // namespace

void merge_joiners(std::vector<Joiner>& all, std::span<const Joiner> others) {
  constexpr std::size_t joiners_max = 256;
  for (const Joiner& other : others) {
    const auto found = std::ranges::lower_bound(all, other.launched_rank, {}, &Joiner::launched_rank);
    if (found == all.end() || found->launched_rank != other.launched_rank) {
      all.insert(found, other);
    } else if (found->lost_ns == 0) {
      found->lost_ns = other.lost_ns;
    }
  }
  while (all.size() > joiners_max) {
    const auto oldest = std::ranges::find_if(all, [](const Joiner& joiner) { return joiner.lost_ns != 0; });
    if (oldest == all.end()) break;
    all.erase(oldest);
  }
}

GrowthPlan plan_growth_places(std::span<const std::string> places, std::span<const int> taken,
                              std::span<const Joiner> joiners, int missing, const ElasticConfig& config) {
  const GrowingPauses pauses = pauses_of(joiners, config);
  const auto name_of = [&](int number) -> const std::string& {
    return places[static_cast<std::size_t>(number)];
  };
  const auto is_taken = [&](int number) {
    return std::ranges::find(taken, number) != taken.end() ||
           std::ranges::any_of(
               joiners, [&](const Joiner& joiner) { return joiner.lost_ns == 0 && joiner.number == number; });
  };
  GrowthPlan plan;
  for (int number = 0; number < static_cast<int>(places.size()); ++number) {
    if (is_taken(number)) continue;
    if (!pauses.is_condemned(name_of(number))) {
      plan.numbers.push_back(number);
    } else if (std::ranges::find(plan.left_alone, name_of(number)) == plan.left_alone.end()) {
      plan.left_alone.push_back(name_of(number));
    }
  }
  const auto failures_of = [&](int number) { return pauses.failures(name_of(number)); };
  std::ranges::stable_sort(plan.numbers, {}, failures_of);
  // Places that have failed more often do not delay the others: they come with a growth of their own.
  for (const int number : plan.numbers) {
    if (plan.wanted == missing || failures_of(number) != failures_of(plan.numbers.front())) break;
    plan.not_before_ns = std::max(plan.not_before_ns, pauses.until_ns(name_of(number)));
    ++plan.wanted;
  }
  return plan;
}

}  // namespace holdfast::elastic
