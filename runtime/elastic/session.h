// Session is the run of one rank, from nothing to a trained model: it carries out the phases of session_phase.h, each of
// which is a function here that returns how it ended. What it knows is in objects with a state of their own, and a
// function that needs several of them is one of the session:
//
//   Group         the ranks that are together now, and this rank's part among them
//   RunJournal    what this rank writes about the run, and whether it may
//   EpochMemory   memory that is kept from one epoch to the next
//   RunSaves      where the steps are saved, and the saves that a fault has given up
//   RunRollback   a roll-back that a verdict has decided on
//   GrowBack      how the run gets ranks back
//   StateLoader, SourceFinder   the state that an epoch begins with
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "runtime/elastic/grow_back.h"
#include "runtime/elastic/rollback.h"
#include "runtime/elastic/train_run.h"
#include "runtime/rank/transport_choice.h"
#include "runtime/train/trainer.h"

namespace holdfast::elastic {

class Session {
 public:
  explicit Session(const TrainInputs& inputs);

  // Goes through the phases, and returns the exit code of a run that is finished, or the error that ended it.
  Result<ExitCode> run();
  // Writes what status.json, the event log and the report say about the end. Only the writer of the run directory does so.
  void record_end(const RunEnd& end);
  bool ends_for_another_start() const { return steps_.how == StepsEnd::How::sealed; }

 private:
  Result<PhaseOutcome> run_phase(SessionPhase phase, const Error& fault);
  Result<PhaseOutcome> start();
  Result<PhaseOutcome> run_epoch();
  Result<PhaseOutcome> recover(const Error& fault);
  Result<PhaseOutcome> grow();
  Result<PhaseOutcome> admit();
  Result<PhaseOutcome> dismiss(const Error& fault);
  Result<PhaseOutcome> shrink();
  Result<PhaseOutcome> roll_back();
  Result<PhaseOutcome> leave(const Error& fault);

  // Between two epochs.
  Result<PhaseOutcome> plan_epoch();
  Result<void> rebuild_group();
  void note_kernel_faults(const std::vector<Member>& lost);
  Result<void> leave_out_kernels();
  Result<void> make_device_again();
  Result<void> assign_coordinates(const AssignmentRequest& request);
  Result<void> begin_epoch(Result<RankAssignment> assignment);
  void drop_epoch(const MembershipView* members);
  void drop_worker();

  // An epoch on an active rank.
  Result<EpochEnd> run_active();
  Result<void> build_worker();
  Result<EpochEnd> train();
  void follow_verdict(Trainer& trainer, StepsVerdict verdict);

  // The end of an epoch.
  std::int64_t note_end();
  void note_fault(const Error& fault);
  Error refused(const std::string& what);
  bool may_be_unfit(const Error& fault);
  std::uint64_t step() const { return worker_ ? worker_->state().step : step_; }

  RunSetup setup_;
  RecoveryInventory known_;
  Group group_;
  const TrainInputs& launched_;
  RunJournal journal_;
  EpochMemory memory_;
  JoinedTransport transport_;
  std::unique_ptr<Worker> worker_;
  RunSaves saves_;
  StepsEnd steps_;       // how the steps of the newest epoch ended
  bool evicts_ = false;  // by a verdict that sends a rank away
  RunRollback rollback_;
  GrowBack growth_;
  std::uint64_t step_ = 0;               // newest step while there is no worker
  FaultFacts facts_;                     // those that a phase finds out
  ExitCode exit_code_ = ExitCode::done;  // of a run that is finished
};

}  // namespace holdfast::elastic
