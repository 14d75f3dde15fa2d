#include "tools/chaos/number_check.h"

#include <fmt/core.h>

#include <algorithm>
#include <tuple>

#include "runtime/run/numbers_log.h"
#include "tools/chaos/chaos_fault.h"

namespace holdfast::chaos {
namespace {

constexpr std::uint64_t soon_steps = 2;  // a fault that comes once is found within so many, or not at all

bool is_of_state(const VerdictEvent& verdict) {
  return verdict.of == name_of(VerdictSubject::state);
}

// Returns whether other bits at a second attempt, or than those that an update left, led to the verdict.
bool compares_bits(const VerdictEvent& verdict) {
  return is_of_hardware(verdict) || verdict.differing_ranks > 0;
}

bool is_bad_sample(const ChaosInjected& injected) {
  return injected.fault == ChaosFault::bad_sample;
}

// Returns whether the fault may change weights or moments that the rank owns; in fp32 they are parameters, too.
bool fits_state(ChaosFault fault) {
  return fault == ChaosFault::flip_weights || fault == ChaosFault::flip_moments ||
         fault == ChaosFault::flip_parameters || fault == ChaosFault::nan;
}

bool fits(ChaosFault fault, const VerdictEvent& verdict) {
  if (verdict.of == name_of(VerdictSubject::update) || fault == ChaosFault::wrong_rate)
    return verdict.of == name_of(VerdictSubject::update) && fault == ChaosFault::wrong_rate;
  return is_of_state(verdict) ? fits_state(fault) : fault != ChaosFault::flip_moments;
}

// Returns whether the state of the rank changed where no check covers it: its damage reaches the other ranks,
// one of which may then be the one whose parameters differ.
bool is_unseen(const ChaosInjected& injected) {
  const bool of_state = !is_bad_sample(injected) && fits_state(injected.fault);
  return of_state && injected.before_first_update;
}

bool is_always_healed(const ChaosInjected& injected) {
  return promise_of(injected.fault) != NumberPromise::healed_if_found && !is_unseen(injected);
}

class NumberChecker {
 public:
  explicit NumberChecker(const ChaosRun& run) : run_(&run) {
    for (const ChaosInjected& injected : run.injected) {
      std::optional<CheckedNumber> checked;
      if (facts_of(injected.fault).of_numbers) checked.emplace();
      check_.each.push_back(std::move(checked));
    }
  }

  NumberCheck check() {
    for (const VerdictEvent& verdict : run_->number_verdicts) take(verdict);
    for (std::size_t i = 0; i < check_.each.size(); ++i) {
      std::optional<CheckedNumber>& checked = check_.each[i];
      if (!checked.has_value()) continue;
      if (checked->verdict_us == 0 && run_->same_bits) checked->end = NumberEnd::harmless;
      checked->is_healed = checked->is_healed || is_always_healed(run_->injected[i]);
    }
    return std::move(check_);
  }

 private:
  bool came_before(const ChaosInjected& injected, const VerdictEvent& verdict) const {
    return facts_of(injected.fault).of_numbers && injected.time_us <= verdict.time_us + same_moment_us;
  }

  // A verdict on the data of the step explains itself by the sample before anything else.
  static int plausibility(const ChaosInjected& injected, const VerdictEvent& verdict) {
    if (is_bad_sample(injected)) return verdict.step == injected.step && !compares_bits(verdict) ? 2 : 0;
    const bool is_soon =
        injected.fault == ChaosFault::wrong_product_always || verdict.step <= injected.step + soon_steps;
    return is_soon ? 1 : 0;
  }

  // Returns the fault that explains the verdict best. Null: none of those that may does.
  std::optional<std::size_t> best(const VerdictEvent& verdict) const {
    const auto merit_of = [&](std::size_t i) {
      const ChaosInjected& injected = run_->injected[i];
      return std::tuple(plausibility(injected, verdict), fits(injected.fault, verdict),
                        check_.each[i]->verdict_us == 0, injected.time_us);
    };
    std::optional<std::size_t> found;
    for (std::size_t i = 0; i < run_->injected.size(); ++i) {
      const ChaosInjected& injected = run_->injected[i];
      const bool is_its_rank = !verdict.rank.has_value() || injected.rank == *verdict.rank;
      if (!came_before(injected, verdict) || !is_its_rank) continue;
      if (!found.has_value() || merit_of(i) > merit_of(*found)) found = i;
    }
    return found;
  }

  void take(const VerdictEvent& verdict) {
    if (const std::optional<std::size_t> fault = best(verdict); fault.has_value()) {
      settle(*fault, verdict, verdict.rank.has_value() ? NamedRank::right : NamedRank::nobody);
      return;
    }
    VerdictEvent nobody = verdict;
    nobody.rank.reset();
    const std::optional<std::size_t> fault = best(nobody);
    if (fault.has_value()) settle(*fault, verdict, NamedRank::other);
    if (fault.has_value() && is_unseen(run_->injected[*fault])) return;
    check_.baseless.push_back(verdict.rank.has_value()
                                  ? fmt::format("a verdict names rank {}, whose numbers were right: {}",
                                                *verdict.rank, verdict.reason)
                                  : "a verdict came of nothing: " + verdict.reason);
  }

  void settle(std::size_t index, const VerdictEvent& verdict, NamedRank named) {
    const ChaosInjected& injected = run_->injected[index];
    CheckedNumber& checked = check_.each[index].value();
    checked.is_healed = checked.is_healed || compares_bits(verdict);
    if (checked.verdict_us != 0) return;
    checked.end = NumberEnd::found;
    checked.verdict_us = verdict.time_us;
    checked.latency_steps = verdict.step > injected.step ? verdict.step - injected.step : 0;
    checked.verdict = fmt::format("{}, {}", verdict.what, verdict.action);
    if (!is_bad_sample(injected) || named == NamedRank::other) checked.named = named;
  }

  const ChaosRun* run_;
  NumberCheck check_;
};

std::string cell_of(const std::optional<std::uint64_t>& number) {
  return number.has_value() ? std::to_string(*number) : "-";
}

}  // namespace

std::string_view name_of(NumberEnd end) {
  constexpr std::array<std::string_view, number_ends> names = {"found", "harmless", "missed"};
  return names[static_cast<std::size_t>(end)];
}

NumberCheck check_numbers(const ChaosRun& run) {
  return NumberChecker(run).check();
}

std::string excuse_of(const ChaosRun& run) {
  const NumberCheck check = check_numbers(run);
  for (std::size_t i = 0; i < run.injected.size(); ++i) {
    const std::optional<CheckedNumber>& checked = check.each[i];
    if (!checked.has_value() || checked->is_healed) continue;
    return fmt::format("{}: {}", run.injected[i].what, to_text(*checked));
  }
  return "";
}

std::string to_text(const CheckedNumber& checked) {
  std::string text(name_of(checked.end));
  if (checked.end != NumberEnd::found) return text;
  text += checked.latency_steps == 0
              ? " in the same step"
              : fmt::format(" {} step{} later", checked.latency_steps, checked.latency_steps == 1 ? "" : "s");
  text += fmt::format(" ({})", checked.verdict);
  if (!checked.named.has_value()) return text;
  return text + (*checked.named == NamedRank::right   ? ", right rank"
                 : *checked.named == NamedRank::other ? ", another rank named"
                                                      : ", nobody named");
}

void remove_usual(std::vector<VerdictEvent>& verdicts, const std::vector<VerdictEvent>& usual) {
  std::erase_if(verdicts, [&](const VerdictEvent& verdict) {
    return !compares_bits(verdict) && std::ranges::any_of(usual, [&](const VerdictEvent& other) {
      return other.step == verdict.step && other.what == verdict.what;
    });
  });
}

std::optional<std::uint64_t> NumberTally::median() const {
  if (latencies_steps.empty()) return {};
  return latencies_steps[(latencies_steps.size() - 1) / 2];
}

std::optional<std::uint64_t> NumberTally::longest() const {
  if (latencies_steps.empty()) return {};
  return latencies_steps.back();
}

void NumberTallies::add(const ChaosRun& run) {
  const NumberCheck check = check_numbers(run);
  baseless += std::ssize(check.baseless);
  for (std::size_t i = 0; i < run.injected.size(); ++i) {
    const std::optional<CheckedNumber>& checked = check.each[i];
    if (!checked.has_value()) continue;
    NumberTally& tally = kinds[run.injected[i].fault];
    ++tally.injected;
    tally.same_bits += run.same_bits ? 1 : 0;
    ++tally.ends[static_cast<std::size_t>(checked->end)];
    if (checked->named.has_value()) ++tally.named[static_cast<std::size_t>(*checked->named)];
    if (checked->end != NumberEnd::found) continue;
    std::vector<std::uint64_t>& latencies = tally.latencies_steps;
    latencies.insert(std::ranges::upper_bound(latencies, checked->latency_steps), checked->latency_steps);
  }
}

std::string to_text(const NumberTallies& tallies) {
  std::string text =
      fmt::format("{:<24}{:>9}{:>8}{:>10}{:>8}{:>8}{:>8}{:>8}{:>8}{:>6}{:>11}", "wrong numbers", "injected",
                  "found", "harmless", "missed", "right", "other", "nobody", "median", "max", "same bits");
  for (const auto& [fault, tally] : tallies.kinds) {
    text += fmt::format("\n{:<24}{:>9}{:>8}{:>10}{:>8}{:>8}{:>8}{:>8}{:>8}{:>6}{:>11}", facts_of(fault).name,
                        tally.injected, tally.ends[0], tally.ends[1], tally.ends[2], tally.named[0],
                        tally.named[1], tally.named[2], cell_of(tally.median()), cell_of(tally.longest()),
                        tally.same_bits);
  }
  if (tallies.baseless > 0)
    text += fmt::format("\n{} verdict{} had no cause, or named a rank whose numbers were right",
                        tallies.baseless, tallies.baseless == 1 ? "" : "s");
  return text;
}

Json to_json(const NumberTallies& tallies) {
  Json kinds = Json::object();
  for (const auto& [fault, tally] : tallies.kinds) {
    Json kind = {{"injected", tally.injected}, {"same bits", tally.same_bits}};
    for (std::size_t i = 0; i < number_ends; ++i)
      kind[std::string(name_of(static_cast<NumberEnd>(i)))] = tally.ends[i];
    for (std::size_t i = 0; i < named_ranks; ++i)
      kind[std::string(name_of(static_cast<NamedRank>(i)))] = tally.named[i];
    if (const auto median = tally.median(); median.has_value()) kind["median"] = *median;
    if (const auto longest = tally.longest(); longest.has_value()) kind["max"] = *longest;
    kinds[std::string(facts_of(fault).name)] = std::move(kind);
  }
  return {{"kinds", std::move(kinds)}, {"baseless_verdicts", tallies.baseless}};
}

}  // namespace holdfast::chaos
