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
                                        const std::set<std::string>& unfit, std::optional<int> spares) {
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
  takes(ranks, spares);
  begun_computing_ = computing();
  begun_ns_ = waits_since_ns_ = now_ns;
  look_pause_ms_ = grow_after_ms_;
  look_ns_ = now_ns + look_pause_ms_ * ms;
  return lost;
}

std::vector<std::string> ScaleUp::saw(std::int64_t now_ns, const Ranks& ranks,
                                      const std::set<std::string>& excused,
                                      const std::set<std::string>& unfit, std::optional<int> spares) {
  if (ranks == ranks_) return {};
  std::set<std::string> dead, left;
  for (const auto& [host, count] : ranks_) {
    if (count_of(ranks, host) >= count) continue;
    lost_ns_[host] = now_ns;
    if (excused.contains(host)) {
      pauses_.left(host);
    } else {
      (unfit.contains(host) ? left : dead).insert(host);
    }
  }
  std::vector<std::string> lost = lost_by(now_ns, dead, left);
  const bool lacked = lacks();
  takes(ranks, spares);
  if (!lacked || !lacks()) waits_since_ns_ = now_ns;
  look_pause_ms_ = grow_after_ms_;
  look_ns_ = std::max(waits_since_ns_ + grow_after_ms_ * ms,
                      now_ns + std::min(grow_after_ms_, longest_calm_ms) * ms);
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

void ScaleUp::takes(const Ranks& ranks, std::optional<int> spares) {
  ranks_ = ranks;
  spares_ = spares.value_or(std::max(this->ranks() - whole_.computing, 0));
}

bool ScaleUp::lacks() const {
  return computing() < begun_computing_ || spares_ < whole_.kept_spares;
}

bool ScaleUp::is_worth_more(int room) const {
  return room > ranks() && (std::min(room, whole_.computing) > computing() || spares_ < whole_.kept_spares);
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

std::int64_t ScaleUp::look_pause_ms() const {
  constexpr std::int64_t min_ms = 1'000;
  return std::max(look_pause_ms_, min_ms);
}

void ScaleUp::postpone(std::int64_t now_ns) {
  look_pause_ms_ = look_pause_ms();
  look_ns_ = now_ns + look_pause_ms_ * ms;
  look_pause_ms_ = std::max(look_pause_ms_, std::min(2 * look_pause_ms_, longest_look_pause_ms));
}

bool ScaleUp::is_worth_a_start(const std::string& host, std::int64_t now_ns) const {
  return now_ns >= left_until_ns(host) && pauses_.may_use(host, now_ns);
}

std::int64_t ScaleUp::left_until_ns(const std::string& host) const {
  const auto lost = lost_ns_.find(host);
  const std::int64_t pause_ns = pauses_.until_ns(host);
  if (lost == lost_ns_.end()) return pause_ns;
  return std::max(pause_ns, std::max(lost->second, begun_ns_) + grow_after_ms_ * ms);
}

}  // namespace holdfast::launch
