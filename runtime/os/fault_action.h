// FaultAction: an action of a fault point (fault_point.h), parsed from its text. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "runtime/core/injected_fault.h"
#include "runtime/core/result.h"

namespace holdfast::os {

// Actions at a sample of the data (`data.sample`).
enum class SampleFault : std::uint8_t {
  nan,       // the first activation of the sample has a NaN
  scramble,  // all tokens of the sample are one unlikely token
};

struct FaultAction {
  std::string name = {};    // "kill", "sleep", "flip", ...
  std::int64_t number = 0;  // milliseconds (sleep, touch), code (exit), passes (error; 0: all later ones)
  std::optional<int> reason = {};  // of error: the errno
  double factor = 1.0;             // of scale_rate
  std::optional<DeviceFault> device = {};
  std::optional<Corruption> corruption = {};  // without Corruption::draw
  std::optional<SampleFault> sample = {};
  std::string record = {};  // action as its log line names it: numbers only where they say what was changed
};

// Name of the point that is passed at a sample, and not at a place of the program.
inline constexpr std::string_view sample_point = "data.sample";
// Points of each read of training data, of each shard of a checkpoint that is written, and of each time that a rank
// reads one: each shard that it verifies with others, all of them where it verifies alone, and the state that it loads.
inline constexpr std::string_view read_point = "data.read", write_point = "save.before_shard",
                                  load_point = "load.read";
// Point at which a rank begins to rebuild the group after a death; one that fails there gives up alone.
inline constexpr std::string_view rebuild_point = "recover.begin";
inline constexpr std::string_view all_passes = "always";  // in the place of a number of passes

// Parses the action of a point, whose name is known to exist. Error: a clause that says what is wrong.
Result<FaultAction> parse_fault_action(std::string_view text, std::string_view point);

// Returns a clause that lists the actions.
std::string_view fault_actions();

// Parses a count, an exit code or milliseconds; none: the text is none, or it is too large.
std::optional<std::int64_t> parse_fault_number(std::string_view text);

}  // namespace holdfast::os
