// ScaleUp decides when a run on several hosts that has fewer ranks than it could have is worth another start.
// Pure; the launcher watches the run and the hosts, and asks the run to end.
//
//   - It waits until `elastic.grow_after` has passed since ranks were lost or the start began. While no
//     more hosts answer, the time between two looks doubles up to a minute.
//   - A host that loses ranks again soon after a start gave them back, or in that start, is left out for an hour and more
//     (watchdog/growing_pauses.h): each such start costs all other hosts some seconds. What several hosts lose at once is
//     the fault of none of them, and causes a short pause.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "watchdog/growing_pauses.h"

namespace holdfast::launch {

class ScaleUp {
 public:
  using Ranks = std::map<std::string, int>;  // by host
  static constexpr std::int64_t longest_look_pause_ms = 60'000;

  explicit ScaleUp(std::int64_t grow_after_ms, std::int64_t settled_ms = GrowingPauses::default_settled_ms)
      : grow_after_ms_(grow_after_ms), pauses_(grow_after_ms, settled_ms) {}

  // Records that a start begins.
  void begins() { lost_.clear(); }
  // Records that a start trains with these ranks, which may be fewer than the ones that it was `given`. Returns the
  // hosts that have failed with it. Ranks of an `unfit` host have left it and said why.
  std::vector<std::string> began(std::int64_t now_ns, const Ranks& ranks, const Ranks& given = {},
                                 const std::set<std::string>& unfit = {});
  // Records the ranks that the start has now. Returns the hosts that have failed with it, each once in a start, without
  // those that are `excused`: others are the cause.
  std::vector<std::string> saw(std::int64_t now_ns, const Ranks& ranks,
                               const std::set<std::string>& excused = {},
                               const std::set<std::string>& unfit = {});
  // Records that the hosts lost ranks in this start, or that it ended for want of them; once in a start. Returns those for
  // which this counts as a failure. `is_fault`: if there is one host alone, it is to blame.
  std::vector<std::string> died(std::int64_t now_ns, const std::set<std::string>& hosts,
                                bool is_fault = true);

  int ranks() const;  // ranks of the start; 0: it does not train yet
  // Returns whether ranks of the start are on this host; true as well if this is not known, because the start
  // has not reported where its ranks are, or some of its hosts have none of `names`.
  bool may_have_ranks(const std::string& host, const std::vector<std::string>& names) const;
  bool is_due(std::int64_t now_ns) const;
  // Records that no more ranks were available.
  void postpone(std::int64_t now_ns);
  // Returns whether another start is worth it for this host.
  bool is_worth_a_start(const std::string& host, std::int64_t now_ns) const;
  GrowingPauses& pauses() { return pauses_; }
  const GrowingPauses& pauses() const { return pauses_; }

 private:
  std::vector<std::string> lost_by(std::int64_t now_ns, const std::set<std::string>& dead,
                                   const std::set<std::string>& left);

  std::int64_t grow_after_ms_;
  Ranks ranks_;
  std::set<std::string> losers_;  // hosts that have lost ranks while a start trained
  std::set<std::string> lost_;    // hosts whose loss in this start is recorded
  GrowingPauses pauses_;
  std::int64_t disturbed_ns_ = 0, look_ns_ = 0;
  std::int64_t look_pause_ms_ = 0;
  bool begun_ = false;
};

}  // namespace holdfast::launch
