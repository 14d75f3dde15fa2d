#include "runtime/run/run_history.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <utility>

#include "runtime/core/json.h"
#include "runtime/core/median.h"
#include "runtime/core/units.h"
#include "runtime/run/event_log.h"
#include "runtime/run/event_reading.h"

namespace holdfast::run {
namespace {

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

// Returns the fields of a start or an end that people look for; the log has the others.
std::optional<std::vector<std::string_view>> shown_fields(std::string_view kind) {
  if (kind == StartEvent::kind)
    return std::vector<std::string_view>{field_name(&StartEvent::ranks),
                                         field_name(&StartEvent::hosts),
                                         field_name(&StartEvent::resumed_from_step),
                                         field_name(&StartEvent::resumed_from),
                                         field_name(&StartEvent::device),
                                         field_name(&StartEvent::exchange),
                                         field_name(&StartEvent::faults)};
  if (kind == FinishEvent::kind)
    return std::vector<std::string_view>{field_name(&FinishEvent::state), field_name(&FinishEvent::exit_code),
                                         field_name(&FinishEvent::reason)};
  return std::nullopt;
}

std::string details_of(const Json& event) {
  const std::optional<std::vector<std::string_view>> only = shown_fields(event_kind(event));
  const std::array shown_elsewhere = {event_kind_field, event_time_field, field_name(&StepEvent::step),
                                      field_name(&StartEvent::run)};
  std::string text;
  for (const auto& [key, value] : event.items()) {
    if (std::ranges::find(shown_elsewhere, key) != shown_elsewhere.end() || value.is_null() || value == "")
      continue;
    if (only.has_value() && std::ranges::find(*only, key) == only->end()) continue;
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", shown_key(key), shown_value(key, value));
  }
  return text;
}

// Reads the lines in order and keeps what later ones replace.
class HistoryReader {
 public:
  void read(const Json& json) {
    ledger_.read(json);
    history_.numbers.take(json);
    if (auto straggler = event_as<StragglerEvent>(json)) history_.stragglers.push_back(*std::move(straggler));
    last_step_ = event_step(json).value_or(last_step_);
    const std::optional<StartEvent> start = event_as<StartEvent>(json);
    if (start.has_value()) read_start(*start);
    if (const auto finish = event_as<FinishEvent>(json)) ended_well_ = finish->state != FinishEvent::failed;
    if (const auto recovery = event_as<RecoveryEvent>(json)) {
      const bool is_wanted = recovery->reason == RecoveryEvent::growth ||
                             recovery->reason == RecoveryEvent::drain ||
                             recovery->reason == RecoveryEvent::rollback;
      if (!is_wanted) ++history_.failures;
    }
    const auto gap = event_as<GapEvent>(json);
    if (!gap.has_value() || !gap->is_of_steps()) count_time(event_time(json));
    if (const auto step = event_as(json, StepEvent{.tokens = history_.tokens})) {
      read_step(*step);
      return;
    }
    if (const auto evaluation = event_as<EvaluationEvent>(json)) held_out_[last_step_] = evaluation->loss;
    history_.events.push_back({.name = std::string(event_kind(json)),
                               .time_us = last_time_us_,
                               .step = last_step_,
                               .resumed = start.has_value() && start->resumed_from_step.value.has_value(),
                               .details = details_of(json)});
  }

  RunHistory finish() && {
    for (const auto& [step, record] : steps_) history_.steps.push_back(record);
    for (const auto& [step, loss] : held_out_) history_.held_out.push_back({.step = step, .loss = loss});
    history_.start_under_way = !ended_well_;
    history_.ledger = std::move(ledger_).finish();
    return std::move(history_);
  }

 private:
  void read_start(const StartEvent& start) {
    last_step_ = start.resumed_from_step.value.value_or(0);
    last_time_us_ = 0;
    if (!std::exchange(ended_well_, false)) ++history_.failures;
    steps_.erase(steps_.upper_bound(last_step_), steps_.end());
    held_out_.erase(held_out_.upper_bound(last_step_), held_out_.end());
    if (!start.run.empty()) history_.run_id = start.run;
    if (start.parameters > 0) history_.parameters = start.parameters;
    if (start.ranks > 0) history_.ranks = static_cast<std::uint64_t>(start.ranks);
    if (start.steps > 0) history_.planned_steps = static_cast<std::uint64_t>(start.steps);
    history_.sources = start.sources.value_or(std::vector<EventSource>());
  }

  // A clock that was set back adds nothing.
  void count_time(std::int64_t time_us) {
    if (last_time_us_ > 0 && time_us > last_time_us_ &&
        __builtin_add_overflow(history_.running_us, time_us - last_time_us_, &history_.running_us))
      history_.running_us = std::numeric_limits<std::int64_t>::max();
    last_time_us_ = std::max(last_time_us_, time_us);
  }

  void read_step(const StepEvent& step) {
    history_.tokens = step.tokens;
    history_.source_samples = step.source_samples.value_or(std::vector<std::uint64_t>());
    steps_[last_step_] = {.step = last_step_,
                          .loss = step.loss,
                          .grad_norm = step.grad_norm,
                          .learning_rate = step.learning_rate,
                          .tokens_per_sec = step.tokens_per_sec};
  }

  RunHistory history_;
  IncidentReader ledger_;
  std::map<std::uint64_t, StepRecord> steps_;
  std::map<std::uint64_t, double> held_out_;
  std::uint64_t last_step_ = 0;
  std::int64_t last_time_us_ = 0;
  bool ended_well_ = true;  // the start before this one, if there was one
};

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

}  // namespace

RunHistory parse_history(std::string_view event_lines) {
  HistoryReader reader;
  for_each_event(event_lines, [&](const Json& event) { reader.read(event); });
  return std::move(reader).finish();
}

Result<RunHistory> read_history(Env& env, const RunPaths& paths) {
  HF_TRY(const LogReader log, LogReader::open(env, paths));
  return read_history(log);
}

Result<RunHistory> read_history(const LogReader& log, const std::function<Json(const Json&)>& shown) {
  HistoryReader reader;
  HF_TRY_VOID(log.for_each([&](const Json& event) { reader.read(shown ? shown(event) : event); }));
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
  return tail_of(log, bytes_max);
}

Result<LogTail> tail_of(const LogReader& log, std::uint64_t bytes_max) {
  const std::uint64_t bytes = std::min(log.bytes(), bytes_max);
  LogTail tail{.lines = {}, .whole = bytes == log.bytes() && log.warning().empty()};
  HF_TRY(tail.lines, log.read(log.bytes() - bytes, bytes));
  if (bytes < log.bytes()) tail.lines.erase(0, std::min(tail.lines.find('\n'), tail.lines.size() - 1) + 1);
  return tail;
}

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

void note_missing_steps(Env& env, const RunPaths& paths, std::uint64_t step, LineSink& log) {
  const Result<LogTail> tail = read_log_tail(env, paths, tail_bytes);
  if (!tail.ok()) return;
  for (const StepInterval& missing : missing_steps(tail->lines, step)) {
    EventLine line;
    put_event(GapEvent{.time_us = env.wall_time_us(),
                       .first_step = missing.first,
                       .last_step = missing.last,
                       .reason = "the rank that had these lines died before it could write them"},
              line);
    static_cast<void>(log.append(line.end()).ok());  // it waits, as any other line
  }
}

double median_tokens_per_sec(const RunHistory& history) {
  std::vector<double> rates;
  for (const StepRecord& record : history.steps) {
    if (std::isfinite(record.tokens_per_sec)) rates.push_back(record.tokens_per_sec);
  }
  return rates.empty() ? 0.0 : take_median(rates);
}

}  // namespace holdfast::run
