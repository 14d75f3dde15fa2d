// Trainer is the training loop of one rank on a worker that is ready: steps, evaluation, saves, and the ways
// to end. Its parts are trainer.cc (the steps, and how they end), trainer_saves.cc, trainer_verdict.cc, and
// trainer_pause.cc (the state is sealed for a resized run or for another start).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

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
#include "runtime/train/trace_recording.h"
#include "runtime/train/worker.h"

namespace holdfast::train {

// StepsVerdict is a verdict that ends the steps, equal on all ranks.
struct StepsVerdict {
  VerdictEvent event = {};                // without time_us
  std::vector<int> leaving_ranks = {};    // JudgedStep::leaving_ranks
  std::optional<Rollback> rollback = {};  // JudgedStep::rollback
};

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
  // The rest is set after a fault. The saves are cancelled. They use the worker and the store, and may have to wait
  // for the disk before they can be destroyed; null: there are none.
  Error error = {};
  std::unique_ptr<StateSaver> saves = {};
  std::int64_t ended_ns = 0;            // Env::monotonic_ns()
  std::optional<int> unused_slot = {};  // StateSaver::unused_slot(): the state is at the worker's step
  std::optional<std::uint64_t> kept_step = {};  // newest step that all ranks have whole in RAM
  // Time of the vote that announced that the leader starts new ranks, if that was the last one; 0: it was not.
  std::int64_t starts_ranks_ns = 0;
  bool goes_back_together =
      false;                // by a verdict: all ranks go back without a new group, because nobody leaves
  bool is_evicted = false;  // by a verdict: this rank computes wrong numbers
};

class Trainer {
 public:
  struct Parts {
    Worker& worker;
    CheckpointStore& store;
    Progress& progress;
    StopSource& stop;
    std::optional<HeldOutSet>& held_out;  // none: no evaluation
    std::optional<SaveCadence>& cadence;  // kept from the epochs before; created when the saver is prepared
    std::optional<DiskTier> tier = {};    // where checkpoints are; none: in one directory
    SaveRequests* requests = nullptr;     // null: this rank does not write the log
    const Claim* claim = nullptr;         // claim of the run directory; null: another rank holds it
    bool survives_host = false;           // all replicas are on other hosts
    std::uint64_t writer = 0;             // StartPoint::writer
    std::int64_t started_ns = 0;          // when the program started, for run.stop_after
    // RAM snapshot that the state was resumed from and that no checkpoint holds; none: the state came from
    // elsewhere.
    std::optional<SnapshotStep> resumed = {};
    FailureHistory failures = {};  // failures of the run so far, on the rank that chooses intervals
    bool saves_first = false;      // saves to the disk before the first step
    Growth* growth = nullptr;      // null: no new ranks are wanted, or another rank decides
  };
  explicit Trainer(const Parts& parts);

  // Runs until the last step, a request to stop, a verdict, or an error. All ends but a fault are equal on all ranks.
  StepsEnd run();
  // Ends the steps by `error` after a verdict that all ranks have followed. `together`: all ranks go back without a new
  // group, so that what is under way beside the steps ends first.
  StepsEnd end_by_verdict(const Error& error, bool together);

 private:
  Result<StepsEnd::How> run_steps();
  Result<void> finish_saves();
  StepsEnd fault(const Error& error);
  // Notes a verdict that ends the steps, and returns the error with which this rank leaves them.
  Error leave_by(StepsVerdict verdict);
  bool time_is_up() const;
  Result<bool> stops_before_a_step();
  bool evaluation_due(std::uint64_t step) const;
  Result<StepOutcome> step();
  void keep_what_is_needed();
  Result<void> check_state(bool update_follows);
  Result<void> evaluate();
  // Saves the state after this step: save() waits for all of it, begin_save() saves while the next steps are
  // made; save_at_end() waits for storage that no rank can write.
  Result<void> save();
  Result<void> begin_save(bool to_disk);
  Result<void> save_at_end();
  std::optional<UnsavedWork::Size> unsaved() const;
  std::uint64_t newest_saved_step() const;
  bool grows(const SaveDue& due);
  SaveDue due();
  void note_steps_cost(std::uint64_t step, const SaveCadence::Step& cost);
  Result<void> pause_for_resize(bool to_disk);
  Result<void> seal_in_memory(bool to_disk);
  Result<void> leave_steps();
  Result<bool> end_for_another_start(bool to_disk, int hosts_leaving);
  Result<bool> seal_elsewhere(bool to_disk, int hosts_leaving);
  Result<void> prepare_saves();
  Result<void> free_old_snapshots();
  void report_saves();
  void note_save(std::int64_t duration_ns);
  Result<StepsEnd::How> end(StepsEnd::How how);
  Result<void> save_on_request();
  void answer_requests();
  void save_failed(const SaveReport& report);
  void saved(const SaveReport& report);
  void report_uploads();
  // Keeps the first error that only this rank has (for example, its ledger has no room); the next vote
  // carries it to all.
  void keep(const Result<void>& result);

  Parts parts_;
  TraceRecording trace_;
  std::unique_ptr<StateSaver> saver_;  // null: no save is due before the end
  SaveCadence* cadence_ = nullptr;     // set when the saver is prepared
  std::int64_t longest_step_ns_ = 0;
  std::int64_t longest_evaluation_ns_ = 0;
  std::int64_t longest_save_ns_ = 0;  // an estimate until the first save
  std::uint64_t step_asked_for_ = 0;  // newest step whose save was requested; 0: no such save is under way
  bool saved_ = false;
  bool reported_unsealed_ = false;
  std::int64_t starts_ranks_ns_ = 0;     // StepsEnd::starts_ranks_ns
  std::optional<StepsVerdict> verdict_;  // that ends the steps
  Result<void> trouble_;
  Uploads uploads_;
};

}  // namespace holdfast::train
