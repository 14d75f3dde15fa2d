// NumbersLog: the verdicts of a run on the numbers of its steps (event `verdict`), put together from the event
// log: which steps were skipped or computed again, and which hardware gave wrong numbers. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/core/json.h"
#include "runtime/run/event.h"

namespace holdfast::run {

// Names the values that training writes into the fields of the events. A log may have others.
namespace verdict_values {
inline constexpr std::string_view corruption = "corruption";                    // kind
inline constexpr std::string_view none = "none", redo = "redo", clip = "clip";  // action
inline constexpr std::string_view state = "state", update = "update",
                                  links = "links";  // of, beside fields of StepEvent
inline constexpr std::string_view skip = "skip", rollback = "rollback", evict = "evict", stop = "stop";
}  // namespace verdict_values

// Returns whether the verdict blames hardware: the same numbers were not the same again.
bool is_of_hardware(const VerdictEvent& verdict);
// Returns "rank 1 (host a)"; empty if the verdict names no rank.
std::string rank_of(const VerdictEvent& verdict);

// BlamedHardware holds what was found about the hardware of one rank on one host.
struct BlamedHardware {
  std::string host = {};                           // empty: not known which
  std::optional<int> rank = {};                    // absent: not known which
  std::vector<std::uint64_t> computed_steps = {};  // whose numbers it computed wrong, ascending
  std::vector<std::uint64_t> memory_steps = {};    // after which its memory had changed by itself, ascending
  // At which links changed gradients between ranks, ascending; where there is a rank, all of them were its links.
  std::vector<std::uint64_t> link_steps = {};
  std::vector<std::uint64_t> evicted_steps = {};  // of these, at which it had to leave, ascending

  std::size_t findings() const { return computed_steps.size() + memory_steps.size() + link_steps.size(); }
};

struct NumbersLog {
  // The verdicts are in the order of the log. Of a step that was computed again after a recovery the last one
  // counts, and a start forgets those behind the step that it resumes from. Verdicts that blame hardware, or took
  // the run back, all stay.
  std::vector<VerdictEvent> verdicts = {};

  // Takes the next event of the log. What is no start and no verdict changes nothing.
  void take(const Json& event);

  // Returns the steps with this action that do not blame hardware, ascending.
  std::vector<std::uint64_t> steps_with(std::string_view action) const;
  // Returns how many steps were computed more than once before their update, to compare the bits.
  std::size_t compared_steps() const;
  // Returns a record for each rank and host that a verdict blames, by host and rank; those that are not known
  // come first.
  std::vector<BlamedHardware> hardware() const;

 private:
  void forget_after(std::uint64_t step);
  std::uint64_t largest_step_ = 0;
};

// Formats a summary: "1 step skipped (21), hardware of rank 1 (host a) computed wrong numbers at step 20".
// Empty if there are no verdicts.
std::string summary_of(const NumbersLog& numbers);
// Formats at most eight steps: "3, 7, 9", "1, 2, 3, 4, 5, 6, 7, 8 and 4 more".
std::string list_of(const std::vector<std::uint64_t>& steps);

}  // namespace holdfast::run
