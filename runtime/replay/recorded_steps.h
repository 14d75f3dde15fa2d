// Reads the steps that the log of a run records, and compares a step that was computed again with its record.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "runtime/core/digest.h"
#include "runtime/core/result.h"
#include "runtime/os/env.h"
#include "runtime/run/run_directory.h"

namespace holdfast::replay {

// RecordedNumbers holds the numbers of a step that have the same bits wherever it is computed.
struct RecordedNumbers {
  double loss = 0.0, grad_norm = 0.0, learning_rate = 0.0;
  Digest data = {};  // of the samples of all steps up to this one
};

// Returns whether two numbers have the same bits, or neither of them is finite.
bool is_same_number(double recorded, double computed);
// Returns the names of the numbers whose bits differ, in the order above. The log has null for a number that
// is not finite, so all of those count as equal.
std::vector<std::string> differing_numbers(const RecordedNumbers& recorded, const RecordedNumbers& computed);

struct RecordedStep {
  RecordedNumbers numbers;
  double duration_ms = 0.0;
};

struct RecordedSteps {
  std::uint64_t newest = 0;  // newest step of the run as it goes on now; 0: none
  // Steps of the wanted range, as their last line says. A step of a future that the run has left is not among
  // them, unless the run has made it again.
  std::map<std::uint64_t, RecordedStep> steps = {};
  std::string warning = {};  // a sentence on missing parts of the log; empty: none is missing
};

// Reads the steps from `first` to `last`. The error is that of LogReader::open().
Result<RecordedSteps> read_recorded_steps(Env& env, const RunPaths& paths, std::uint64_t first,
                                          std::uint64_t last);

}  // namespace holdfast::replay
