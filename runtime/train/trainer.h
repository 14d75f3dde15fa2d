// Trainer is the training loop of one rank on a worker that is ready: steps, evaluation, and the ways to end. Its saves
// are in training_saves.h.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "checkpoint/store.h"
#include "runtime/rank/train_inputs.h"
#include "runtime/run/claim.h"
#include "runtime/run/requests.h"
#include "runtime/save/save_cadence.h"
#include "runtime/save/state_saver.h"
#include "runtime/save/uploads.h"
#include "runtime/train/evaluation.h"
#include "runtime/train/growth.h"
#include "runtime/train/progress.h"
#include "runtime/train/step.h"
#include "runtime/train/straggler_watch.h"
#include "runtime/train/trace_recording.h"
#include "runtime/train/training_saves.h"

namespace holdfast::train {

// StepsEnd says how the steps of a rank have ended.
struct StepsEnd {
  enum class How {
    finished,  // the last step is saved
    saved,     // on request: the state is saved, and the run can go on later
    sealed,    // the state is sealed for another start
    paused,    // the state is in a RAM snapshot or on the disk, so that new ranks can be taken in
    verdict,   // `verdict` ends the steps; the caller follows it, and then calls Trainer::end_by_verdict()
    fault,     // `error` ends them
  };
  How how = How::fault;
  std::optional<StepsVerdict> verdict = {};
  // The rest is set after a fault.
  Error error = {};
  GivenUpSaves saves = {};    // the state is at the worker's step
  std::int64_t ended_ns = 0;  // Env::monotonic_ns()
  // Time of the vote that announced that the leader starts new ranks, if that was the last one; 0: it was not.
  std::int64_t starts_ranks_ns = 0;
  // Set by a verdict: all ranks go back without a new group, because nobody leaves.
  bool goes_back_together = false;
};

class Trainer {
 public:
  explicit Trainer(TrainingParts parts);

  // Runs until the last step, a request to stop, a verdict, or an error. All ends but a fault are equal on all ranks.
  StepsEnd run();
  // Ends the steps by `error` after a verdict that all ranks have followed. `together`: all ranks go back without a new
  // group, so that what is under way beside the steps ends first. `action`: of that verdict; it may ask for a save.
  StepsEnd end_by_verdict(const Error& error, bool together, VerdictAction action);

 private:
  Result<StepsEnd::How> run_steps();
  Result<bool> stops_before_a_step();
  Result<StepOutcome> step();
  bool grows(const SaveDue& due);
  bool time_is_up() const;
  bool evaluation_due(std::uint64_t step) const;
  Result<void> evaluate();
  Result<void> tell_shadows(std::uint64_t step);
  Result<void> while_saving(const std::function<Result<void>()>& work);
  Result<bool> seal_for_another_start(const StepOutcome& outcome);
  Result<void> leave_steps();
  Result<void> save_by_verdict();
  Result<StepsEnd::How> end(StepsEnd::How how);
  StepsEnd fault(const Error& error);
  // Keeps the first error that only this rank has (for example, its ledger has no room); the next vote
  // carries it to all.
  void keep(const Result<void>& result);

  TrainingParts parts_;
  const RankContext& rank_;
  Result<void> trouble_;
  TrainingSaves saves_;
  TraceRecording trace_;
  StragglerWatch stragglers_;
  std::int64_t longest_step_ns_ = 0;
  std::int64_t longest_evaluation_ns_ = 0;
  std::int64_t starts_ranks_ns_ = 0;  // StepsEnd::starts_ranks_ns
  std::int64_t saving_ns_ = 0;        // that training has waited for saves since the newest step
  bool reported_unsealed_ = false;
  std::optional<StepsVerdict> verdict_;  // that ends the steps
};

}  // namespace holdfast::train
