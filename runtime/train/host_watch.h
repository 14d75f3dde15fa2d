// What the ranks of a run on several hosts tell their guards, so that these can hear each other, and what the
// membership learns from them (watchdog/host_table.h).
#pragma once

#include "runtime/train/train_run.h"

namespace holdfast {

// Once, of all launched ranks, with a config that all have agreed on. On one host, without a guard or without
// membership it changes nothing. Errors: of the communicator; where a table cannot be made, that host does
// without, and says so.
Result<void> join_hosts(const TrainInputs& inputs, const Waiter& waiter, const WatchdogConfig& config);

}  // namespace holdfast
