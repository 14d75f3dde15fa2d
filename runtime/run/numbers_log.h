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

// VerdictKind, VerdictAction and VerdictSubject are what a verdict says: VerdictEvent::what, action and of. A log may have other values.
enum class VerdictKind : std::uint8_t {
  fine,        // no verdict is written
  nonfinite,   // loss or norm is NaN or infinite
  spike,       // loss or norm is far above the window
  exploded,    // loss or norm is many times the usual one: no update is made with it
  drift,       // the loss has risen over many steps; nothing is wrong with this step in particular
  dead,        // the norm is exactly 0 although targets count and the loss is not 0
  corruption,  // hardware gave other numbers than it should
};
enum class VerdictAction : std::uint8_t {
  none,           // make the update
  redo,           // compute the step again from the same state and data, without an update
  clip,           // make the update with gradients scaled down to median_norm()
  skip,           // the step counts, its update is not made: NumbersHistory::skip()
  stop,           // end the run, exit code 20
  rollback,       // go back to an older state; after a spike, without the data up to this step
  evict,          // ranks leave; the others make the step without them
  save_and_stop,  // stop, and save the state that the step began from
};
enum class VerdictSubject : std::uint8_t { loss, grad_norm, state, update, links };

// The names of these in the log.
constexpr std::string_view name_of(VerdictKind kind) {
  constexpr std::string_view names[] = {"fine",  "nonfinite", "spike",     "exploded",
                                        "drift", "dead",      "corruption"};
  return names[static_cast<std::size_t>(kind)];
}
constexpr std::string_view name_of(VerdictAction action) {
  constexpr std::string_view names[] = {"none", "redo",     "clip",  "skip",
                                        "stop", "rollback", "evict", "save_and_stop"};
  return names[static_cast<std::size_t>(action)];
}
constexpr std::string_view name_of(VerdictSubject subject) {
  constexpr std::string_view names[] = {"loss", "grad_norm", "state", "update", "links"};
  return names[static_cast<std::size_t>(subject)];
}

// Returns whether the verdict is about hardware: the same numbers were not the same again.
bool is_of_hardware(const VerdictEvent& verdict);
// Returns "rank 1 (host a)"; empty if the verdict names no rank.
std::string rank_of(const VerdictEvent& verdict);

// SuspectHardware holds what was found about the hardware of one rank on one host.
struct SuspectHardware {
  std::string host = {};                           // empty: not known which
  std::optional<int> rank = {};                    // absent: not known which
  std::vector<std::uint64_t> computed_steps = {};  // whose numbers it computed wrong, ascending
  std::vector<std::uint64_t> memory_steps = {};    // after which its memory had changed by itself, ascending
  // Steps at which links changed gradients between ranks, ascending; where there is a rank, all of them were its links.
  std::vector<std::uint64_t> link_steps = {};
  std::vector<std::uint64_t> evicted_steps = {};  // of these, at which it had to leave, ascending

  std::size_t findings() const { return computed_steps.size() + memory_steps.size() + link_steps.size(); }
};

struct NumbersLog {
  // The verdicts are in the order of the log. Of a step that was computed again after a recovery the last one
  // counts, and a start forgets those behind the step that it resumes from. Verdicts about hardware, or that took
  // the run back, all stay.
  std::vector<VerdictEvent> verdicts = {};

  // Takes the next event of the log. What is no start and no verdict changes nothing.
  void take(const Json& event);

  // Returns the steps with this action that are not about hardware, ascending.
  std::vector<std::uint64_t> steps_with(std::string_view action) const;
  // Returns how many steps were computed more than once before their update, to compare the bits.
  std::size_t compared_steps() const;
  // Returns a record for each rank and host that a verdict names, by host and rank; those that are not known
  // come first.
  std::vector<SuspectHardware> hardware() const;

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
