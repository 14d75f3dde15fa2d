#include "watchdog/growing_pauses.h"

#include <algorithm>
#include <utility>

namespace holdfast::inline watchdog {
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

int GrowingPauses::failed(const std::string& key, std::int64_t now_ns) {
  Entry& entry = entries_[key];
  const std::optional<std::int64_t> returned_ns = std::exchange(entry.returned_ns, std::nullopt);
  const bool had_settled = returned_ns.has_value() && now_ns - *returned_ns > settled_ms_ * ms;
  entry.failures = had_settled ? 1 : entry.failures + 1;
  const int doublings = std::min(entry.failures, 30);
  const std::int64_t longest_ms = std::max(longest_pause_ms, first_pause_ms_);
  const std::int64_t pause_ms = std::min(first_pause_ms_ << doublings, longest_ms);
  entry.until_ns = now_ns + pause_ms * ms;
  return entry.failures;
}

bool GrowingPauses::may_use(const std::string& key, std::int64_t now_ns) const {
  const Entry* entry = find(key);
  return entry == nullptr || (entry->failures < max_failures && now_ns >= entry->until_ns);
}

bool GrowingPauses::is_condemned(const std::string& key) const {
  return failures(key) >= max_failures;
}

int GrowingPauses::failures(const std::string& key) const {
  const Entry* entry = find(key);
  return entry == nullptr ? 0 : entry->failures;
}

std::int64_t GrowingPauses::until_ns(const std::string& key) const {
  const Entry* entry = find(key);
  return entry == nullptr ? 0 : entry->until_ns;
}

}  // namespace holdfast::inline watchdog
