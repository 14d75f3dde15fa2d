// Judges a step in which some link delivered other gradients than were sent (parallel/data/link_digests.h). The step
// is made again: where every link then delivers what is sent, the second attempt counts. All ranks call it together,
// before the update, and come to the same result. It comes before what judges the numbers of ranks: sums of changed
// gradients are no rank's fault.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "runtime/core/result.h"
#include "runtime/integrity/verdict_policy.h"
#include "runtime/run/event.h"
#include "runtime/train/step_attempt.h"
#include "runtime/train/worker.h"

namespace holdfast::train {

struct LinkedStep {
  Attempt attempt = {};                          // the second one, whose gradients are those in memory
  VerdictAction action = VerdictAction::commit;  // or stop: links change gradients again
  std::vector<int> leaving_ranks = {};  // of the communicator: the one that is an end of all of these links
  // Newest step whose state no gradients that they changed can be in, where the run goes back to it.
  std::optional<std::uint64_t> trusted_step = {};
  VerdictEvent report = {};  // without time_us
};

// Errors: those of attempt_again().
Result<LinkedStep> judge_links(Worker& worker, const Attempt& first);

}  // namespace holdfast::train
