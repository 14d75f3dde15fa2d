#include "runtime/run/missing_steps.h"

#include <algorithm>
#include <limits>

#include "runtime/run/event_line.h"
#include "runtime/run/event_reading.h"
#include "runtime/run/run_history.h"

namespace holdfast::run {
namespace {

// Reads the lines in order and keeps what is there since the newest start.
class StepReader {
 public:
  void read(const Json& json) {
    if (const auto start = event_as<StartEvent>(json)) {
      there_.clear();
      first_ = next_of(start->resumed_from_step.value.value_or(0));
    }
    if (const auto step = event_as<StepEvent>(json)) add({step->step, step->step});
    if (const auto gap = event_as<GapEvent>(json))
      add({gap->first_step.value_or(0), gap->last_step.value_or(0)});
  }

  std::vector<StepInterval> missing(std::uint64_t step) && {
    std::ranges::sort(there_, {}, &StepInterval::first);
    std::vector<StepInterval> missing;
    std::uint64_t next = first_;
    for (const StepInterval& there : there_) {
      if (there.first > step) break;
      if (there.first > next) missing.push_back({next, there.first - 1});
      next = std::max(next, next_of(there.last));
    }
    if (next <= step) missing.push_back({next, step});
    return missing;
  }

 private:
  static constexpr std::uint64_t none = std::numeric_limits<std::uint64_t>::max();
  static std::uint64_t next_of(std::uint64_t step) { return step == none ? none : step + 1; }

  void add(const StepInterval& range) {
    if (range.first == 0 || range.last < range.first) return;  // also of a gap that names none
    first_ = std::min(first_, range.first);
    there_.push_back(range);
  }

  std::uint64_t first_ = none;  // of which the lines can tell whether it is there
  std::vector<StepInterval> there_;
};

constexpr std::uint64_t tail_bytes = 256 << 10;  // some hundred steps

void append(const Event auto& event, LineSink& log) {
  EventLine line;
  static_cast<void>(log.append(put_event(event, line).end()).ok());  // it waits, as any other line
}

}  // namespace

std::vector<StepInterval> missing_steps(std::string_view log_end, std::uint64_t step) {
  StepReader reader;
  for_each_event(log_end, [&](const Json& event) { reader.read(event); });
  return std::move(reader).missing(step);
}

std::uint64_t newest_logged_step(Env& env, const RunPaths& paths) {
  const Result<LogTail> tail = read_log_tail(env, paths, tail_bytes);
  std::uint64_t newest = 0;
  if (!tail.ok()) return newest;
  for_each_event(tail->lines, [&](const Json& event) {
    if (const auto step = event_as<StepEvent>(event)) newest = std::max(newest, step->step);
  });
  return newest;
}

void write_missing_steps(Env& env, const RunPaths& paths, std::uint64_t step, const RecentSteps& recent,
                         LineSink& log) {
  const Result<LogTail> tail = read_log_tail(env, paths, tail_bytes);
  if (!tail.ok()) return;
  for (const StepInterval& range : missing_steps(tail->lines, step)) {
    std::uint64_t known = range.last + 1;  // from here on
    while (known > range.first && recent.find(known - 1) != nullptr) --known;
    if (known > range.first) {
      append(GapEvent{.time_us = env.wall_time_us(),
                      .first_step = range.first,
                      .last_step = known - 1,
                      .reason = "the rank that had these lines died before it could write them"},
             log);
    }
    for (; known <= range.last; ++known) {
      StepEvent event = step_event(*recent.find(known));
      event.restored_us = env.wall_time_us();
      append(event, log);
    }
  }
}

}  // namespace holdfast::run
