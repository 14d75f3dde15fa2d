#include "runtime/run/failure_record.h"

#include <fmt/core.h>
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <optional>

#include "runtime/core/json.h"
#include "runtime/core/units.h"
#include "runtime/run/event_reading.h"
#include "runtime/run/run_history.h"

namespace holdfast::run {
namespace {

constexpr std::uint64_t record_bytes_max = 4096;

// Return the highest number where that of a damaged record would be higher.
std::int64_t sum_of(std::int64_t one, std::int64_t other) {
  std::int64_t sum = 0;
  return __builtin_add_overflow(one, other, &sum) ? std::numeric_limits<std::int64_t>::max() : sum;
}
std::int64_t rank_time(std::int64_t time_us, std::int64_t ranks) {
  std::int64_t product = 0;
  return __builtin_mul_overflow(time_us, ranks, &product) ? std::numeric_limits<std::int64_t>::max()
                                                          : product;
}

// An older version has counted the time alone, in which `ranks` are taken to have trained.
std::optional<FailureRecord> parse_record(const std::string& text, std::int64_t ranks) {
  const auto json = Json::parse_any(text);
  if (!json.is_object()) return std::nullopt;
  constexpr std::uint64_t missing = std::uint64_t{1} << 63;
  const auto number_of = [&](const char* key) { return count_of(json, key, missing); };
  constexpr std::uint64_t most_us = std::uint64_t{1} << 52, most_ranks = 1U << 20;  // of a damaged one
  const bool is_old = !json.contains("rank_us");
  const std::uint64_t failures = number_of("failures"), time = number_of(is_old ? "running_us" : "rank_us"),
                      since = number_of(is_old ? "started_us" : "since_us");
  if (std::max({failures, time, since}) >= missing) return std::nullopt;
  const std::uint64_t counted = is_old ? static_cast<std::uint64_t>(ranks) : number_of("ranks");
  if (counted == 0 || counted > most_ranks || (is_old && time > most_us)) return std::nullopt;
  return FailureRecord{
      .failures = static_cast<std::int64_t>(failures),
      .rank_us = is_old ? rank_time(static_cast<std::int64_t>(time), static_cast<std::int64_t>(counted))
                        : static_cast<std::int64_t>(time),
      .since_us = static_cast<std::int64_t>(since),
      .ranks = static_cast<std::int64_t>(counted),
      .ended = text_of(json, "state") == "ended"};
}

std::optional<FailureRecord> read_record(Env& env, const RunPaths& paths, std::int64_t ranks) {
  const Result<FileStatus> status = env.status(paths.history());
  if (!status.ok() || !status->exists || status->bytes > record_bytes_max) return std::nullopt;
  const Result<std::string> text = env.read_text_within(paths.history(), record_bytes_max);
  return text.ok() ? parse_record(*text, ranks) : std::nullopt;
}

// Returns the time since the record began to count, times its ranks.
std::int64_t newest_rank_us(const FailureRecord& record, std::int64_t now_us) {
  if (record.since_us == 0 || record.ended) return 0;
  return rank_time(std::max<std::int64_t>(now_us - record.since_us, 0), record.ranks);
}

// The time of the last event of the starts before this one, or 0.
std::int64_t last_event_us(Env& env, const RunPaths& paths) {
  constexpr std::uint64_t few_lines_bytes = 65'536;
  const Result<LogTail> tail = read_log_tail(env, paths, few_lines_bytes);
  std::int64_t last_us = 0;
  if (!tail.ok()) return last_us;
  for_each_event(tail->lines, [&](const Json& event) {
    const auto gap = event_as<GapEvent>(event);
    if (!gap.has_value() || !gap->is_of_steps()) last_us = std::max(last_us, event_time(event));
  });
  return last_us;
}

}  // namespace

std::optional<DeviceHistory> read_failure_history(Env& env, const RunPaths& paths, std::int64_t ranks) {
  const std::optional<FailureRecord> record = read_record(env, paths, ranks);
  if (!record.has_value()) return std::nullopt;
  const std::int64_t newest_us = record->ended ? 0 : newest_rank_us(*record, last_event_us(env, paths));
  return DeviceHistory{.failures = record->failures,
                       .device_seconds = static_cast<double>(record->rank_us + newest_us) / 1e6};
}

std::string FailureTally::begin_start(Env& env, const RunPaths& paths, std::int64_t ranks) {
  std::string note;
  if (const std::optional<FailureRecord> known = read_record(env, paths, ranks); known.has_value()) {
    record_ = *known;
    if (!record_.ended) {
      ++record_.failures;
      record_.rank_us = sum_of(record_.rank_us, newest_rank_us(record_, last_event_us(env, paths)));
    }
  } else if (const Result<LogTail> tail = read_log_tail(env, paths, tail_bytes); tail.ok()) {
    const RunHistory history = parse_history(tail->lines);
    record_ = {.failures = history.failures, .rank_us = rank_time(history.running_us, ranks)};
    if (history.start_under_way) ++record_.failures;  // it has died
    if (!tail->whole) {
      note = fmt::format(
          "{} is missing or damaged: failures so far are counted in the last {} of the event log alone",
          paths.history(), format_bytes(tail_bytes));
    }
  }
  record_.since_us = env.wall_time_us();
  record_.ranks = ranks;
  record_.ended = false;
  return note;
}

void FailureTally::go_on(Env& env, const RunPaths& paths, std::int64_t ranks) {
  const std::int64_t now_us = env.wall_time_us();
  if (record_.since_us == 0)  // this process has not led before
    record_ = read_record(env, paths, ranks).value_or(FailureRecord{.since_us = now_us, .ranks = ranks});
  record_.rank_us = sum_of(record_.rank_us, newest_rank_us(record_, now_us));
  record_.since_us = now_us;
  record_.ranks = ranks;
  record_.ended = false;  // a rank that has left may have recorded its own end
}

void FailureTally::end(bool failed, std::int64_t now_us) {
  if (failed) ++record_.failures;
  record_.rank_us = sum_of(record_.rank_us, newest_rank_us(record_, now_us));
  record_.ended = true;
}

std::function<void()> FailureTally::writing(Env& env, const RunPaths& paths) const {
  const Json json = {{"failures", record_.failures},
                     {"rank_us", record_.rank_us},
                     {"ranks", record_.ranks},
                     {"since_us", record_.since_us},
                     {"state", record_.ended ? "ended" : "running"}};
  return [&env, path = paths.history(), text = json.dump_any() + "\n"] {
    static_cast<void>(env.replace_text(path, text).ok());
  };
}

FailureHistory FailureTally::so_far(std::int64_t now_us) const {
  const DeviceHistory history{
      .failures = record_.failures,
      .device_seconds = static_cast<double>(record_.rank_us + newest_rank_us(record_, now_us)) / 1e6};
  return history.of(static_cast<double>(record_.ranks));
}

std::string sentence_of(const RecoveryRecord& record) {
  const std::string place = record.resumed_from == "ram"    ? "in RAM"
                            : record.resumed_from == "disk" ? "on disk"
                                                            : "which is the start";
  const std::string spares = record.spares_after == 0 ? ""
                                                      : fmt::format(" and {} spare{}", record.spares_after,
                                                                    record.spares_after == 1 ? "" : "s");
  const std::uint64_t again = record.step_before - std::min(record.step_before, record.resumed_step);
  // All may be there again: one stood still for longer than the others wait.
  const std::string lost = record.lost.empty() ? "the ranks lost each other" : "lost " + record.lost;
  std::string fault = record.verdict.empty() ? lost : fmt::format("{}; {}", record.verdict, lost);
  const int came = record.ranks_after - static_cast<int>(record.before.members.size());
  if (record.wanted > 0) {
    fault = record.not_grown.empty() ? fmt::format("{} new rank{}", came, came == 1 ? "" : "s")
                                     : fmt::format("no new ranks ({})", record.not_grown);
  }
  const std::string steps_again =
      again == 0 ? "" : fmt::format("; {} step{} again", again, again == 1 ? "" : "s");
  if (record.goes_back && record.faults == 0)
    return fmt::format("{} rank{} on from step {} {}{}", record.active_after,
                       record.active_after == 1 ? " goes" : "s go", record.resumed_step, place, steps_again);
  if (record.wanted > 0 || record.active_after > record.active_before) {
    return fmt::format("{} at step {}: {} ranks go on, {} before{}, from step {} {}", fault,
                       record.step_before + 1, record.active_after, record.active_before, spares,
                       record.resumed_step, place);
  }
  return fmt::format("{} at step {}: {} of {} ranks go on{}, from step {} {}{}", fault,
                     record.step_before + 1, record.active_after, record.active_before, spares,
                     record.resumed_step, place, steps_again);
}

}  // namespace holdfast::run
