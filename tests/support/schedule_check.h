// schedule_problems() proves any schedule, whatever made it. Pure.
#pragma once

#include <string>
#include <vector>

#include "parallel/pipeline/schedule.h"

namespace holdfast::test {

// Returns the problems of a schedule, one sentence each. A schedule without any is
//   - complete: every microbatch goes forward once and backward once (in one piece or in two) through every
//     chunk of every stage, and every message has its sender and its receiver
//   - bit-safe: forwards, input gradients and weight gradients of each chunk are in the order of
//     microbatches, and the right ones complete a lane
//   - free of deadlock: it ends although a stage waits for its messages, messages of one (source, target,
//     activations or gradients) arrive in the order in which they were sent and are received in that order,
//     and memory is what was planned: with n activation_buffers of a chunk, activations and gradients that
//     arrive for it have n + 1 buffers each. A message waits until its buffer is free, and all messages sent
//     after it wait as well. A buffer is free again after the last action of its microbatch; one of
//     gradients, only when the gradients that this stage sends on have arrived, because those are in the
//     same buffer or, where a backward is in two pieces, in the one of the same number. So an action also
//     waits until the previous contents of its output buffer have arrived: outputs have n buffers, and the
//     gradients that start at the end of the model n + 1.
//   - within activations_in_flight_max and weight_gradients_pending_max of its kind, on every stage.
// A deadlock is searched for only when nothing else is wrong.
std::vector<std::string> schedule_problems(const Schedule& schedule);

}  // namespace holdfast::test
