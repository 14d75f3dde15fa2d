// Trainer is the training loop of one rank on a worker that is ready: steps, evaluation, saves, and the ways
// to end. Its parts are trainer.cc (the steps), trainer_saves.cc, trainer_verdict.cc, and trainer_pause.cc (the
// state is sealed for a resized run or for another start).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>

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
    // Returns whether there is a state to go back to, after a question to all ranks; and records on this rank that the
    // run goes back, and why. Null: no record is kept.
    std::function<Result<bool>(const Rollback&, std::span<const int> leaving_ranks)> can_go_back = {};
    std::function<void(const Rollback&, const std::string&)> record_rollback = {};
    // Time of the vote that announced that the leader starts new ranks now, until the next vote; 0: no such
    // vote.
    std::int64_t* starts_ranks_ns = nullptr;
  };
  explicit Trainer(const Parts& parts);

  // Runs until the last step, a request to stop, or an error. ExitCode::done: the last step is saved.
  // ExitCode::saved: the state is saved and the run can go on later.
  Result<ExitCode> run();
  // Returns whether run() ended before the last step so that new ranks can be taken in: the state is in a RAM
  // snapshot or on the disk, and the run goes on from there. Equal on all ranks.
  bool pauses_for_resize() const { return stands_still_; }
  // Returns whether run() has ended with the state sealed for another start.
  bool ends_for_another_start() const { return ends_for_another_start_; }
  // Returns whether a verdict says that this rank computes wrong numbers. Called after an error.
  bool has_to_leave() const { return has_to_leave_; }
  // Returns how far a verdict takes the run back. Called after an error.
  const std::optional<Rollback>& rollback() const { return rollback_; }
  // Returns whether all ranks go back together, without a new group: nobody leaves. Called after an error.
  bool goes_back_together() const { return goes_back_together_; }
  // Returns StateSaver::unused_slot(). Called after an error.
  std::optional<int> unused_slot() const { return saver_ ? saver_->unused_slot() : std::nullopt; }
  // Returns StateSaver::confirmed_step(), or the step of the snapshot that the state was resumed from. Called after an
  // error.
  std::optional<std::uint64_t> kept_step() const;
  // Cancels the saves and returns their saver, which may have to wait for the disk before it can be
  // destroyed. Called after an error. Null: there is no saver.
  std::unique_ptr<StateSaver> give_up_saves();

 private:
  Result<ExitCode> run_steps();
  bool time_is_up() const;
  Result<bool> stops_before_a_step();
  bool evaluation_due(std::uint64_t step) const;
  Result<StepOutcome> step();
  Error end_by_verdict(VerdictEvent verdict, std::span<const int> leaving_ranks,
                       const std::optional<Rollback>& rollback);
  bool record_rollback(const std::string& reason, std::span<const int> leaving_ranks);
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
  Result<ExitCode> pause_for_resize(bool to_disk);
  Result<void> seal_in_memory(bool to_disk);
  Result<void> leave_steps();
  Result<bool> end_for_another_start(bool to_disk, int hosts_leaving);
  Result<bool> seal_elsewhere(bool to_disk, int hosts_leaving);
  Result<void> prepare_saves();
  Result<void> free_old_snapshots();
  void report_saves();
  void note_save(std::int64_t duration_ns);
  Result<ExitCode> end(ExitCode code);
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
  bool stands_still_ = false, ends_for_another_start_ = false, reported_unsealed_ = false;
  bool has_to_leave_ = false, goes_back_together_ = false;
  std::optional<Rollback> rollback_;
  Result<void> trouble_;
  Uploads uploads_;
};

}  // namespace holdfast::train
