// Chooses what a step of a run is computed again from: a saved state from before the step, and the config
// with which the run made the step. A run begins a generation where its settings change
// (checkpoint/lineage.h), so both are of the generation that the step belongs to. Nothing is written.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/lineage.h"
#include "runtime/core/result.h"
#include "runtime/os/env.h"

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
  std::string device = {};  // device that made the checkpoint (Device::identity()); empty: not known
  std::vector<std::string> skipped = {};  // one sentence for each damaged checkpoint that is nearer

  static void visit_fields(auto& self, auto&& visit) {
    visit("config", self.config);
    visit("config_place", self.config_place);
    visit("lineage", self.lineage);
    visit("checkpoint", self.checkpoint);
    visit("step", self.step);
    visit("data_fingerprint", self.data_fingerprint);
    visit("device", self.device);
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

}  // namespace holdfast::replay
