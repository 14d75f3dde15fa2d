// HealthJudge: goes through readings of a host in the order of their time and says which rules find something. Pure: the same
// readings have the same findings, live and from a recording.
//
// A rule that has found something in a part of the host finds it once per episode, which ends when the rule has had nothing
// to find for its window, and for three minutes. An Xid has an episode for each GPU and number; the fifth of one day on one
// GPU is one that a reset does not mend, and asks for the host to be left out. Xids 13 and 31 are mistakes of programs, unless
// they come again on one GPU while the others have none.
//
// Memory: the readings of a counter within its window, thinned to a few hundred.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/health/health_rules.h"
#include "runtime/health/reading.h"

namespace holdfast::health {

struct HealthFinding {
  std::string rule = {};
  HealthAction action = HealthAction::ignore;
  std::string part = {};  // of the host; empty: all of it
  std::int64_t time_ms = 0;
  double value = 0;           // what the rule compares with its threshold; the number of an Xid
  std::string sentence = {};  // "GPU 0000:18:00 is hot: 84 C; ..."
};

class HealthJudge {
 public:
  // `rules` outlives this object.
  explicit HealthJudge(std::span<const HealthRule> rules = health_rules()) : rules_(rules) {}
  // Takes the next reading, which is not older than the one before; returns what begins with it.
  std::vector<HealthFinding> take(const HealthReading& reading);

 private:
  struct Point {
    std::int64_t time_ms = 0;
    double value = 0;
  };
  // Holds what a rule knows of a part.
  struct Track {
    std::deque<Point> points = {};              // of a counter
    std::optional<std::int64_t> since_ms = {};  // of a level that lasts; of a link that is down
    std::deque<std::int64_t> times = {};        // of readings, lines or flaps that count
    std::vector<double> first = {};             // readings that tell what is usual
    double usual = 0;                           // their median
    std::int64_t silent_ms = 0;
  };
  struct Episode {
    bool lasts = false;
    std::int64_t last_ms = 0;                 // when the rule last found it
    std::deque<std::int64_t> begins_ms = {};  // of episodes of the last day
  };
  // A rule, a part of the host, and the number of an Xid.
  using Key = std::tuple<std::size_t, std::string, int>;

  std::optional<double> measure(const HealthRule& rule, Track& track, const HealthReading& reading);
  static void keep(std::deque<Point>& points, std::int64_t kept_ms, const HealthReading& reading);
  static Point at(const std::deque<Point>& points, std::int64_t time_ms);
  static std::optional<double> steady_change(Track& track, std::int64_t window_ms,
                                             const HealthReading& reading);
  std::optional<double> growth(Track& track, std::int64_t kept_ms, std::int64_t window_ms,
                               const HealthReading& reading, double* before);
  void find_silence(std::vector<HealthFinding>& findings, std::int64_t time_ms);
  void judge_xid(std::size_t rule, const HealthReading& reading, std::vector<HealthFinding>& findings);
  // Begins an episode unless one lasts; returns how many began within a day, this one included, or 0.
  std::size_t begin_episode(const Key& key, std::int64_t time_ms, std::int64_t gap_ms);
  bool others_have(int code, const std::string& gpu) const;

  std::span<const HealthRule> rules_;
  std::map<std::pair<std::size_t, std::string>, Track> tracks_;  // by rule and part
  std::map<Key, Episode> episodes_;
  std::int64_t now_ms_ = 0;
};

// Returns the findings of all readings.
std::vector<HealthFinding> judge(const std::vector<HealthReading>& readings);

}  // namespace holdfast::health
