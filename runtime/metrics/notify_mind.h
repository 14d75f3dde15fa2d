// NotifyMind: which events of a run notify.command tells people of, and how often. Pure; notifier.h runs the command.
//
// The first event of a slow rank or link is told, and the last one. What is more than `at_most` in an hour is left out and
// counted; the next notice says how much that was. A heartbeat is due only where the run has made a step since the last
// one, so that a service which waits for it learns of a run that hangs, too. Neither the end of the run nor a heartbeat is
// ever left out.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "runtime/core/json.h"
#include "runtime/run/news.h"

namespace holdfast::metrics {

// Notification is what the command is told.
struct Notification {
  News news = {};
  std::uint64_t left_out = 0;  // notices before it
};

inline constexpr const char* heartbeat_kind = "heartbeat";

class NotifyMind {
 public:
  struct Settings {
    std::int64_t at_most = 30;      // in an hour
    std::int64_t heartbeat_ms = 0;  // 0: none
    // Says whether the end of a start is the end of the run; where a launcher decides, it says when that is: tell_end().
    bool ends_with_start = true;
  };
  // Goes on from what the teller before has left out, and from the id that it knew.
  NotifyMind(Settings settings, std::uint64_t left_out, std::string run = {})
      : settings_(settings), left_out_(left_out), run_(std::move(run)) {}

  // Takes the next event of the log. Times are of a monotonic clock.
  std::optional<Notification> take(const Json& event, std::int64_t now_ns);
  // Returns a heartbeat if one is due.
  std::optional<Notification> beat(std::int64_t now_ns, std::int64_t now_us);
  Notification tell_end(News news);
  // Counts a notice that could not be told any more as left out.
  void leave_out(const Notification& notice);
  std::uint64_t left_out() const { return left_out_; }
  const std::string& run() const { return run_; }  // id; empty: not known yet

 private:
  bool may_tell(std::int64_t now_ns);

  Settings settings_;
  std::uint64_t left_out_;
  std::string run_;
  double tokens_ = -1.0;  // notices that may be told now; below 0: as many as there can be
  std::int64_t filled_ns_ = 0;
  std::set<std::string> episodes_;  // that have been told and are not over
  std::uint64_t newest_step_ = 0;
  bool made_steps_ = false;  // since the last heartbeat
  bool has_ended_ = false;   // the run, so that no heartbeat follows
  std::optional<std::int64_t> beat_ns_ = {};
};

// Returns the environment of the command. Every variable is there for each notice, empty where the notice has none.
std::map<std::string, std::string> variables_of(const Notification& notice, const std::string& run,
                                                const std::string& directory);

}  // namespace holdfast::metrics
