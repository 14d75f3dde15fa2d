// IncidentLog: the failures of a run, what was done about them and what they cost, and where all its time
// went; put together from the event log. Pure.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/core/json.h"
#include "runtime/run/fault_cause.h"
#include "runtime/run/span_account.h"
#include "runtime/run/span_times.h"

namespace holdfast::run {

// Level at which training went on after a fault. DESIGN, section 7.
enum class FaultLevel : std::uint8_t {
  none,      // training went on beside it: a save, a replica, an upload that failed
  in_place,  // the ranks that were left
  restart,   // another start, by `holdfast launch`
  launch,    // another start, launched by other means: the one before ended silently
  ended,     // nobody: the run is over, or nothing was done so far
};

struct FaultEntry {
  FaultLevel level = FaultLevel::ended;
  std::int64_t time_us = 0;  // when it was noticed, since 1970; of a start that ended silently its last word
  std::int64_t resumed_us = 0;  // end of the first step after it, or of a run that was saved without one
  std::uint64_t step = 0;       // newest step before it
  std::string who = {};         // "rank 2 (host a)"; empty: all, or none in particular
  std::string noticed = {};     // how, in the words of the log
  std::string action = {};      // what was done
  std::string what = {};        // FaultEvent::what; empty: it has none
  FaultCause cause = FaultCause::unknown;
  // When the first of those was noticed that were mended together with it, of which `is_last` ends the incident; 0: it is not
  // mended.
  std::int64_t first_us = 0;
  bool is_last = false;
  // Parts of a recovery in place; 0 where the log has none.
  double shrink_ms = 0.0, plan_ms = 0.0, load_ms = 0.0, replay_ms = 0.0;
  std::uint64_t lost_steps = 0;  // steps that were computed again
  // Returns the time of the incident that it ends, from the first notice to resumed_us; 0 where it ends none.
  double pause_s() const {
    return is_last && resumed_us > first_us ? static_cast<double>(resumed_us - first_us) / 1e6 : 0.0;
  }
};

struct IncidentSave {
  std::int64_t time_us = 0;
  std::uint64_t step = 0;
};

struct IncidentLog {
  std::vector<FaultEntry> faults;   // in the order of the log
  std::vector<GoodputSpan> spans;   // one after another, without gaps; neighbours differ in use
  std::vector<IncidentSave> saves;  // when a checkpoint became visible
  SpanTimes times_us = {};          // the spans added up, without the parts that are of other classes
  SpanTimes rank_times_us = {};     // the same, each moment times the ranks that there were
  RankPrice price = {};
  std::uint64_t lost_steps = 0;  // computed more than once, each time but the last

  std::int64_t begin_us() const { return spans.empty() ? 0 : spans.front().begin_us; }
  std::int64_t end_us() const { return spans.empty() ? 0 : spans.back().end_us; }
  std::int64_t time_us(SpanUse use) const { return times_us[static_cast<std::size_t>(use)]; }
  double effective_ratio() const { return goodput_of(times_us); }
  // Returns whether anything but `none` happened.
  bool disturbed() const;
};

// Takes the events of a log in its order.
class IncidentReader {
 public:
  // Without `keeps_spans`, for a run that goes on, only times_us() is of use, and of steps only as many are remembered as a
  // run may go back.
  explicit IncidentReader(bool keeps_spans = true);
  // Begins where another one without spans was when it made this state(). The durations of steps that the run may go back to
  // follow by remind().
  explicit IncidentReader(const Json& state);
  Json state() const;
  void remind(const Json& event);
  IncidentReader(IncidentReader&& other) noexcept;
  IncidentReader& operator=(IncidentReader&& other) noexcept;
  ~IncidentReader();
  void read(const Json& event);
  // All are of the events so far, as finish() would have them.
  SpanTimes times_us() const;
  SpanTimes rank_times_us() const;
  std::uint64_t lost_steps() const;
  std::uint64_t highest_step() const;  // that was ever made
  RankPrice price() const;             // of the newest start
  IncidentLog finish() &&;

 private:
  class State;
  std::unique_ptr<State> state_;
};

// Formats a summary: "3 faults: 2 healed in place, 1 recovered by restarting; 4 steps computed
// again; goodput 93.1 %". Empty when nothing happened.
std::string summary_of(const IncidentLog& ledger);

}  // namespace holdfast::run
