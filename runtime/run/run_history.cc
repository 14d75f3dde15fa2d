#include "runtime/run/run_history.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

#include "runtime/core/json.h"
#include "runtime/core/units.h"
#include "runtime/run/event_reading.h"
#include "runtime/run/log_reader.h"

namespace holdfast::inline run {
namespace {

double number_or_nan(const Json& event, const char* key) {
  return holdfast::number_of(event, key, std::numeric_limits<double>::quiet_NaN());
}

std::string shown_value(const std::string& key, const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (key.ends_with("_ms") && value.is_number()) {
    const double duration_ms = value.get<double>();
    return duration_ms < 10.0 ? fmt::format("{:.1f} ms", duration_ms)
                              : format_duration(static_cast<std::int64_t>(std::min(duration_ms, 1e15)));
  }
  if (key.find("_bytes_") != std::string::npos && value.is_number_unsigned())
    return format_bytes(value.get<std::uint64_t>());
  if (value.is_number_float()) return fmt::format("{:.6g}", value.get<double>());
  return value.dump_any();
}

std::string shown_key(std::string key) {
  if (key.ends_with("_ms")) key.resize(key.size() - 3);
  std::ranges::replace(key, '_', ' ');
  return key;
}

std::string details_of(const Json& event) {
  std::string text;
  for (const auto& [key, value] : event.items()) {
    if (key == "event" || key == "time_us" || key == "step" || key == "run" || value.is_null() || value == "")
      continue;
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", shown_key(key), shown_value(key, value));
  }
  return text;
}

// Reads the lines in order and keeps what later ones replace.
class HistoryReader {
 public:
  void read(const Json& event) {
    ledger_.read(event);
    const std::string name = text_of(event, "event");
    last_step_ = count_of(event, "step", last_step_);
    if (name == "start") read_start(event);
    if (name == "finish") ended_well_ = text_of(event, "state") != "failed";
    const std::string reason = name == "recovery" ? text_of(event, "reason") : "growth";
    if (reason != "growth" && reason != "drain") ++history_.failures;
    count_time(event);
    if (name == "step") {
      read_step(event);
    } else {
      if (name == "evaluation") held_out_[last_step_] = number_or_nan(event, "loss");
      history_.events.push_back(
          {.name = name,
           .time_us = last_time_us_,
           .step = last_step_,
           .resumed = event.contains("resumed_from_step") && !event["resumed_from_step"].is_null(),
           .details = details_of(event)});
    }
  }

  RunHistory finish() && {
    for (const auto& [step, record] : steps_) history_.steps.push_back(record);
    for (const auto& [step, loss] : held_out_) history_.held_out.push_back({.step = step, .loss = loss});
    history_.start_under_way = !ended_well_;
    history_.ledger = std::move(ledger_).finish();
    return std::move(history_);
  }

 private:
  void read_start(const Json& event) {
    last_step_ = count_of(event, "resumed_from_step", 0);
    last_time_us_ = 0;
    if (!std::exchange(ended_well_, false)) ++history_.failures;
    steps_.erase(steps_.upper_bound(last_step_), steps_.end());
    held_out_.erase(held_out_.upper_bound(last_step_), held_out_.end());
    if (const std::string run_id = text_of(event, "run"); !run_id.empty()) history_.run_id = run_id;
    history_.parameters = count_of(event, "parameters", history_.parameters);
    history_.ranks = count_of(event, "ranks", history_.ranks);
    history_.planned_steps = count_of(event, "steps", history_.planned_steps);
  }

  // A clock that was set back adds nothing.
  void count_time(const Json& event) {
    const auto time_us =
        static_cast<std::int64_t>(count_of(event, "time_us", 0) & std::numeric_limits<std::int64_t>::max());
    if (last_time_us_ > 0 && time_us > last_time_us_ &&
        __builtin_add_overflow(history_.running_us, time_us - last_time_us_, &history_.running_us))
      history_.running_us = std::numeric_limits<std::int64_t>::max();
    last_time_us_ = std::max(last_time_us_, time_us);
  }

  void read_step(const Json& event) {
    history_.tokens = count_of(event, "tokens", history_.tokens);
    steps_[last_step_] = {.step = last_step_,
                          .loss = number_or_nan(event, "loss"),
                          .grad_norm = number_or_nan(event, "grad_norm"),
                          .learning_rate = number_or_nan(event, "learning_rate"),
                          .tokens_per_sec = number_or_nan(event, "tokens_per_sec")};
  }

  RunHistory history_;
  IncidentReader ledger_;
  std::map<std::uint64_t, StepRecord> steps_;
  std::map<std::uint64_t, double> held_out_;
  std::uint64_t last_step_ = 0;
  std::int64_t last_time_us_ = 0;
  bool ended_well_ = true;  // the start before this one, if there was one
};

}  // namespace

RunHistory parse_history(std::string_view event_lines) {
  HistoryReader reader;
  for_each_event(event_lines, [&](const Json& event) { reader.read(event); });
  return std::move(reader).finish();
}

Result<RunHistory> read_history(Env& env, const RunPaths& paths) {
  HF_TRY(const LogReader log, LogReader::open(env, paths));
  HistoryReader reader;
  HF_TRY_VOID(log.for_each([&](const Json& event) { reader.read(event); }));
  RunHistory history = std::move(reader).finish();
  history.missing_parts = log.warning();
  return history;
}

Result<IncidentLog> read_incident_log(Env& env, const RunPaths& paths) {
  HF_TRY(const LogReader log, LogReader::open(env, paths));
  IncidentReader reader;
  HF_TRY_VOID(log.for_each([&](const Json& event) { reader.read(event); }));
  return std::move(reader).finish();
}

Result<LogTail> read_log_tail(Env& env, const RunPaths& paths, std::uint64_t bytes_max) {
  HF_TRY(const LogReader log, LogReader::open(env, paths));
  const std::uint64_t bytes = std::min(log.bytes(), bytes_max);
  LogTail tail{.lines = {}, .whole = bytes == log.bytes() && log.warning().empty()};
  HF_TRY(tail.lines, log.read(log.bytes() - bytes, bytes));
  if (bytes < log.bytes()) tail.lines.erase(0, std::min(tail.lines.find('\n'), tail.lines.size() - 1) + 1);
  return tail;
}

double median_tokens_per_sec(const RunHistory& history) {
  std::vector<double> rates;
  for (const StepRecord& record : history.steps) {
    if (std::isfinite(record.tokens_per_sec)) rates.push_back(record.tokens_per_sec);
  }
  if (rates.empty()) return 0.0;
  const auto middle = rates.begin() + std::ssize(rates) / 2;
  std::nth_element(rates.begin(), middle, rates.end());
  return *middle;
}

}  // namespace holdfast::inline run
