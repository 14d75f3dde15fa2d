#include "runtime/run/missing_steps.h"

#include <algorithm>
#include <limits>

#include "runtime/run/event_reading.h"
#include "runtime/run/run_history.h"

namespace holdfast::inline run {
namespace {

// Reads the lines in order and keeps what is there since the newest start.
class StepReader {
 public:
  void read(const Json& event) {
    const std::string name = text_of(event, "event");
    if (name == "start") {
      there_.clear();
      first_ = next_of(count_of(event, "resumed_from_step"));
    }
    if (name == "step") add({count_of(event, "step"), count_of(event, "step")});
    if (name == "gap") add({count_of(event, "first_step"), count_of(event, "last_step")});
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

void append(EventLine& line, LineSink& log) {
  static_cast<void>(log.append(line.end()).ok());  // it waits, as any other line
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
    if (text_of(event, "event") == "step") newest = std::max(newest, count_of(event, "step"));
  });
  return newest;
}

void write_missing_steps(Env& env, const RunPaths& paths, std::uint64_t step, const RecentSteps& recent,
                         LineSink& log) {
  const Result<LogTail> tail = read_log_tail(env, paths, tail_bytes);
  if (!tail.ok()) return;
  EventLine line;
  for (const StepInterval& range : missing_steps(tail->lines, step)) {
    std::uint64_t known = range.last + 1;  // from here on
    while (known > range.first && recent.find(known - 1) != nullptr) --known;
    if (known > range.first) {
      line.begin("gap", env.wall_time_us()).field("first_step", range.first).field("last_step", known - 1);
      append(line.field("reason", "the rank that had these lines died before it could write them"), log);
    }
    for (; known <= range.last; ++known)
      append(put_step(*recent.find(known), line).field("restored_us", env.wall_time_us()), log);
  }
}

}  // namespace holdfast::inline run
