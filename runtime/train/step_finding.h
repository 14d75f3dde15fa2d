// Finds what is to blame for a step in doubt, from what each rank knows about it: the microbatch whose loss is the
// worst, the rank whose bits differ.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "runtime/integrity/hardware_findings.h"
#include "runtime/run/event.h"
#include "runtime/train/step_attempt.h"
#include "runtime/train/worker.h"

namespace holdfast::train {

// MicrobatchLoss is the loss of one microbatch: the sum over its targets, as the device made it.
struct MicrobatchLoss {
  int lane = -1, microbatch = -1;
  bool is_finite = true;
  double loss = 0.0;  // of a finite one

  static void visit_fields(auto& self, auto&& visit) {
    visit("lane", self.lane);
    visit("microbatch", self.microbatch);
    visit("is_finite", self.is_finite);
    visit("loss", self.loss);
  }
};

// StepFinding is what one rank knows about a doubtful step.
struct StepFinding {
  int rank = 0;  // global
  std::string host = {};
  // True where its bits are not the same in all attempts: those of its microbatches' losses, and of its sums of
  // gradients, which the gradients of many ranks go into.
  bool losses_differ = false, gradients_differ = false;
  bool restored_parameters = false;          // Attempt::restored_parameters, of any attempt
  std::optional<MicrobatchLoss> worst = {};  // of its microbatches; only where there is the head
  OwnHardware hardware = {};

  static void visit_fields(auto& self, auto&& visit) {
    visit("rank", self.rank);
    visit("host", self.host);
    visit("losses_differ", self.losses_differ);
    visit("gradients_differ", self.gradients_differ);
    visit("restored_parameters", self.restored_parameters);
    visit("worst", self.worst);
    visit("hardware", self.hardware);
  }
};

// Returns what this rank knows after the attempts. `bits`: of all attempts; `attempt`: the last one.
StepFinding finding_of(Worker& worker, const Attempt& attempt, std::span<const AttemptBits> bits,
                       bool restored_parameters);

// Names the microbatch that numbers which are too high, or not finite, come from, with its samples. `findings`: by
// rank.
void name_microbatch(Worker& worker, std::span<const StepFinding> findings, VerdictEvent& report);

// StepBlame says which rank is to blame for attempts that differ, if one alone may be.
struct StepBlame {
  bool by_parameters = false;       // some rank computed with other parameters than their owners'
  std::optional<int> culprit = {};  // rank of the communicator
};

// Names the rank that is to blame, if one alone may be: the one that computed with other parameters than the
// owners', else the one whose losses differ. Of a copy of the model on several ranks only the last stage has
// losses, and any of them may have computed what made them differ.
StepBlame name_rank(std::span<const StepFinding> findings, bool copies_have_one_rank, VerdictEvent& report);

}  // namespace holdfast::train
