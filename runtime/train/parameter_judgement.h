// Judges a step at which ranks that must hold the same parameters do not (ParameterDigests). All ranks call it
// together, before the update, and come to the same result.
//
// Copies of trained parameters are made those of their owners again, whose state has been compared with the digests
// of its last update before, and the step is computed again. The rank whose copy that changed is to blame. Frozen
// tensors have changed at some step since they were last compared, so the run goes back to then.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/core/result.h"
#include "runtime/integrity/hardware_findings.h"
#include "runtime/integrity/parameter_digests.h"
#include "runtime/run/event.h"
#include "runtime/train/step_attempt.h"
#include "runtime/train/worker.h"

namespace holdfast::train {

// ParameterRecord says what one rank holds.
struct ParameterRecord {
  std::string host = {};
  int rank = 0;                                            // global
  int data = 0, pipeline = 0, tensor = 0;                  // coordinate
  std::array<std::string, parameter_set_count> sets = {};  // digests by ParameterSet
  bool frozen_changed = false;                             // its frozen tensors are not what they were
  std::uint64_t sound_step = 0;
  OwnHardware hardware = {};

  static void visit_fields(auto& self, auto&& visit) {
    visit("host", self.host);
    visit("rank", self.rank);
    visit("data", self.data);
    visit("pipeline", self.pipeline);
    visit("tensor", self.tensor);
    visit("sets", self.sets);
    visit("frozen_changed", self.frozen_changed);
    visit("sound_step", self.sound_step);
    visit("hardware", self.hardware);
  }
};

// ParameterDissent says who differs in the groups whose members must hold the same.
struct ParameterDissent {
  std::vector<int> to_blame = {};  // ranks of the communicator, ascending; empty: it is not known
  std::vector<int> affected = {};  // all ranks of the groups that do not agree, ascending
  bool in_frozen = false;          // some of what differs is frozen
};

// Returns who differs: a rank whose frozen tensors have changed, or one that a majority contradicts. Of two, or of
// groups that have no majority, it is not known. `records`: by rank. Pure.
ParameterDissent dissent_of(std::span<const ParameterRecord> records);

struct JudgedParameters {
  Attempt attempt = {};                            // the one that counts, if the step does
  bool ends_step = false;                          // no attempt counts
  std::vector<int> leaving_ranks = {};             // of the communicator; only with ends_step
  std::optional<std::uint64_t> trusted_step = {};  // newest step whose state counts, where the run goes back
  VerdictEvent report = {};                        // without time_us
};

// Errors: those of attempt_again().
Result<JudgedParameters> judge_parameters(Worker& worker, const Attempt& first);

}  // namespace holdfast::train
