#include "runtime/launch/scale_up.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace holdfast::launch {
namespace {

constexpr std::int64_t ms = 1'000'000;

int count_of(const std::map<std::string, int>& ranks, const std::string& host) {
  const auto found = ranks.find(host);
  return found == ranks.end() ? 0 : found->second;
}

}  // namespace

std::vector<std::string> ScaleUp::began(std::int64_t now_ns, const Ranks& ranks, const Ranks& given,
                                        const std::set<std::string>& unfit) {
  std::set<std::string> dead, left;
  for (const auto& [host, count] : given) {
    if (count <= count_of(ranks, host)) continue;
    if (begun_ && count > count_of(ranks_, host)) pauses_.returned(host, now_ns);
    (unfit.contains(host) ? left : dead).insert(host);
  }
  std::vector<std::string> lost = lost_by(now_ns, dead, left);
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
                                      const std::set<std::string>& excused,
                                      const std::set<std::string>& unfit) {
  if (ranks == ranks_) return {};
  std::set<std::string> dead, left;
  for (const auto& [host, count] : ranks_) {
    if (count_of(ranks, host) >= count) continue;
    losers_.insert(host);
    if (excused.contains(host)) {
      pauses_.left(host);
    } else {
      (unfit.contains(host) ? left : dead).insert(host);
    }
  }
  std::vector<std::string> lost = lost_by(now_ns, dead, left);
  ranks_ = ranks;
  disturbed_ns_ = now_ns;
  look_pause_ms_ = grow_after_ms_;
  look_ns_ = now_ns + look_pause_ms_ * ms;
  return lost;
}

std::vector<std::string> ScaleUp::lost_by(std::int64_t now_ns, const std::set<std::string>& dead,
                                          const std::set<std::string>& left) {
  std::vector<std::string> lost = died(now_ns, dead);
  std::ranges::copy(died(now_ns, left, /*is_fault=*/false), std::back_inserter(lost));
  return lost;
}

std::vector<std::string> ScaleUp::died(std::int64_t now_ns, const std::set<std::string>& hosts,
                                       bool is_fault) {
  std::vector<std::string> lost, failed;
  for (const std::string& host : hosts) {
    if (lost_.insert(host).second) lost.push_back(host);
  }
  for (const std::string& host : lost) {
    bool counts = pauses_.has_returned(host);
    if (is_fault && lost.size() == 1) {
      counts = pauses_.died(host, now_ns);
    } else if (counts) {
      pauses_.failed(host, now_ns);
    }
    if (counts) failed.push_back(host);
  }
  return failed;
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
