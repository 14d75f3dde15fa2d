// check_numbers() says for each number fault of a run whether a verdict of the run found it, whom that verdict
// named, and how many steps later. Pure.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/core/json.h"
#include "tools/chaos/chaos_record.h"
#include "tools/chaos/suspects.h"

namespace holdfast::chaos {

enum class NumberEnd : std::uint8_t {
  found,     // a verdict came of it
  harmless,  // none did, and the bits of the run are right
  missed,    // none did, and they are not
};
inline constexpr std::size_t number_ends = 3;
std::string_view name_of(NumberEnd end);

struct CheckedNumber {
  NumberEnd end = NumberEnd::missed;
  // Rank that the first verdict named. None: there is none, or the fault is a bad sample, which is nobody's.
  std::optional<NamedRank> named = {};
  std::uint64_t latency_steps = 0;  // to the first verdict
  std::int64_t verdict_us = 0;      // of it; 0: there is none
  std::string verdict = {};         // "corruption, evict"
  // Says whether the run must have the right bits: verdicts that only tell of the loss heal nothing.
  bool is_healed = false;
};

struct NumberCheck {
  std::vector<std::optional<CheckedNumber>> each;  // one for each of run.injected; none: no number fault
  // Sentences about verdicts that no fault explains, and about ranks that were named for the fault of others.
  std::vector<std::string> baseless;
};
// Checks by run.injected, run.number_verdicts and run.same_bits; both lists are in the order of time.
NumberCheck check_numbers(const ChaosRun& run);

// Returns the number fault by which a run may have other bits: one that came where no check is. Empty: there is
// none.
std::string excuse_of(const ChaosRun& run);
// Returns the line about a number fault: "found in the same step (corruption, evict), right rank".
std::string to_text(const CheckedNumber& checked);

// Removes verdicts whose step and kind the undisturbed run has, too: its data are the cause.
void remove_usual(std::vector<VerdictEvent>& verdicts, const std::vector<VerdictEvent>& usual);

// Counts of number faults of one kind.
struct NumberTally {
  std::int64_t injected = 0, same_bits = 0;
  std::array<std::int64_t, number_ends> ends = {};
  std::array<std::int64_t, named_ranks> named = {};
  std::vector<std::uint64_t> latencies_steps = {};  // of those that were found, ascending

  std::optional<std::uint64_t> median() const;  // nearest rank
  std::optional<std::uint64_t> longest() const;
};
struct NumberTallies {
  std::map<ChaosFault, NumberTally> kinds = {};
  std::int64_t baseless = 0;

  void add(const ChaosRun& run);
};
std::string to_text(const NumberTallies& tallies);  // a table for a terminal
Json to_json(const NumberTallies& tallies);

}  // namespace holdfast::chaos
