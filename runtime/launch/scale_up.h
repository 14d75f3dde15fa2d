// ScaleUp decides when a run on several hosts that has fewer ranks than it could have is worth another start.
// Pure; the launcher watches the run and the hosts, and asks the run to end.
//
//   - Another start is worth it where it computes with more ranks, so that a copy of the model that is missing comes back.
//     Spares alone are worth none while those that wait can take the place of a host (or are all that elastic.spares asks for):
//     they come with the next start anyway, which costs all ranks some seconds or minutes. With fewer, the next loss may cost
//     a copy, which would be missing for the wait, and end in a start, too; so one start brings back all spares that there are.
//   - It waits until `elastic.grow_after` has passed since the start began, or since the first of its losses that spares have
//     not made good; a later one does not begin the wait again, but adds a minute (or `elastic.grow_after`, if that is less),
//     in which more may follow. While no more hosts answer, the time between two looks doubles up to a minute.
//   - A host that loses ranks again soon after a start gave them back, or in that start, is left out for an hour and more
//     (watchdog/growing_pauses.h): each such start costs all other hosts some seconds. What several hosts lose at once is
//     the fault of none of them, and causes a short pause.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "watchdog/growing_pauses.h"

namespace holdfast::launch {

class ScaleUp {
 public:
  using Ranks = std::map<std::string, int>;  // by host
  static constexpr std::int64_t longest_look_pause_ms = 60'000, longest_calm_ms = 60'000;
  // Whole says what a run has that lacks nothing: ranks that compute, and the spares that the loss of a host takes.
  struct Whole {
    int computing = std::numeric_limits<int>::max();  // that number: as many as there is room for
    int kept_spares = 0;
  };

  explicit ScaleUp(std::int64_t grow_after_ms, std::int64_t settled_ms = GrowingPauses::default_settled_ms)
      : grow_after_ms_(grow_after_ms), pauses_(grow_after_ms, settled_ms) {}

  // Records what a whole run has, before a start begins.
  void set_whole(Whole whole) { whole_ = whole; }

  // Records that a start begins.
  void begins() { lost_.clear(); }
  // Records that a start trains with these ranks, which may be fewer than the ones that it was `given`. Returns the
  // hosts that have failed with it. Ranks of an `unfit` host have left it and said why. `spares`: ranks that wait, as the
  // run says; none: those that a whole run does not compute with.
  std::vector<std::string> began(std::int64_t now_ns, const Ranks& ranks, const Ranks& given = {},
                                 const std::set<std::string>& unfit = {}, std::optional<int> spares = {});
  // Records the ranks that the start has now. Returns the hosts that have failed with it, each once in a start, without
  // those that are `excused`: others are the cause.
  std::vector<std::string> saw(std::int64_t now_ns, const Ranks& ranks,
                               const std::set<std::string>& excused = {},
                               const std::set<std::string>& unfit = {}, std::optional<int> spares = {});
  // Records that the hosts lost ranks in this start, or that it ended for want of them; once in a start. Returns those for
  // which this counts as a failure. `is_fault`: if there is one host alone, it is to blame.
  std::vector<std::string> died(std::int64_t now_ns, const std::set<std::string>& hosts,
                                bool is_fault = true);

  int ranks() const;  // ranks of the start; 0: it does not train yet
  // Returns whether ranks of the start are on this host; true as well if this is not known, because the start
  // has not reported where its ranks are, or some of its hosts have none of `names`.
  bool may_have_ranks(const std::string& host, const std::vector<std::string>& names) const;
  // Returns whether the run lacks what a start with `room` ranks would have, and that is worth a start.
  bool is_worth_more(int room) const;
  bool is_due(std::int64_t now_ns) const;
  // Returns when it is due, and the pause after a look that finds nothing.
  std::int64_t due_ns() const { return look_ns_; }
  std::int64_t look_pause_ms() const;
  // Records that no more ranks were available.
  void postpone(std::int64_t now_ns);
  // Returns whether another start is worth it for this host.
  bool is_worth_a_start(const std::string& host, std::int64_t now_ns) const;
  // Returns until when it is not; a condemned host has no such time.
  std::int64_t left_until_ns(const std::string& host) const;
  GrowingPauses& pauses() { return pauses_; }
  const GrowingPauses& pauses() const { return pauses_; }

 private:
  std::vector<std::string> lost_by(std::int64_t now_ns, const std::set<std::string>& dead,
                                   const std::set<std::string>& left);

  int computing() const { return ranks() - spares_; }
  bool lacks() const;  // a copy that it began with, or the spares for the next loss
  void takes(const Ranks& ranks, std::optional<int> spares);

  std::int64_t grow_after_ms_;
  Whole whole_;
  Ranks ranks_;
  int spares_ = 0, begun_computing_ = 0;
  std::map<std::string, std::int64_t>
      lost_ns_;                 // by host that has lost ranks while a start trained: when it did last
  std::set<std::string> lost_;  // hosts whose loss in this start is recorded
  GrowingPauses pauses_;
  std::int64_t begun_ns_ = 0, waits_since_ns_ = 0, look_ns_ = 0;
  std::int64_t look_pause_ms_ = 0;
  bool begun_ = false;
};

}  // namespace holdfast::launch
