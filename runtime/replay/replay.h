// Computes one recorded step of a run again, with any number of ranks, and compares it with what the run
// recorded. The state before the step is the newest whole checkpoint or the initial weights; the steps in
// between are computed as well. It only reads the run directory: it takes no claim, and writes no log, no
// save and no shared memory, so the run may be training meanwhile.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runtime/config/loader.h"
#include "runtime/core/result.h"
#include "runtime/data/loader.h"
#include "runtime/integrity/op_checks.h"
#include "runtime/replay/replay_source.h"
#include "runtime/replay/step_session.h"

namespace holdfast::replay {

// Looks up which samples the lanes of a step use, without a loader.

// LaneSamples describes the samples of one lane in one step.
struct LaneSamples {
  SampleId first = {};
  std::vector<std::int32_t> tokens = {};  // the first tokens of that sample
  std::uint64_t counted_targets = 0;      // of all samples of the lane
};

// Returns the samples of a step, by lane. `cursor`: global position of the first sample of the step. Reads
// all samples of the step. ExitCode::data as DataSet::read().
Result<std::vector<LaneSamples>> samples_of_step(const DataSet& data, std::uint64_t seed,
                                                 const BatchShape& shape, std::uint64_t cursor,
                                                 std::int64_t vocabulary);

struct ReplayRequest {
  std::string run_directory;
  std::uint64_t step = 0;                // counted from 1
  std::vector<Override> overrides = {};  // replay_config()
  bool checks = false;                   // look at the results of every op of the step
  // Both are called on each rank, right before the step is computed, when all steps in between have been, and when it has been
  // computed; they may be empty. An error, which all ranks return together, ends the replay. Not together with `checks`.
  std::function<Result<void>(StepSession&session)> before_step = {}, after_step = {};
};

// ReplayedLane holds what one lane adds to the step.
struct ReplayedLane {
  int lane = 0;
  std::vector<double> loss_sums = {};  // by microbatch
  LaneSamples samples = {};

  double loss() const;    // mean over the lane's targets that count; 0 if none counts
  Digest digest() const;  // of the bits of `loss_sums`
};

// ReplayedStep is the step as it was computed again, beside its record. Complete on rank 0 alone.
struct ReplayedStep {
  std::uint64_t step = 0;
  ReplaySource source = {};
  std::vector<SourceConfig> sources = {};  // data files, which LaneSamples refer to by index
  RecordedNumbers computed = {};
  std::vector<ReplayedLane> lanes = {};          // by lane
  std::optional<RecordedNumbers> recorded = {};  // none: the run ended in this step, by numbers
  std::vector<std::string> differing = {};       // names of the numbers whose bits differ
  std::vector<RankChecks> checks = {};           // by rank; empty unless they were asked for
  // First step since `source.step` that differs from its record; 0: none before `step`.
  std::uint64_t first_difference = 0;
  // Sentence of the error of ExitCode::numerics with which the step ended; empty: it was made. The numbers
  // that it has not come to are NaN.
  std::string failure = {};

  bool is_same() const { return differing.empty(); }
};

// Computes the step. All ranks call it together. Errors, which all ranks return but for those of the data:
//   config         no such step, overrides that change numbers, a layout that the ranks cannot run
//   data           a data file is missing, or not the one that the run used
//   checkpoint     no state leads to the step (find_replay_source)
//   numerics       a step before the wanted one is not finite
//   does_not_fit, communication
Result<ReplayedStep> replay_step(const SessionInputs& inputs, const ReplayRequest& request);

}  // namespace holdfast::replay
