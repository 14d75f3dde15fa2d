// bench checksum: CRC32C on one thread, as checkpoints use it, and what both ends of a connection between
// ranks do to authenticate a replica (runtime/os/sealed_session.h), on bytes in a cache and in memory.
#pragma once

#include <cstdint>

#include "runtime/core/json.h"
#include "runtime/os/env.h"

namespace holdfast::inline bench {

struct ChecksumCaseOptions {
  std::int64_t milliseconds = 100;  // for each figure
};

// Prints a table on stdout and returns its figures.
Result<Json> run_checksum_case(Env& env, const ChecksumCaseOptions& options);

}  // namespace holdfast::inline bench
