// A checker that proves a schedule, whoever wrote it. Pure.
#pragma once

#include <string>
#include <vector>

#include "parallel/pipeline/schedule.h"

namespace holdfast {

// What is wrong, a sentence each; none: the schedule is
//   - complete: every microbatch goes forward once and backward once (in one piece or in two) through every
//     chunk of every stage, and every message has its sender and its receiver
//   - bit-safe: forwards and weight gradients of each chunk are in the order of microbatches, and the right
//     ones complete a lane
//   - free of deadlock: it ends when actions wait for their messages, senders wait for nobody, and messages
//     of one (source, target, activations or gradients) arrive in the order in which they were sent and are
//     received in that order
//   - within activations_in_flight_max of its kind, on every stage.
// A deadlock is searched for only when nothing else is wrong.
std::vector<std::string> schedule_problems(const Schedule& schedule);

}  // namespace holdfast
