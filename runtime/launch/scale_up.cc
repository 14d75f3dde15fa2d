#include "runtime/launch/scale_up.h"

#include <algorithm>
#include <utility>

namespace holdfast::launch {
namespace {

constexpr std::int64_t ms = 1'000'000;

int count_of(const std::map<std::string, int>& ranks, const std::string& host) {
  const auto found = ranks.find(host);
  return found == ranks.end() ? 0 : found->second;
}

}  // namespace

std::vector<std::string> ScaleUp::began(std::int64_t now_ns, const Ranks& ranks, const Ranks& given) {
  std::vector<std::string> lost;
  for (const auto& [host, count] : given) {
    const bool was_to_get = begun_ && count > count_of(ranks_, host);
    if (was_to_get && count > count_of(ranks, host)) lost.push_back(host);
  }
  for (const std::string& host : lost) pauses_.failed(host, now_ns);
  for (const auto& [host, count] : ranks) {
    if (begun_ && count > count_of(ranks_, host)) pauses_.returned(host, now_ns);
  }
  begun_ = true;
  ranks_ = ranks;
  disturbed_ns_ = now_ns;
  look_pause_ms_ = grow_after_ms_;
  look_ns_ = now_ns + look_pause_ms_ * ms;
  return lost;
}

std::vector<std::string> ScaleUp::saw(std::int64_t now_ns, const Ranks& ranks,
                                      const std::set<std::string>& excused) {
  std::vector<std::string> lost;
  if (ranks == ranks_) return lost;
  for (const auto& [host, count] : ranks_) {
    if (count_of(ranks, host) >= count) continue;
    losers_.insert(host);
    if (!pauses_.has_returned(host)) continue;
    if (excused.contains(host)) {
      pauses_.left(host);
      continue;
    }
    pauses_.failed(host, now_ns);
    lost.push_back(host);
  }
  ranks_ = ranks;
  disturbed_ns_ = now_ns;
  look_pause_ms_ = grow_after_ms_;
  look_ns_ = now_ns + look_pause_ms_ * ms;
  return lost;
}

int ScaleUp::ranks() const {
  int sum = 0;
  for (const auto& [host, count] : ranks_) sum += count;
  return sum;
}

bool ScaleUp::may_have_ranks(const std::string& host, const std::vector<std::string>& names) const {
  const auto is_unknown = [&](const auto& entry) {
    return std::ranges::find(names, entry.first) == names.end();
  };
  return ranks_.empty() || count_of(ranks_, host) > 0 || std::ranges::any_of(ranks_, is_unknown);
}

bool ScaleUp::is_due(std::int64_t now_ns) const {
  return !ranks_.empty() && now_ns >= look_ns_;
}

void ScaleUp::postpone(std::int64_t now_ns) {
  constexpr std::int64_t min_ms = 1'000;
  look_pause_ms_ = std::max(look_pause_ms_, min_ms);
  look_ns_ = now_ns + look_pause_ms_ * ms;
  look_pause_ms_ = std::max(look_pause_ms_, std::min(2 * look_pause_ms_, longest_look_pause_ms));
}

bool ScaleUp::is_worth_a_start(const std::string& host, std::int64_t now_ns) const {
  const bool is_early = losers_.contains(host) && now_ns - disturbed_ns_ < grow_after_ms_ * ms;
  return !is_early && pauses_.may_use(host, now_ns);
}

}  // namespace holdfast::launch
