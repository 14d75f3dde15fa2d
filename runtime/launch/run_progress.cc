#include "runtime/launch/run_progress.h"

#include <fmt/core.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <string_view>

#include "runtime/core/json.h"
#include "runtime/os/foreign_text.h"
#include "runtime/run/log_reader.h"

namespace holdfast::inline launch {
namespace {

constexpr std::uint64_t tail_bytes = 65'536;  // more than is logged between two steps

// Returns the newest event that `wanted` accepts, searching backwards from the end of the log to
// `from_bytes`, over at most `max_bytes`. Lines without `mark` are not parsed; a torn line is no JSON object.
std::optional<Json> newest_event(Env& env, const RunPaths& paths, std::uint64_t from_bytes,
                                 std::uint64_t max_bytes, std::string_view mark,
                                 const std::function<bool(const Json&)>& wanted) {
  const Result<LogReader> log = LogReader::open(env, paths);
  if (!log.ok() || log->bytes() <= from_bytes) return std::nullopt;
  const std::uint64_t bytes = log->bytes();
  const std::uint64_t lowest = std::max(from_bytes, bytes - std::min(bytes, max_bytes));
  std::optional<Json> found;
  const auto look_at = [&](std::string_view line) {
    if (line.find(mark) == std::string_view::npos) return false;
    Json event = Json::parse_any(line);
    if (!event.is_object() || !event.contains("event") || !wanted(event)) return false;
    found = std::move(event);
    return true;
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

bool is_count(const Json& event, const char* key) {
  return event.contains(key) && event[key].is_number_unsigned();
}

}  // namespace

StepMade newest_step_made(Env& env, const RunPaths& paths) {
  const std::optional<Json> event = newest_event(env, paths, 0, tail_bytes, "\"step\"", [](const Json& each) {
    return each["event"] == "step" && is_count(each, "step");
  });
  if (!event.has_value()) return {};
  return {.step = (*event)["step"],
          .time_us = is_count(*event, "time_us") ? (*event)["time_us"].get<std::int64_t>() : 0};
}

std::optional<int> ranks_at_end(Env& env, const RunPaths& paths, std::uint64_t from_bytes) {
  const std::optional<Json> event = newest_event(
      env, paths, from_bytes, std::numeric_limits<std::uint64_t>::max(), "\"ranks", [](const Json& each) {
        const bool began = each["event"] == "start" && is_count(each, "ranks");
        return began || (each["event"] == "recovery" && is_count(each, "ranks_after"));
      });
  if (!event.has_value()) return std::nullopt;
  return (*event)[(*event)["event"] == "start" ? "ranks" : "ranks_after"].get<int>();
}

std::optional<std::map<std::string, int>> newest_hosts(Env& env, const RunPaths& paths,
                                                       std::uint64_t from_bytes) {
  const std::optional<Json> event =
      newest_event(env, paths, from_bytes, std::numeric_limits<std::uint64_t>::max(), "\"hosts\"",
                   [](const Json& each) { return each.contains("hosts") && each["hosts"].is_object(); });
  if (!event.has_value()) return std::nullopt;
  std::map<std::string, int> hosts;
  for (const auto& [host, ranks] : (*event)["hosts"].items()) {
    if (ranks.is_number_unsigned()) hosts[host] = ranks.get<int>();
  }
  return hosts;
}

std::string verdicts_at_end(std::span<const ReportedVerdict> verdicts, const StepMade& newest) {
  std::string text;
  for (const ReportedVerdict& verdict : verdicts) {
    if (verdict.time_us <= newest.time_us) continue;
    if (!text.empty()) text += "; ";
    text += verdict.sentence;
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

}  // namespace holdfast::inline launch
