// SpanUse: the classes of a run's time, with the seconds and the money of each. Pure.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace holdfast::run {

// SpanUse is what the time of a run is spent on: the classes of status, metrics, the summary at the end and the report. Each moment
// is of one class, so that they add up to the wall time.
enum class SpanUse : std::uint8_t {
  training,  // steps that count, without what is of a class below
  lost,      // steps that were computed again, and the part of a step before a fault
  recovery,  // in place
  restart,   // from the end of a start that failed to the first step of the next
  start_up,  // of the first start, and of one after a stop that was asked for
  other,     // between steps
  paused,  // between the end of a run, or a stop that was asked for, and the next start: no time of the run's
  saving,  // for which training waited for saves
  evaluation,
  waiting,  // for hosts, before another start
  // Parts of steps that count, which have no spans of their own.
  straggling,  // for which the ranks waited for a slow one, or for a link
  data,        // for which rank 0 waited for its data
  checking,    // audits, and computing a step again after a verdict
};
inline constexpr std::size_t span_uses = 13;
std::string_view name_of(SpanUse use);
using SpanTimes = std::array<std::int64_t, span_uses>;  // microseconds, by SpanUse
// Returns the training by all but the pauses (ETTR); 0 where there is no such time.
double goodput_of(const SpanTimes& times_us);

// Price of the ranks of a run, as its newest start has it.
struct RankPrice {
  double per_rank_hour = 0.0;  // cost.per_rank_hour; 0: no price is known
  std::string currency = {};

  bool is_known() const { return per_rank_hour > 0.0; }
};

// Returns what each class cost. `rank_times_us`: its time, each moment times the ranks that there were. A pause costs nothing:
// no rank runs.
std::array<double, span_uses> money_of(const SpanTimes& rank_times_us, const RankPrice& price);
// Returns "$12.30: training $10.00, saving $2.30"; empty without a price.
std::string money_sentence(const SpanTimes& rank_times_us, const RankPrice& price);

}  // namespace holdfast::run
