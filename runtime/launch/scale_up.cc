#include "runtime/launch/scale_up.h"

#include <algorithm>
#include <utility>

namespace holdfast::inline launch {
namespace {

constexpr std::int64_t ms = 1'000'000;

int count_of(const std::map<std::string, int>& ranks, const std::string& host) {
  const auto found = ranks.find(host);
  return found == ranks.end() ? 0 : found->second;
}

}  // namespace

void ScaleUp::began(std::int64_t now_ns, const std::map<std::string, int>& ranks) {
  for (const auto& [host, count] : ranks) {
    if (begun_ && count > count_of(ranks_, host)) hosts_[host].returned_ns = now_ns;
  }
  begun_ = true;
  ranks_ = ranks;
  disturbed_ns_ = now_ns;
  look_pause_ms_ = grow_after_ms_;
  look_ns_ = now_ns + look_pause_ms_ * ms;
}

std::vector<std::string> ScaleUp::saw(std::int64_t now_ns, const std::map<std::string, int>& ranks) {
  std::vector<std::string> left_out;
  if (ranks == ranks_) return left_out;
  for (const auto& [name, count] : ranks_) {
    if (count_of(ranks, name) >= count) continue;
    Host& host = hosts_[name];
    const std::optional<std::int64_t> returned_ns = std::exchange(host.returned_ns, std::nullopt);
    if (!returned_ns.has_value()) continue;
    host.failures = now_ns - *returned_ns > settled_ms * ms ? 1 : host.failures + 1;
    if (host.failures == max_failures) left_out.push_back(name);
  }
  ranks_ = ranks;
  disturbed_ns_ = now_ns;
  look_pause_ms_ = grow_after_ms_;
  look_ns_ = now_ns + look_pause_ms_ * ms;
  return left_out;
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
  if (!may_use(host)) return false;
  const auto found = hosts_.find(host);
  if (found == hosts_.end()) return true;
  const std::int64_t pause_ms =
      std::max(grow_after_ms_, std::min(grow_after_ms_ << found->second.failures, longest_host_pause_ms));
  return now_ns - disturbed_ns_ >= pause_ms * ms;
}

bool ScaleUp::may_use(const std::string& host) const {
  const auto found = hosts_.find(host);
  return found == hosts_.end() || found->second.failures < max_failures;
}

}  // namespace holdfast::inline launch
