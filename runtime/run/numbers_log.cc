#include "runtime/run/numbers_log.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>
#include <span>
#include <utility>

#include "runtime/run/event_reading.h"

namespace holdfast::run {
namespace {

constexpr std::size_t steps_listed = 8;

std::string counted(std::size_t count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

std::string at_steps(const std::vector<std::uint64_t>& steps) {
  return fmt::format("step{} {}", steps.size() == 1 ? "" : "s", list_of(steps));
}

// Adds a clause to a list of them.
void add(std::string& text, const std::string& clause) {
  text += (text.empty() ? "" : ", ") + clause;
}

// Returns the steps that were judged for data or numerics and updated as usual, by kind of the verdict.
std::map<std::string, std::vector<std::uint64_t>> kept_steps(const NumbersLog& numbers) {
  std::map<std::string, std::vector<std::uint64_t>> steps;
  for (const VerdictEvent& verdict : numbers.verdicts) {
    const bool is_kept =
        verdict.action == name_of(VerdictAction::none) || verdict.action == name_of(VerdictAction::redo);
    if (is_kept && !is_of_hardware(verdict)) steps[verdict.what].push_back(verdict.step);
  }
  for (auto& [kind, each] : steps) std::ranges::sort(each);
  return steps;
}

// Returns whether the verdict stays when its step is computed again: it is about hardware, or took the run back, which
// is why the step comes again.
bool stays(const VerdictEvent& verdict) {
  return is_of_hardware(verdict) || verdict.action == name_of(VerdictAction::rollback);
}

std::string sentence_of(const SuspectHardware& record) {
  std::string who = "some rank";
  if (record.rank.has_value())
    who = fmt::format("rank {}{}", *record.rank, record.host.empty() ? "" : " (host " + record.host + ")");
  std::string text;
  if (!record.computed_steps.empty()) {
    add(text, fmt::format("{}{} computed wrong numbers at {}",
                          record.rank.has_value() ? "hardware of " : "hardware: ", who,
                          at_steps(record.computed_steps)));
  }
  if (!record.memory_steps.empty())
    add(text, fmt::format("memory of {} changed by itself at {}", who, at_steps(record.memory_steps)));
  if (!record.link_steps.empty()) {
    add(text, fmt::format("links {} {} changed gradients at {}", record.rank.has_value() ? "of" : "between",
                          record.rank.has_value() ? who : "ranks", at_steps(record.link_steps)));
  }
  if (!record.evicted_steps.empty()) add(text, fmt::format("evicted at {}", at_steps(record.evicted_steps)));
  return text;
}

}  // namespace

bool is_of_hardware(const VerdictEvent& verdict) {
  return verdict.what == name_of(VerdictKind::corruption);
}

std::string rank_of(const VerdictEvent& verdict) {
  if (!verdict.rank.has_value()) return "";
  return fmt::format("rank {}{}", *verdict.rank,
                     verdict.host.has_value() ? " (host " + *verdict.host + ")" : "");
}

void NumbersLog::forget_after(std::uint64_t step) {
  std::erase_if(verdicts, [step](const VerdictEvent& each) { return each.step > step && !stays(each); });
}

void NumbersLog::take(const Json& event) {
  if (const auto start = event_as<StartEvent>(event)) {
    forget_after(start->resumed_from_step.value.value_or(0));
  }
  std::optional<VerdictEvent> verdict = event_as<VerdictEvent>(event);
  if (!verdict.has_value()) return;
  if (verdict->step <= largest_step_ && !is_of_hardware(*verdict)) {
    std::erase_if(verdicts,
                  [&](const VerdictEvent& each) { return each.step == verdict->step && !stays(each); });
  }
  // The steps behind that one come again, and are judged again.
  if (verdict->back_to_step.has_value()) forget_after(*verdict->back_to_step);
  largest_step_ = std::max(largest_step_, verdict->step);
  verdicts.push_back(*std::move(verdict));
}

std::vector<std::uint64_t> NumbersLog::steps_with(std::string_view action) const {
  std::vector<std::uint64_t> steps;
  for (const VerdictEvent& verdict : verdicts)
    if (verdict.action == action && !is_of_hardware(verdict)) steps.push_back(verdict.step);
  std::ranges::sort(steps);
  return steps;
}

std::size_t NumbersLog::compared_steps() const {
  std::set<std::uint64_t> steps;
  for (const VerdictEvent& verdict : verdicts)
    if (verdict.attempts > 1) steps.insert(verdict.step);
  return steps.size();
}

std::vector<SuspectHardware> NumbersLog::hardware() const {
  std::map<std::pair<std::string, std::optional<int>>, SuspectHardware> records;
  for (const VerdictEvent& verdict : verdicts) {
    if (!is_of_hardware(verdict)) continue;
    const std::string host = verdict.host.value_or("");
    SuspectHardware& record = records[{host, verdict.rank}];
    record.host = host;
    record.rank = verdict.rank;
    (verdict.of == name_of(VerdictSubject::state)   ? record.memory_steps
     : verdict.of == name_of(VerdictSubject::links) ? record.link_steps
                                                    : record.computed_steps)
        .push_back(verdict.step);
    if (verdict.action == name_of(VerdictAction::evict)) record.evicted_steps.push_back(verdict.step);
  }
  std::vector<SuspectHardware> sorted;
  for (auto& [who, record] : records) {
    std::ranges::sort(record.computed_steps);
    std::ranges::sort(record.memory_steps);
    std::ranges::sort(record.link_steps);
    std::ranges::sort(record.evicted_steps);
    sorted.push_back(std::move(record));
  }
  return sorted;
}

std::string list_of(const std::vector<std::uint64_t>& steps) {
  const std::span<const std::uint64_t> listed = std::span(steps).first(std::min(steps.size(), steps_listed));
  std::string text = fmt::format("{}", fmt::join(listed, ", "));
  if (listed.size() < steps.size()) text += fmt::format(" and {} more", steps.size() - listed.size());
  return text;
}

std::string summary_of(const NumbersLog& numbers) {
  std::string text;
  const auto add_steps = [&](std::string_view action, std::string_view words) {
    const std::vector<std::uint64_t> steps = numbers.steps_with(action);
    if (!steps.empty())
      add(text, fmt::format("{} {} ({})", counted(steps.size(), "step"), words, list_of(steps)));
  };
  add_steps(name_of(VerdictAction::skip), "skipped");
  add_steps(name_of(VerdictAction::clip), "clipped");
  if (const std::vector<std::uint64_t> steps = numbers.steps_with(name_of(VerdictAction::rollback));
      !steps.empty())
    add(text, fmt::format("went back from {}", at_steps(steps)));
  for (const auto& [kind, steps] : kept_steps(numbers))
    add(text, fmt::format("{} judged {} and kept ({})", counted(steps.size(), "step"), kind, list_of(steps)));
  for (const SuspectHardware& record : numbers.hardware()) add(text, sentence_of(record));
  for (const VerdictAction action : {VerdictAction::stop, VerdictAction::save_and_stop}) {
    const std::vector<std::uint64_t> steps = numbers.steps_with(name_of(action));
    if (!steps.empty()) add(text, fmt::format("ended by the numbers of {}", at_steps(steps)));
  }
  return text;
}

}  // namespace holdfast::run
