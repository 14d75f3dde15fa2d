// Chooses what a step of a run is computed again from: a saved state from before the step, and the config
// with which the run made the step. A run begins a generation where its settings change
// (checkpoint/lineage.h), so both are of the generation that the step belongs to. Nothing is written.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "checkpoint/lineage.h"
#include "runtime/config/loader.h"
#include "runtime/core/digest.h"
#include "runtime/core/result.h"
#include "runtime/os/env.h"
#include "runtime/run/run_directory.h"

namespace holdfast::replay {

// Returns the generation in which the run, as it goes on now, made the step. Pure.
std::uint64_t generation_of_step(const Lineage& lineage, std::uint64_t step);
// Returns whether the settings of that generation lead from the state to the step: the state is older than
// the step, and of that generation or the one that it began from, or of one that it rolled back to. Pure.
bool leads_to_step(const Lineage& lineage, const ParentCheckpoint& state, std::uint64_t step);

struct ReplaySource {
  std::string config = {};            // config of the run, as TOML
  std::string config_place = {};      // file that the config is from, for messages
  Lineage lineage = {};               // of the run up to the generation of the step
  std::string checkpoint = {};        // directory; empty: the initial weights
  std::uint64_t step = 0;             // step of that state
  std::string data_fingerprint = {};  // of the data files, in hex; empty: not known
  std::string device = {};       // device that made the checkpoint (Device::identity()); empty: not known
  std::string device_plan = {};  // and what it had planned; empty: not known, or nothing
  std::vector<std::string> skipped = {};  // one sentence for each damaged checkpoint that is nearer

  static void visit_fields(auto& self, auto&& visit) {
    visit("config", self.config);
    visit("config_place", self.config_place);
    visit("lineage", self.lineage);
    visit("checkpoint", self.checkpoint);
    visit("step", self.step);
    visit("data_fingerprint", self.data_fingerprint);
    visit("device", self.device);
    visit("device_plan", self.device_plan);
    visit("skipped", self.skipped);
  }
};

// Returns the source for a step: the newest whole checkpoint from before it, which is verified completely,
// else the initial weights, if the run began with those of its seed. `learning_rate`: that of the step as the
// run recorded it. Of several configs of one generation, which differ in training.steps at most, the one
// counts that has this rate. Errors: ExitCode::checkpoint where no state leads to the step, or no config of
// its generation is left.
Result<ReplaySource> find_replay_source(Env& env, const std::string& run_directory, std::uint64_t step,
                                        double learning_rate);

// Reads the steps that the log of a run records, and compares a step that was computed again with its record.

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

// Makes the config with which a step is computed again: that of the run, with the layout of the ranks at
// hand, and without all that a run writes.

// Chooses the degrees for so many ranks: those of the run if they fit, else data parallelism alone. Where
// `overrides` give a degree, those that they leave out are 1. Pure.
void choose_layout(ParallelConfig& parallel, int ranks, const std::vector<Override>& overrides);

// Returns the config. Only overrides that change no number of the step are accepted: the layout, threads, the
// paths of the data. ExitCode::config for others, all named at once.
Result<LoadedConfig> replay_config(Env& env, const ReplaySource& source, const std::string& run_directory,
                                   int ranks, const std::vector<Override>& overrides);

}  // namespace holdfast::replay
