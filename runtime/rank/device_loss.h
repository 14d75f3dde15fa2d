// Ends a rank whose process has lost its device.
#pragma once

#include <cstdint>
#include <string>

#include "parallel/comm/communicator.h"
#include "runtime/core/result.h"
#include "runtime/os/env.h"

namespace holdfast::rank {

// LeavingRank holds the facts about a rank that has to leave the run.
struct LeavingRank {
  Env& env;
  const Communicator& communicator;
  std::string run_directory;
  std::uint64_t step = 0;  // newest step that is done
};

// Ends this process by SIGKILL after it has written the error to stderr, because no call into the device's
// driver is certain to return. Its peers see an ordinary death. Rank 0 records the reason in status.json, but
// does not overwrite the record of a run that has finished or was saved.
void end_without_device(const LeavingRank& rank, const Error& error);

}  // namespace holdfast::rank
