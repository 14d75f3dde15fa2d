#include "watchdog/growing_pauses.h"

#include <algorithm>
#include <utility>

namespace holdfast::watchdog {
const GrowingPauses::Entry* GrowingPauses::find(const std::string& key) const {
  const auto found = entries_.find(key);
  return found == entries_.end() ? nullptr : &found->second;
}

void GrowingPauses::returned(const std::string& key, std::int64_t now_ns) {
  entries_[key].returned_ns = now_ns;
}

bool GrowingPauses::has_returned(const std::string& key) const {
  const Entry* entry = find(key);
  return entry != nullptr && entry->returned_ns.has_value();
}

int GrowingPauses::failed(const std::string& key, std::int64_t now_ns, int behind) {
  Entry& entry = entries_[key];
  const std::optional<std::int64_t> returned_ns = std::exchange(entry.returned_ns, std::nullopt);
  const bool had_settled = returned_ns.has_value() && now_ns - *returned_ns > settled_ms_ * ms;
  entry.failures = had_settled ? 1 : entry.failures + 1;
  const int doublings = std::min(entry.failures, 30);
  const std::int64_t longest_ms = std::max(longest_pause_ms, first_pause_ms_);
  const std::int64_t pause_ms = std::min(first_pause_ms_ << doublings, longest_ms);
  entry.failed_ns = now_ns;
  entry.until_ns = std::max(entry.until_ns, now_ns + (pause_ms + behind * first_pause_ms_) * ms);
  entry.newest_ns.push_back(now_ns);
  if (entry.newest_ns.size() > static_cast<std::size_t>(max_failures)) entry.newest_ns.pop_front();
  return entry.failures;
}

bool GrowingPauses::died(const std::string& key, std::int64_t now_ns) {
  Entry& entry = entries_[key];
  const std::int64_t well_since_ns = entry.returned_ns.value_or(std::max(entry.died_ns, entry.until_ns));
  if (now_ns - well_since_ns > settled_ms_ * ms) entry.deaths = 0;
  entry.died_ns = now_ns;
  ++entry.deaths;
  if (entry.deaths == 1 && !entry.returned_ns.has_value()) return false;
  failed(key, now_ns);
  if (entry.deaths > 1) {
    const std::int64_t pause_ms = std::min(hour_ms << std::min(entry.deaths - 2, 5), day_ms);
    entry.until_ns = std::max(entry.until_ns, now_ns + pause_ms * ms);
  }
  return true;
}

void GrowingPauses::left(const std::string& key) {
  if (const auto found = entries_.find(key); found != entries_.end()) found->second.returned_ns.reset();
}

bool GrowingPauses::may_use(const std::string& key, std::int64_t now_ns) const {
  const Entry* entry = find(key);
  return entry == nullptr || (entry->failures < max_failures && now_ns >= entry->until_ns);
}

bool GrowingPauses::may_be_needed(const std::string& key, std::int64_t now_ns) const {
  const Entry* entry = find(key);
  if (entry == nullptr || entry->newest_ns.empty()) return true;
  const bool is_spent = entry->newest_ns.size() == static_cast<std::size_t>(max_failures) &&
                        now_ns - entry->newest_ns.front() < hour_ms * ms;
  const std::int64_t soon_ns = entry->failed_ns + longest_needed_pause_ms * ms;
  return !is_spent && now_ns >= std::min(entry->until_ns, soon_ns);
}

bool GrowingPauses::is_condemned(const std::string& key) const {
  return failures(key) >= max_failures;
}

int GrowingPauses::failures(const std::string& key) const {
  const Entry* entry = find(key);
  return entry == nullptr ? 0 : entry->failures;
}

int GrowingPauses::deaths(const std::string& key) const {
  const Entry* entry = find(key);
  return entry == nullptr ? 0 : entry->deaths;
}

std::int64_t GrowingPauses::until_ns(const std::string& key) const {
  const Entry* entry = find(key);
  return entry == nullptr ? 0 : entry->until_ns;
}

}  // namespace holdfast::watchdog
