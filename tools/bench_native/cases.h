// The cases of `holdfast bench`. Each prints a table on stdout and returns its figures.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/config/loader.h"
#include "runtime/core/json.h"
#include "runtime/core/tensor.h"
#include "runtime/measure/measured_device.h"
#include "runtime/os/env.h"
#include "runtime/os/io_engine.h"
#include "tools/bench_native/op_samples.h"

namespace holdfast::bench {

// bench op: every implementation of one op on the shapes that models call it with, each compared with the
// limits of the machine.
struct OpCaseOptions {
  std::string name;                 // of the op, or "all"
  std::string implementation = {};  // empty = all that this processor runs
  DType dtype = DType::fp32;
  MeasuredDeviceOptions device = {};
  std::optional<SampleSizes> sizes = {};  // empty = those of the device
  bool algorithms = false;         // of the GPU's library for a matrix product, instead of implementations
  std::string plan = {};           // file for those that beat the library's choice; empty = none
  std::string shape = {};          // only samples whose shape or use contains it
  std::int64_t milliseconds = 40;  // for one implementation on one shape
};

Result<Json> run_op_case(Env& env, const OpCaseOptions& options);

// bench step: where the time of a training step goes, op by op, each compared with its own limit.
struct StepCaseOptions {
  std::string config_path = {};  // as of load_bench_run
  std::vector<Override> overrides = {};
  std::int64_t warmup_steps = 3;
  std::int64_t steps = 10;
  std::int64_t limit_ms = 60;  // of each measurement of a limit
};

Result<Json> run_step_case(Env& env, const StepCaseOptions& options);

// bench optimizer: the update of all parameters of a model as the trainer launches it, against the rate of
// memory.
struct OptimizerCaseOptions {
  std::string preset = "gpt2-124m";
  DType dtype = DType::fp32;     // bf16: the update also writes the working weights
  std::string moments = "fp32";  // as optimizer.moments
  MeasuredDeviceOptions device = {};
  std::int64_t updates = 20;
  std::int64_t limit_ms = 400;
};

Result<Json> run_optimizer_case(Env& env, const OptimizerCaseOptions& options);

// bench loader: tokens per second of the data loader from each format, cold and warm, against what the
// fastest step consumes.
struct LoaderCaseOptions {
  std::int64_t tokens = std::int64_t{1} << 24U;  // of each file
  std::int64_t sequence_length = 64;
  std::int64_t microbatch_size = 4;
  std::int64_t steps = 20;  // of the training that the loader is compared with
};

// Writes a file of each format, reads every sample once in the order of an epoch, first with nothing of the
// file in memory, then again; then trains llama-15m in bf16 for a few steps, the fastest step of all presets.
Result<Json> run_loader_case(Env& env, const LoaderCaseOptions& options);

// bench checksum: CRC32C on one thread, as checkpoints use it, and what both ends of a connection between
// ranks do to authenticate a replica (runtime/os/sealed_session.h), on bytes in a cache and in memory.
struct ChecksumCaseOptions {
  std::int64_t milliseconds = 100;  // for each figure
};

Result<Json> run_checksum_case(Env& env, const ChecksumCaseOptions& options);

// bench disk: how fast checkpoints get to a disk and back, beside the I/O queue alone and beside what a
// program does that writes through the page cache and asks for durability at the end.
struct DiskCaseOptions {
  std::string directory;  // on the disk in question; empty = that of the system's temporary files
  std::int64_t mebibytes = 1024;
  std::int64_t depth = 16;
  std::int64_t rounds = 3;
  IoBackend backend = IoBackend::automatic;
};

// Returns bytes per second, of each round.
Result<Json> run_disk_case(Env& env, const DiskCaseOptions& options);

}  // namespace holdfast::bench
