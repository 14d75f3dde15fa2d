#include "runtime/launch/run_progress.h"

#include <fmt/core.h>

#include <algorithm>
#include <functional>
#include <initializer_list>
#include <limits>
#include <string_view>

#include "runtime/core/json.h"
#include "runtime/os/foreign_text.h"
#include "runtime/run/event_reading.h"
#include "runtime/run/log_reader.h"

namespace holdfast::launch {
namespace {

constexpr std::uint64_t tail_bytes = 65'536;  // more than is logged between two steps
constexpr std::uint64_t all_bytes = std::numeric_limits<std::uint64_t>::max();

// Returns what `take` returns of the newest event of these kinds of which it returns anything, searching
// backwards from the end of the log to `from_bytes`, over at most `max_bytes`. Lines that do not contain the
// name of a kind are not parsed.
template <typename T>
std::optional<T> newest_of(Env& env, const RunPaths& paths, std::uint64_t from_bytes, std::uint64_t max_bytes,
                           std::initializer_list<std::string_view> kinds,
                           const std::function<std::optional<T>(const Json&)>& take) {
  const Result<LogReader> log = LogReader::open(env, paths);
  if (!log.ok() || log->bytes() <= from_bytes) return std::nullopt;
  const std::uint64_t bytes = log->bytes();
  const std::uint64_t lowest = std::max(from_bytes, bytes - std::min(bytes, max_bytes));
  std::optional<T> found;
  const auto look_at = [&](std::string_view line) {
    const bool may_be = std::ranges::any_of(
        kinds, [&](std::string_view kind) { return line.find(kind) != std::string_view::npos; });
    if (may_be) found = take(Json::parse_any(line));
    return found.has_value();
  };
  std::string rest;  // rest of a line that begins before the text that was read
  for (std::uint64_t end = bytes; end > lowest;) {
    const std::uint64_t begin = end - std::min(end - lowest, tail_bytes);
    const Result<std::string> piece = log->read(begin, end - begin);
    if (!piece.ok()) return std::nullopt;
    const std::string text = *piece + rest;
    std::size_t stop = text.size();
    for (std::size_t newline = text.rfind('\n'); newline != std::string::npos;) {
      if (look_at(std::string_view(text).substr(newline + 1, stop - newline - 1))) return found;
      stop = newline;
      newline = stop == 0 ? std::string::npos : text.rfind('\n', stop - 1);
    }
    rest = text.substr(0, stop);
    end = begin;
    if (rest.size() > text_limits::event_line) return std::nullopt;  // no event is that long
  }
  look_at(rest);
  return found;
}

}  // namespace

StepMade newest_step_made(Env& env, const RunPaths& paths) {
  return newest_of<StepMade>(env, paths, 0, tail_bytes, {StepEvent::kind},
                             [](const Json& json) -> std::optional<StepMade> {
                               if (event_kind(json) != StepEvent::kind) return std::nullopt;
                               const std::optional<std::uint64_t> step = event_step(json);
                               if (!step.has_value()) return std::nullopt;
                               return StepMade{.step = *step, .time_us = event_time(json)};
                             })
      .value_or(StepMade{});
}

std::optional<int> ranks_at_end(Env& env, const RunPaths& paths, std::uint64_t from_bytes) {
  return newest_of<int>(env, paths, from_bytes, all_bytes, {StartEvent::kind, RecoveryEvent::kind},
                        [](const Json& json) -> std::optional<int> {
                          if (const auto start = event_as(json, StartEvent{.ranks = -1}))
                            return start->ranks < 0 ? std::nullopt : std::optional(start->ranks);
                          if (const auto recovery = event_as(json, RecoveryEvent{.ranks_after = -1}))
                            return recovery->ranks_after < 0 ? std::nullopt
                                                             : std::optional(recovery->ranks_after);
                          return std::nullopt;
                        });
}

std::optional<RanksInLog> newest_ranks(Env& env, const RunPaths& paths, std::uint64_t from_bytes) {
  return newest_of<RanksInLog>(
      env, paths, from_bytes, all_bytes, {StartEvent::kind, RecoveryEvent::kind},
      [](const Json& json) -> std::optional<RanksInLog> {
        if (auto start = event_as<StartEvent>(json); start.has_value() && start->hosts.has_value())
          return RanksInLog{.by_host = std::move(*start->hosts)};
        if (auto recovery = event_as<RecoveryEvent>(json);
            recovery.has_value() && recovery->hosts.has_value())
          return RanksInLog{.by_host = std::move(*recovery->hosts), .spares = recovery->spares};
        return std::nullopt;
      });
}

std::optional<double> lost_job_ms(Env& env, const RunPaths& paths, std::uint64_t from_bytes) {
  return newest_of<double>(env, paths, from_bytes, all_bytes, {FailureCostEvent::kind},
                           [](const Json& json) -> std::optional<double> {
                             const auto cost = event_as<FailureCostEvent>(json);
                             return cost.has_value() ? cost->job_ms : std::nullopt;
                           });
}

std::string hangs_at_end(std::span<const ReportedHang> hangs, const StepMade& newest) {
  std::string text;
  for (const ReportedHang& hang : hangs) {
    if (hang.time_us <= newest.time_us) continue;
    if (!text.empty()) text += "; ";
    text += hang.sentence;
  }
  return text;
}

std::string causes_of(std::span<const LaunchedRank> dead) {
  if (dead.empty()) return "";
  const std::string& first = dead.front().cause;
  const bool is_same =
      std::ranges::all_of(dead, [&](const LaunchedRank& rank) { return rank.cause == first; });
  if (is_same) return first.empty() ? "" : ": " + first;
  std::string text;
  for (const LaunchedRank& rank : dead) {
    if (!rank.cause.empty())
      text += fmt::format("{}rank {}: {}", text.empty() ? ": " : ", ", rank.rank, rank.cause);
  }
  return text;
}

}  // namespace holdfast::launch
