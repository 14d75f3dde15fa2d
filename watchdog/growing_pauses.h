// GrowingPauses remembers what has failed, by a key of the caller (a host, a GPU), and says when it may be used
// again. Pure: the caller has the clock.
//
//   - Each failure doubles the pause before the next use, up to an hour. After `max_failures` the key is
//     condemned: it is not used any more as long as there is another one.
//   - Where what runs there dies, the first time is an accident; from the second one on the key is a bad one, and not
//     used for an hour, then for twice as long each time, up to a day.
//   - What has worked for `settled_ms` (elastic.settle_after) since it was used again is treated like the others.
//   - Where nothing else will do, a key is used sooner (may_be_needed()), but never more often than
//     `max_failures` times in an hour: each use costs all others a start.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>

namespace holdfast::watchdog {

class GrowingPauses {
 public:
  static constexpr int max_failures = 6;
  static constexpr std::int64_t longest_pause_ms = 3'600'000, hour_ms = 3'600'000, day_ms = 24 * hour_ms;
  static constexpr std::int64_t longest_needed_pause_ms = 30'000, default_settled_ms = 1'800'000;

  // The first failure causes a pause of twice `first_pause_ms`.
  explicit GrowingPauses(std::int64_t first_pause_ms, std::int64_t settled_ms = default_settled_ms)
      : first_pause_ms_(first_pause_ms), settled_ms_(settled_ms) {}

  // Records that the key is used again. What it had before that does not count as a failure of its use.
  void returned(const std::string& key, std::int64_t now_ns);
  bool has_returned(const std::string& key) const;
  // Records that the key has failed; the use since returned() ends with it. Returns the number of failures in
  // a row, this one included. `behind`: how many others failed for the same reason and are used again first,
  // so that they do not fail together again.
  int failed(const std::string& key, std::int64_t now_ns, int behind = 0);
  // Records that what ran there died, and nobody else is the cause. Returns whether this counts as a failure: the first
  // time it does only if the key had been used again.
  bool died(const std::string& key, std::int64_t now_ns);
  // Records that the use ended without a failure.
  void left(const std::string& key);

  // Return whether the key may be used, and whether it may be where there is no other.
  bool may_use(const std::string& key, std::int64_t now_ns) const;
  bool may_be_needed(const std::string& key, std::int64_t now_ns) const;
  bool is_condemned(const std::string& key) const;
  int failures(const std::string& key) const;
  int deaths(const std::string& key) const;
  // Returns the end of the pause; 0: there is none.
  std::int64_t until_ns(const std::string& key) const;

 private:
  static constexpr std::int64_t ms = 1'000'000;
  struct Entry {
    int failures = 0, deaths = 0;
    std::int64_t until_ns = 0, failed_ns = 0, died_ns = 0;
    std::optional<std::int64_t> returned_ns = {};
    std::deque<std::int64_t> newest_ns = {};  // times of the newest failures, at most max_failures
  };
  const Entry* find(const std::string& key) const;

  std::int64_t first_pause_ms_, settled_ms_;
  std::map<std::string, Entry> entries_;
};

}  // namespace holdfast::watchdog
