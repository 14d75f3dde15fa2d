// Tells what two kernels make of the same steps of a run, and what follows from it. Pure.
//
//   ratio of the times   the median over pairs of steps of B's time by A's; a pair is two neighbouring steps, of which A makes the
//                        first one first and B the second one, so that what comes second gains nothing. Its interval of
//                        confidence is that of a median by order statistics (W. J. Conover, Practical Nonparametric
//                        Statistics, section 3.2): no distribution is assumed, and a step during which the machine did something
//                        else does not count for more than others.
//   difference of loss   B's less A's, step by step, of the same samples. Two runs with the same bits have none, so every difference is
//                        B's. How much it means is told by a third run, A in whose first step the last bits of 65,536 weights were
//                        changed: as far from A a run comes by other roundings alone.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "runtime/core/json.h"

namespace holdfast::bench::kernel_kit {

// AbNumbers are those of a step of one side.
struct AbNumbers {
  double loss = std::numeric_limits<double>::quiet_NaN(), grad_norm = loss;
  std::int64_t duration_ns = 0;
};
struct AbStep {
  std::uint64_t step = 0;
  AbNumbers a = {}, b = {};
  std::optional<double> noise_loss = {};  // of A with other last bits
  bool is_timed = false;                  // nothing was inspected beside it, and it was no first one
  bool has_same_bits() const;
};

// AbOrigin is the first result that differs, in the order in which one rank computes. What an update leaves is no result of
// an op that is looked at, so a difference that comes of it is seen where the next step reads it.
struct AbOrigin {
  std::uint64_t step = 0;
  bool is_alike = false;  // A and B compute this op with the same kernel, so what it read was other before
  std::string
      op = {},
      where =
          {};  // "rmsnorm_forward", "rmsnorm_forward in layers.0.attention, in the forward of lane 0, ..."
  int output = 0;
};

struct AbReport {
  std::vector<std::string> kernels =
      {};                              // a line for each op that A and B compute with other implementations
  std::string device = {}, from = {};  // "the initial weights", or a checkpoint
  std::vector<AbStep> steps = {};
  std::optional<AbOrigin> origin = {};  // none: the same bits, or it was not found
  std::string why_no_origin = {};       // an error that kept it from being looked for
  bool has_same_state = true;           // weights and moments after the last step
  std::string ended = {};               // a sentence: a side came to numbers that are not finite; empty: none

  Json json() const;
};

struct AbTimes {
  double a_ms = 0.0, b_ms = 0.0;  // medians
  // B's time by A's, and its interval with a confidence of 95 % at least; an interval without an end where there are too few pairs.
  double ratio = 1.0, low = 0.0, high = std::numeric_limits<double>::infinity();
  int pairs = 0;
  bool is_faster() const { return high < 1.0; }
  bool is_slower() const { return low > 1.0; }
};
AbTimes times_of(const AbReport& report);

struct AbLosses {
  std::uint64_t first_difference = 0;  // step with another loss, norm or result; 0: none
  double largest = 0.0;                // magnitude of the difference of the loss
  // Over the last half of the steps.
  double mean = 0.0, rms = 0.0;
  std::optional<double> noise_rms = {};  // of A with other last bits
};
AbLosses losses_of(const AbReport& report);
// Returns whether no bit of B is another one, as far as was looked.
bool has_same_bits(const AbReport& report);

std::string verdict_of(const AbReport& report);  // a sentence
std::string text_of(const AbReport& report);
// Returns one file of HTML without scripts: the verdict, and curves of loss, difference and time.
std::string page_of(const AbReport& report);

}  // namespace holdfast::bench::kernel_kit
