// bench disk: how fast checkpoints get to a disk and back, beside the I/O queue alone and beside what a
// program does that writes through the page cache and asks for durability at the end.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/core/json.h"
#include "runtime/os/env.h"
#include "runtime/os/io_engine.h"

namespace holdfast::inline bench {

struct DiskCaseOptions {
  std::string directory;  // on the disk in question; empty = that of the system's temporary files
  std::int64_t mebibytes = 1024;
  std::int64_t depth = 16;
  std::int64_t rounds = 3;
  IoBackend backend = IoBackend::automatic;
};

// Prints a table on stdout and returns its figures: bytes per second, of each round.
Result<Json> run_disk_case(Env& env, const DiskCaseOptions& options);

}  // namespace holdfast::inline bench
