// TrainRun implements train_run.h: it holds the state of a rank from its start to its end, and carries out the
// phases of its session (session_phase.h). train_run.cc has the path to the first step and through the epochs,
// train_run_state.cc the sources of their state, train_run_recovery.cc the path from a death to the next epoch,
// train_run_growth.cc the joining of new ranks, train_run_log.cc the log, train_run_rollback.cc verdicts that take the run back, train_run_domains.cc the parts for a
// run.directory that is local to each host. No other file includes it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "runtime/elastic/group.h"
#include "runtime/elastic/prepare.h"
#include "runtime/elastic/recovery_plan.h"
#include "runtime/elastic/run_journal.h"
#include "runtime/elastic/session_phase.h"
#include "runtime/elastic/source.h"
#include "runtime/elastic/train_run.h"
#include "runtime/elastic/train_run_parts.h"
#include "runtime/rank/transport_choice.h"
#include "runtime/train/growth.h"
#include "runtime/train/trainer.h"
#include "runtime/train/worker.h"

namespace holdfast::elastic {

// TrainRun is the run of one rank, from nothing to a trained model. The member functions that return a
// PhaseOutcome are the phases of its session.
class TrainRun {
 public:
  explicit TrainRun(const TrainInputs& inputs)
      : group_(inputs, setup_),
        memory_{.kept = inputs.prepared == nullptr ? memory_.own.memory : inputs.prepared->memory,
                .slots = inputs.prepared == nullptr ? memory_.own.slots : inputs.prepared->slots} {
    recovery_.inventory.launched_ranks = group_.is_joiner() ? 0 : inputs.communicator.size();
    memory_.kept.spoil_reused(inputs.spoil_kept_memory);
  }

  Result<ExitCode> run();

  // Writes what status.json, the event log and the report say about the end. Only the writer of the run
  // directory does so.
  void write_final_status(const RunEnd& end);
  bool ends_for_another_start() const { return steps_.how == StepsEnd::How::sealed; }

 private:
  Result<PhaseOutcome> run_guarded(SessionPhase phase, const Error& fault);
  Error refused(const std::string& what);
  Result<PhaseOutcome> run_phase(SessionPhase phase, const Error& fault);
  bool others_can_go_on() const;
  FaultFacts fault_facts(const Error& fault) const;
  void report_if_unfit(const Error& error) const;
  void follow_unfit_peers(const Error& fault);
  Error error_of_run(const Error& fault) const;
  void leave_run(const Error& error);
  void leave_if_awaited(const RunEnd& end);

  Result<PhaseOutcome> start();
  void print_start() const;
  Result<void> assign_coordinates(const AssignmentRequest& request);
  Result<void> begin_epoch(Result<RankAssignment> assignment);
  Result<void> make_tier();
  void drop_copies();
  Result<PhaseOutcome> run_epoch();
  Result<EpochEnd> run_active();
  void remove_old_snapshots(const std::optional<SnapshotStep>& resumed);
  MemoryTerms memory_terms();
  Result<PhaseOutcome> shrink_to_memory();
  Result<void> build_worker();
  Result<void> show_slow_paths();
  // Returns what finds a state, for all ranks that take part, or for those with coordinates.
  SourceFinder source_of_world();
  SourceFinder source_of_active();
  Result<void> load_state();
  Result<void> load_checkpoint();
  Result<void> enter_generation();
  Result<void> start_afresh();
  Result<EpochEnd> train();
  Result<void> send_last();
  Result<PhaseOutcome> say_finished();

  Result<PhaseOutcome> recover(const Error& fault);
  void note_fault(const Error& fault);
  void begin_record(const std::string& noticed, int active_before);
  void drop_epoch();
  Result<void> rebuild_group();
  void wait_for_given_up_saves();
  void decide_rollback(const Rollback& rollback, const std::string& reason);
  bool disk_goes_back(std::uint64_t trusted_step);
  bool has_nothing_to_lose();
  Result<bool> knows_state(const Rollback& rollback, std::span<const int> leaving_ranks);
  Result<bool> fetch_state(std::uint64_t trusted_step, std::span<const int> leaving_ranks);
  Result<bool> can_go_back(const Rollback& rollback, std::span<const int> leaving_ranks);
  bool decide_to_go_back(const Rollback& rollback, std::span<const int> leaving_ranks,
                         const std::string& reason);
  void follow_verdict(Trainer& trainer, StepsVerdict verdict);
  Result<void> record_rollback();
  Result<void> complete_rollback();
  void begin_to_prove();
  void distrust_state(std::uint64_t trusted_step);
  Result<PhaseOutcome> roll_back();
  Result<PhaseOutcome> plan_epoch();
  void keep_live_state(const MembershipView& of_epoch);
  Result<std::vector<RecoveryInventory>> exchange_inventories();
  void adopt_inventory(const RecoveryInventory& known);
  std::vector<std::string> lost_hosts();
  Result<void> find_recovery_point();

  // Functions for growing back (train_run_growth.cc).
  bool wants_ranks() const;
  bool host_computes_wrong();
  std::int64_t grow_at_ns() const;
  std::optional<Growth> plan_growth();
  std::uint64_t bytes_given_back(const NewRankTask& planned) const;
  Result<void> start_new_ranks();
  GrowthPlan growth_places() const;
  int ranks_wanted() const { return growth_places().wanted; }
  void name_places();
  std::vector<std::string> gpus_of_host() const;
  void note_joiners(const MembershipView& before);
  void note_lost_joiners(const std::vector<Member>& lost);
  void show_places_left_alone(const GrowthPlan& plan);
  Result<PhaseOutcome> grow();
  Result<PhaseOutcome> admit();
  Result<void> join_again();
  Result<void> take_place_on_host();
  void dismiss_joiners(const Error& error);
  void record_for_the_dead();
  void claim_for_the_dead();

  std::uint64_t step() const { return worker_ ? worker_->state().step : recovery_.step; }

  RunSetup setup_;
  Group group_;
  const TrainInputs& launched_ = group_.launched();
  EpochMemory memory_;
  JoinedTransport transport_;
  RunJournal journal_{group_, setup_};
  std::unique_ptr<Worker> worker_;
  RunSaves saves_;
  StepsEnd steps_;  // how the steps of the newest epoch ended; its saves use worker and store
  RecoveryState recovery_;
  RunGrowth growth_;
  ExitCode exit_code_ = ExitCode::done;  // of a run that is finished
};

}  // namespace holdfast::elastic
