#include "runtime/run/news.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "runtime/core/units.h"
#include "runtime/run/event_reading.h"
#include "runtime/run/run_directory.h"

namespace holdfast::run {
namespace {

std::string number_of_things(std::uint64_t count, std::string_view word) {
  return fmt::format("{} {}{}", count, word, count == 1 ? "" : "s");
}

std::string sentence_of(const StartEvent& start) {
  const std::string ranks = number_of_things(static_cast<std::uint64_t>(std::max(start.ranks, 0)), "rank");
  if (!start.resumed_from_step.value.has_value()) return fmt::format("the run starts on {}", ranks);
  return fmt::format("the run starts again on {}, from step {}{}", ranks, *start.resumed_from_step.value,
                     start.resumed_from == "ram"    ? " in RAM"
                     : start.resumed_from == "disk" ? " on disk"
                                                    : "");
}

std::string sentence_of(const FaultEvent& fault) {
  if (fault.is_aside()) return fmt::format("{} failed: {}", *fault.what, fault.reason);
  const std::string lost = fault.lost.value_or("");
  return lost.empty() ? fault.reason : fmt::format("lost {}: {}", lost, fault.reason);
}

std::string sentence_of(const RecoveryEvent& recovery) {
  const double duration_ms =
      std::visit([](auto number) { return static_cast<double>(number); }, recovery.duration_ms);
  return fmt::format(
      "the run goes on {} with {} of {} ranks{}{}",
      recovery.level == RecoveryEvent::by_launcher ? "by another start" : "in place", recovery.ranks_after,
      recovery.ranks_before,
      std::isfinite(duration_ms) ? " after " + format_seconds(duration_ms * 1e-3) : std::string(),
      recovery.lost_steps == 0 ? ""
                               : fmt::format("; {} again", number_of_things(recovery.lost_steps, "step")));
}

std::string sentence_of(const FinishEvent& finish) {
  if (finish.state != FinishEvent::failed) return fmt::format("{} at step {}", finish.state, finish.step);
  return fmt::format("failed at step {} with exit code {}: {}", finish.step, finish.exit_code, finish.reason);
}

// A sentence is one line.
std::string in_one_line(std::string text) {
  std::ranges::replace_if(
      text, [](char letter) { return letter == '\n' || letter == '\r'; }, ' ');
  return text;
}

}  // namespace

std::optional<News> news_of(const Json& json) {
  News news{.kind = std::string(event_kind(json)),
            .step = event_step(json).value_or(0),
            .time_us = event_time(json),
            .host = text_of(json, "host")};
  if (const auto rank = json.find("rank"); rank != json.end() && rank->is_number_unsigned())
    news.rank = std::to_string(rank->get<std::uint64_t>());
  if (const auto start = event_as<StartEvent>(json)) {
    news.sentence = sentence_of(*start);
    news.step = start->resumed_from_step.value.value_or(0);
  } else if (const auto fault = event_as<FaultEvent>(json)) {
    news.sentence = sentence_of(*fault);
    news.cause = name_of(fault_cause_named(fault->cause));
  } else if (const auto recovery = event_as<RecoveryEvent>(json)) {
    news.sentence = sentence_of(*recovery);
    news.step = recovery->resumed_from_step.value_or(0);
  } else if (const auto drain = event_as<DrainEvent>(json)) {
    news.sentence = fmt::format("host {} is left after step {}{}", drain->host, drain->step,
                                drain->reason.has_value() ? ": " + *drain->reason : std::string());
  } else if (const auto straggler = event_as<StragglerEvent>(json)) {
    news.sentence = straggler->reason;
    news.episode = fmt::format("{} {} {} {}", straggler->of, straggler->rank.value_or(-1),
                               straggler->peer.value_or(-1), straggler->since_step);
    news.is_over = straggler->until_step.has_value();
  } else if (news.kind == VerdictEvent::kind || news.kind == HealthEvent::kind ||
             news.kind == ExcludeEvent::kind || news.kind == KernelLeftOutEvent::kind) {
    news.sentence = text_of(json, "reason");
  } else if (const auto finish = event_as<FinishEvent>(json)) {
    if (finish->reason == another_start_reason) return std::nullopt;
    news.sentence = sentence_of(*finish);
    news.state = finish->state;
    news.exit_code = finish->exit_code;
  } else {
    return std::nullopt;
  }
  news.sentence = in_one_line(std::move(news.sentence));
  return news;
}

}  // namespace holdfast::run
