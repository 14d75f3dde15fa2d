// bench loader: tokens per second of the data loader from each format, cold and warm, against what the
// fastest step consumes.
#pragma once

#include <cstdint>

#include "runtime/core/json.h"
#include "runtime/os/env.h"

namespace holdfast::inline bench {

struct LoaderCaseOptions {
  std::int64_t tokens = std::int64_t{1} << 24U;  // of each file
  std::int64_t sequence_length = 64;
  std::int64_t microbatch_size = 4;
  std::int64_t steps = 20;  // of the training that the loader is compared with
};

// Writes a file of each format, reads every sample once in the order of an epoch, first with nothing of the
// file in memory, then again; then trains llama-15m in bf16 for a few steps, the fastest step of all presets.
// Prints a table on stdout and returns its figures.
Result<Json> run_loader_case(Env& env, const LoaderCaseOptions& options);

}  // namespace holdfast::inline bench
