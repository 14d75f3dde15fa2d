// AuditedStep: what is known of a step at which a check of hardware failed: a lane audit, or a product with a known
// result.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/run/event.h"
#include "runtime/train/step_attempt.h"

namespace holdfast::train {

struct AuditedStep {
  Attempt attempt = {};  // the last one, whose gradients are those in memory
  // The wrong numbers last: no attempt of this step can be trusted while that rank takes part.
  bool lasts = false;
  // Newest step whose state no wrong numbers of that rank can be in, as far as audits say; 0: they say nothing.
  std::uint64_t sound_step = 0;
  std::vector<int> to_blame = {};  // ranks of the communicator, ascending; empty: it is not known
  // The one rank to blame has computed wrong numbers before, within verdict.findings_window.
  bool is_repeated = false;
  VerdictEvent report = {};  // without time_us and action
};

}  // namespace holdfast::train
