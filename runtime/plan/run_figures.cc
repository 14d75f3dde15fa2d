#include "runtime/plan/run_figures.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string_view>
#include <vector>

#include "runtime/core/median.h"
#include "runtime/run/event_reading.h"
#include "runtime/run/failure_record.h"
#include "runtime/run/log_reader.h"
#include "runtime/run/run_history.h"

namespace holdfast::plan {
namespace {

// Returns the ranks that train after this event, if it says so. `spares`: ranks of a start that wait.
std::optional<int> training_ranks(const Json& event, int spares) {
  if (const auto start = event_as<StartEvent>(event); start.has_value() && start->ranks > 0)
    return std::max(start->ranks - spares, 1);
  const auto recovery = event_as<RecoveryEvent>(event);
  if (!recovery.has_value() || recovery->level != RecoveryEvent::in_place || recovery->ranks_after <= 0)
    return std::nullopt;
  return recovery->seats_after.value_or(std::max(recovery->ranks_after - recovery->spares.value_or(0), 1));
}

// Returns the ranks by the newest event that says so and that lies before the last FailureTally::tail_bytes of the log; 0: none
// does. Long runs have few such events, so lines are searched and not read.
int ranks_before_tail(Env& env, const RunPaths& paths, int spares) {
  const Result<LogReader> log = LogReader::open(env, paths);
  if (!log.ok()) return 0;
  constexpr std::uint64_t piece = FailureTally::tail_bytes, longest_line = 65'536;
  for (std::uint64_t end = log->bytes() - std::min(log->bytes(), piece); end > 0;) {
    const std::uint64_t begin = end - std::min(end, piece);
    const Result<std::string> text = log->read(begin, std::min(end + longest_line, log->bytes()) - begin);
    if (!text.ok()) return 0;
    int ranks = 0;
    const std::string_view all = *text;
    for (std::size_t at = 0; at < all.size();) {
      const std::size_t newline = std::min(all.find('\n', at), all.size());
      const std::string_view line = all.substr(at, newline - at);
      at = newline + 1;
      if (line.find(StartEvent::kind) == line.npos && line.find(RecoveryEvent::kind) == line.npos) continue;
      for_each_event(std::string(line) + "\n",
                     [&](const Json& event) { ranks = training_ranks(event, spares).value_or(ranks); });
    }
    if (ranks > 0) return ranks;
    end = begin;
  }
  return 0;
}

bool is_whole(const SaveTimes& times) {
  return std::isfinite(times.step_seconds) && std::isfinite(times.cost_seconds) &&
         std::isfinite(times.durable_seconds);
}

}  // namespace

RunFigures read_run_figures(Env& env, const std::string& directory, int ranks, int spares) {
  const RunPaths paths{directory};
  RunFigures figures;
  if (const Result<FileStatus> record = env.status(paths.history()); !record.ok() || !record->exists)
    return figures;
  figures.directory = directory;
  figures.history = read_failure_history(env, paths, 0).value_or(DeviceHistory());
  const Result<LogTail> tail = read_log_tail(env, paths, FailureTally::tail_bytes);
  if (!tail.ok()) return figures;
  if (!tail->whole) figures.ranks = ranks_before_tail(env, paths, spares);
  std::vector<double> steps, recoveries;
  for_each_event(tail->lines, [&](const Json& event) {
    const int now = training_ranks(event, spares).value_or(figures.ranks);
    if (now != figures.ranks || event_as<StartEvent>(event).has_value()) {
      figures.ranks = now;
      figures.save = figures.snapshot = std::nullopt;
      steps.clear();
    }
    if (const auto step = event_as<StepEvent>(event);
        step.has_value() && std::isfinite(step->step_duration_ms))
      steps.push_back(step->step_duration_ms / 1e3);
    if (const auto interval = event_as<IntervalEvent>(event)) {
      const SaveTimes times{.step_seconds = interval->step_ms / 1e3,
                            .cost_seconds = interval->cost_ms / 1e3,
                            .durable_seconds = interval->durable_ms.value_or(0.0) / 1e3};
      if (is_whole(times)) (interval->tier == "disk" ? figures.save : figures.snapshot) = times;
    }
    const auto recovery = event_as<RecoveryEvent>(event);
    if (!recovery.has_value() || recovery->level != RecoveryEvent::in_place ||
        recovery->reason != RecoveryEvent::loss)
      return;
    const double seconds =
        std::visit([](auto ms) { return static_cast<double>(ms); }, recovery->duration_ms) / 1e3;
    if (std::isfinite(seconds)) recoveries.push_back(seconds);
  });
  if (const auto history = read_failure_history(env, paths, figures.ranks); history.has_value())
    figures.history = *history;  // also of an older version
  if (!recoveries.empty()) figures.recovery_seconds = take_median(recoveries);
  if (figures.ranks != ranks) figures.save = figures.snapshot = std::nullopt;
  constexpr std::size_t enough = 5;
  if (figures.ranks == ranks && steps.size() >= enough) figures.step_seconds = take_median(steps);
  return figures;
}

}  // namespace holdfast::plan
