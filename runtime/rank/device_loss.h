// The end of a rank whose device is lost to its process.
#pragma once

#include <cstdint>
#include <string>

#include "parallel/comm/communicator.h"
#include "runtime/core/result.h"
#include "runtime/os/env.h"

namespace holdfast::inline rank {

// What is known of a rank that must leave.
struct LeavingRank {
  Env& env;
  const Communicator& communicator;
  std::string run_directory;
  std::uint64_t step = 0;  // done so far
};

// By SIGKILL, after the sentence is told, because nothing that would call the device's driver returns for
// certain. Its peers see an ordinary death. Rank 0 leaves the reason in status.json, but not over the record
// of a run that had finished or was saved.
void end_without_device(const LeavingRank& rank, const Error& error);

}  // namespace holdfast::inline rank
