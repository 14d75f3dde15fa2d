// ScaleUp decides when a run on several hosts that has fewer ranks than it could have is worth another start.
// Pure; the launcher watches the run and the hosts, and asks the run to end.
//
//   - It waits until `elastic.grow_after` has passed since ranks were lost or the start began. While no
//     more hosts answer, the time between two looks doubles up to a minute.
//   - A host that loses ranks again soon after a start gave them back is used less and less: each time the
//     pause before another start for this host doubles, and after `max_failures` times it is left out.
//     Each such start costs all other hosts some seconds.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace holdfast::inline launch {

class ScaleUp {
 public:
  static constexpr int max_failures = 6;
  static constexpr std::int64_t longest_look_pause_ms = 60'000, longest_host_pause_ms = 3'600'000;
  // A host whose ranks have lived for this long since it got them back is treated like the others again.
  static constexpr std::int64_t settled_ms = 1'800'000;

  explicit ScaleUp(std::int64_t grow_after_ms) : grow_after_ms_(grow_after_ms) {}

  // Records that a start trains, with so many ranks on each host.
  void began(std::int64_t now_ns, const std::map<std::string, int>& ranks);
  // Records the ranks that the start has now. Returns the hosts that are left out from now on.
  std::vector<std::string> saw(std::int64_t now_ns, const std::map<std::string, int>& ranks);

  int ranks() const;  // ranks of the start; 0: it does not train yet
  // Returns whether ranks of the start are on this host; true as well if this is not known, because the start
  // has not reported where its ranks are, or some of its hosts have none of `names`.
  bool may_have_ranks(const std::string& host, const std::vector<std::string>& names) const;
  bool is_due(std::int64_t now_ns) const;
  // Records that no more ranks were available.
  void postpone(std::int64_t now_ns);
  // Return whether another start is worth it for this host, and whether a start may use the host at all.
  bool is_worth_a_start(const std::string& host, std::int64_t now_ns) const;
  bool may_use(const std::string& host) const;

 private:
  struct Host {
    int failures = 0;
    std::optional<std::int64_t> returned_ns = {};  // when it got ranks back
  };
  std::int64_t grow_after_ms_;
  std::map<std::string, int> ranks_;
  std::map<std::string, Host> hosts_;
  std::int64_t disturbed_ns_ = 0, look_ns_ = 0;
  std::int64_t look_pause_ms_ = 0;
  bool begun_ = false;
};

}  // namespace holdfast::inline launch
