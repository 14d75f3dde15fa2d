#include "runtime/health/health_judge.h"

#include <fmt/core.h>

#include <algorithm>

#include "runtime/core/text.h"

namespace holdfast::health {
namespace {

constexpr std::int64_t second_ms = 1000, hour_ms = 3'600'000, day_ms = 24 * hour_ms;
constexpr std::int64_t shortest_gap_ms = 180 * second_ms;  // between two episodes (NVSentinel: bursts)
constexpr std::int64_t shortest_down_ms = 25 * second_ms;  // of a link that flaps (gpud)
constexpr std::int64_t longest_look_ms =
    30 * second_ms;  // between two looks that count as one time of silence
constexpr std::size_t points_max = 360, first_readings = 30, episodes_of_a_sick_gpu = 5, least_growth = 16;

// Xids of one fault that come again for hours are one episode (NVSentinel).
std::int64_t gap_of_xid_ms(int code) {
  constexpr std::array sticky = {74, 79, 95, 109, 119};
  return std::ranges::find(sticky, code) != sticky.end() ? 3 * hour_ms : shortest_gap_ms;
}

bool is_of_programs(int code) {
  return code == 13 || code == 31;
}

void drop_before(std::deque<std::int64_t>& times, std::int64_t begin_ms) {
  while (!times.empty() && times.front() <= begin_ms) times.pop_front();
}

// Returns whether the rule looks at the source of the reading. Rules for NVML also judge what DCGM says, but not its silence: an
// exporter that is not there for a while says nothing of its GPUs.
bool is_about(const HealthRule& rule, const HealthReading& reading) {
  return rule.source == reading.source ||
         (rule.source == "nvml" && reading.source == "dcgm" && rule.test != HealthTest::silent);
}

std::string place_of(const std::string& part) {
  return part.empty() ? std::string() : fmt::format("{}: ", part);
}

std::string sentence_of(const HealthRule& rule, const std::string& part, double value) {
  std::string measured;
  switch (rule.test) {
    case HealthTest::line:
    case HealthTest::often:
      measured = fmt::format("{} times in {} s", value, rule.window_s);
      break;
    case HealthTest::silent:
      measured = fmt::format("for {} s", value);
      break;
    case HealthTest::grows:
      measured = fmt::format("by {:.0f} {} in {} s", value, rule.unit, rule.window_s);
      break;
    case HealthTest::runs_out:
      measured = fmt::format("in {:.0f} s, as fast as it goes", value);
      break;
    case HealthTest::flaps:
      measured = fmt::format("{} times", value);
      break;
    case HealthTest::accelerates:
      measured = fmt::format("by {} in {} s", value, rule.window_s);
      break;
    case HealthTest::rises:
      measured = fmt::format("by {} {} in {} s", value, rule.unit, rule.window_s);
      break;
    default:
      measured = fmt::format("{:.6g}{}{}", value, rule.unit.empty() ? "" : " ", rule.unit);
  }
  if (rule.test == HealthTest::line && rule.window_s == 0) measured.clear();
  return fmt::format("{}{}{}{}", place_of(part), rule.says, measured.empty() ? "" : ": ", measured);
}

}  // namespace

// Keeps the reading, and the others of `kept_ms` with one from before.
void HealthJudge::keep(std::deque<Point>& points, std::int64_t kept_ms, const HealthReading& reading) {
  // Keeps the newest of readings that are close to each other, and the very first of all.
  const std::int64_t apart_ms = kept_ms / static_cast<std::int64_t>(points_max);
  if (points.size() > 1 && reading.time_ms - points[points.size() - 2].time_ms < apart_ms) points.pop_back();
  points.push_back({reading.time_ms, *reading.value});
  while (points.size() > 1 && points[1].time_ms <= reading.time_ms - kept_ms) points.pop_front();
}

// Returns the last reading until then, or the first.
HealthJudge::Point HealthJudge::at(const std::deque<Point>& points, std::int64_t time_ms) {
  const auto after = std::ranges::upper_bound(points, time_ms, {}, &Point::time_ms);
  return after == points.begin() ? points.front() : *std::prev(after);
}

// Returns by how much the reading has changed in the window, where it did so in each quarter of it: what is taken within minutes is no
// leak.
std::optional<double> HealthJudge::steady_change(Track& track, std::int64_t window_ms,
                                                 const HealthReading& reading) {
  keep(track.points, window_ms, reading);
  const std::int64_t begin_ms = reading.time_ms - window_ms;
  if (track.points.front().time_ms > begin_ms) return std::nullopt;
  const auto after = [&](int quarters) {
    return at(track.points, begin_ms + window_ms * quarters / 4).value;
  };
  const double change = after(4) - after(0);
  for (int quarter = 0; quarter < 4; ++quarter) {
    if ((after(quarter + 1) - after(quarter)) * change < change * change / 8) return std::nullopt;
  }
  return change;
}

// Returns how much a counter has grown within the window; `before`, where asked for, how much in as long a time before, and
// then there is no growth before both times have passed.
std::optional<double> HealthJudge::growth(Track& track, std::int64_t kept_ms, std::int64_t window_ms,
                                          const HealthReading& reading, double* before) {
  std::deque<Point>& points = track.points;
  const double value = *reading.value;
  if (!points.empty() && value < points.back().value) points.clear();  // it began anew
  keep(points, kept_ms, reading);
  const Point begin = at(points, reading.time_ms - window_ms);
  if (before != nullptr) {
    if (points.front().time_ms > reading.time_ms - 2 * window_ms) return std::nullopt;
    *before = begin.value - at(points, reading.time_ms - 2 * window_ms).value;
  }
  return value - begin.value;
}

// Returns what the rule finds in the reading, as a number for the sentence.
std::optional<double> HealthJudge::measure(const HealthRule& rule, Track& track,
                                           const HealthReading& reading) {
  const std::int64_t window_ms = rule.window_s * second_ms, begin_ms = reading.time_ms - window_ms;
  if (rule.test == HealthTest::line) {
    const std::vector<std::string> texts = split_list(rule.reading, '|');
    if (std::ranges::none_of(
            texts, [&](const std::string& text) { return reading.text->find(text) != std::string::npos; }))
      return std::nullopt;
    track.times.push_back(reading.time_ms);
    if (rule.window_s > 0) drop_before(track.times, begin_ms);
    const std::size_t count = rule.window_s > 0 ? track.times.size() : 1;
    if (rule.window_s == 0) track.times.clear();
    return static_cast<double>(count) >= rule.threshold ? std::optional(static_cast<double>(count))
                                                        : std::nullopt;
  }
  const double value = *reading.value;
  const auto lasting = [&](bool holds) -> std::optional<double> {
    if (!holds) {
      track.since_ms.reset();
      return std::nullopt;
    }
    if (!track.since_ms.has_value()) track.since_ms = reading.time_ms;
    return *track.since_ms <= begin_ms ? std::optional(value) : std::nullopt;
  };
  switch (rule.test) {
    case HealthTest::at_least:
      return lasting(value >= rule.threshold);
    case HealthTest::at_most:
      return lasting(value <= rule.threshold);
    case HealthTest::is:
      return lasting(std::abs(value - rule.threshold) < 0.5);
    case HealthTest::falls:
      if (track.first.size() < first_readings) {
        track.first.push_back(value);
        std::vector<double> sorted = track.first;
        std::ranges::sort(sorted);
        track.usual = sorted[sorted.size() / 2];
        return std::nullopt;
      }
      return lasting(value < rule.threshold * track.usual);
    case HealthTest::rises: {
      const std::optional<double> grown = growth(track, window_ms, window_ms, reading, nullptr);
      return *grown >= rule.threshold ? grown : std::nullopt;
    }
    case HealthTest::accelerates: {
      double before = 0;
      const std::optional<double> grown = growth(track, 2 * window_ms, window_ms, reading, &before);
      const bool is_more = grown.has_value() && *grown >= least_growth && *grown >= rule.threshold * before;
      return is_more ? grown : std::nullopt;
    }
    case HealthTest::often:
      if (value > 0) track.times.push_back(reading.time_ms);
      drop_before(track.times, begin_ms);
      return static_cast<double>(track.times.size()) >= rule.threshold
                 ? std::optional(static_cast<double>(track.times.size()))
                 : std::nullopt;
    case HealthTest::flaps: {
      const bool is_up = value > 0;
      if (!is_up && !track.since_ms.has_value() && !track.first.empty()) track.since_ms = reading.time_ms;
      if (is_up) {
        if (track.since_ms.has_value() && reading.time_ms - *track.since_ms >= shortest_down_ms)
          track.times.push_back(reading.time_ms);
        track.since_ms.reset();
        track.first = {1};  // a link that was never up does not go down
      }
      drop_before(track.times, begin_ms);
      return static_cast<double>(track.times.size()) >= rule.threshold
                 ? std::optional(static_cast<double>(track.times.size()))
                 : std::nullopt;
    }
    case HealthTest::runs_out: {
      const std::optional<double> change = steady_change(track, window_ms, reading);
      if (!change.has_value() || *change >= 0) return std::nullopt;
      const double left_s = value / -*change * static_cast<double>(rule.window_s);
      return left_s <= rule.threshold ? std::optional(left_s) : std::nullopt;
    }
    case HealthTest::grows: {
      const std::optional<double> change = steady_change(track, window_ms, reading);
      return change.has_value() && *change >= rule.threshold ? change : std::nullopt;
    }
    case HealthTest::silent:
      track.silent_ms = 0;
      return std::nullopt;
    case HealthTest::line:
    case HealthTest::xid:
      break;
  }
  return std::nullopt;
}

std::size_t HealthJudge::begin_episode(const Key& key, std::int64_t time_ms, std::int64_t gap_ms) {
  Episode& episode = episodes_[key];
  const bool goes_on = episode.lasts && time_ms - episode.last_ms < gap_ms;
  episode.lasts = true;
  episode.last_ms = time_ms;
  if (goes_on) return 0;
  drop_before(episode.begins_ms, time_ms - day_ms);
  episode.begins_ms.push_back(time_ms);
  return episode.begins_ms.size();
}

bool HealthJudge::others_have(int code, const std::string& gpu) const {
  return std::ranges::any_of(episodes_, [&](const auto& each) {
    const auto& [rule, part, number] = each.first;
    return number == code && part != gpu && each.second.last_ms > now_ms_ - day_ms;
  });
}

void HealthJudge::judge_xid(std::size_t rule, const HealthReading& reading,
                            std::vector<HealthFinding>& findings) {
  const std::optional<XidLine> xid = parse_xid(*reading.text);
  if (!xid.has_value()) return;
  const std::size_t count =
      begin_episode({rule, xid->gpu, xid->code}, reading.time_ms, gap_of_xid_ms(xid->code));
  if (count == 0) return;
  HealthAction action = action_of_xid(xid->code, *reading.text);
  std::string_view repeats;
  if (is_of_programs(xid->code)) {
    if (count >= 2 && !others_have(xid->code, xid->gpu)) {
      action = HealthAction::drain;
      repeats = ", again on this GPU while the others have none";
    }
  } else if (count >= episodes_of_a_sick_gpu && action != HealthAction::ignore && xid->code != 45) {
    action = std::max(action, HealthAction::leave_out);
    repeats = ", which was not mended: it comes again and again";
  }
  const auto known = std::ranges::find(xid_catalog(), xid->code, &Xid::code);
  const std::string_view name =
      known == xid_catalog().end() ? "which NVIDIA's catalog lacks" : known->mnemonic;
  findings.push_back({.rule = std::string(rules_[rule].name),
                      .action = std::min(action, rules_[rule].action),
                      .part = xid->gpu,
                      .time_ms = reading.time_ms,
                      .value = static_cast<double>(xid->code),
                      .sentence = fmt::format("{}: Xid {}, {}{}", xid->gpu, xid->code, name, repeats)});
}

// Counts the time in which sources gave no answer. Only the time between two looks counts, not one in which nobody looked.
void HealthJudge::find_silence(std::vector<HealthFinding>& findings, std::int64_t time_ms) {
  const std::int64_t passed_ms = now_ms_ == 0 ? 0 : std::min(time_ms - now_ms_, longest_look_ms);
  if (passed_ms == 0) return;
  for (auto& [key, track] : tracks_) {
    const HealthRule& rule = rules_[key.first];
    if (rule.test != HealthTest::silent) continue;
    track.silent_ms += passed_ms;
    if (track.silent_ms < rule.window_s * second_ms) continue;
    if (begin_episode({key.first, key.second, 0}, time_ms,
                      std::max(shortest_gap_ms, rule.window_s * second_ms)) == 0)
      continue;
    findings.push_back(
        {.rule = std::string(rule.name),
         .action = rule.action,
         .part = key.second,
         .time_ms = time_ms,
         .value = static_cast<double>(track.silent_ms / second_ms),
         .sentence = sentence_of(rule, key.second, static_cast<double>(track.silent_ms / second_ms))});
  }
}

std::vector<HealthFinding> HealthJudge::take(const HealthReading& reading) {
  std::vector<HealthFinding> findings;
  find_silence(findings, reading.time_ms);
  now_ms_ = std::max(now_ms_, reading.time_ms);
  for (std::size_t i = 0; i < rules_.size(); ++i) {
    const HealthRule& rule = rules_[i];
    if (!is_about(rule, reading)) continue;
    const bool is_of_lines = rule.test == HealthTest::line || rule.test == HealthTest::xid;
    if (is_of_lines != reading.text.has_value()) continue;
    if (!is_of_lines && (rule.reading != reading.name || !reading.value.has_value())) continue;
    if (rule.test == HealthTest::xid) {
      judge_xid(i, reading, findings);
      continue;
    }
    const std::optional<double> found = measure(rule, tracks_[{i, reading.part}], reading);
    if (!found.has_value()) continue;
    const std::int64_t gap_ms = std::max(shortest_gap_ms, rule.window_s * second_ms);
    if (begin_episode({i, reading.part, 0}, reading.time_ms, gap_ms) == 0) continue;
    findings.push_back({.rule = std::string(rule.name),
                        .action = rule.action,
                        .part = reading.part,
                        .time_ms = reading.time_ms,
                        .value = *found,
                        .sentence = sentence_of(rule, reading.part, *found)});
  }
  return findings;
}

std::vector<HealthFinding> judge(const std::vector<HealthReading>& readings) {
  HealthJudge judge;
  std::vector<HealthFinding> all;
  for (const HealthReading& reading : readings)
    std::ranges::move(judge.take(reading), std::back_inserter(all));
  return all;
}

}  // namespace holdfast::health
