// The training loop of one rank over a worker that is ready: steps, evaluation, saving, and the ways to end.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "checkpoint/store.h"
#include "runtime/rank/train_inputs.h"
#include "runtime/run/claim.h"
#include "runtime/run/save_requests.h"
#include "runtime/save/save_cadence.h"
#include "runtime/save/state_saver.h"
#include "runtime/save/uploads.h"
#include "runtime/train/evaluation.h"
#include "runtime/train/growth.h"
#include "runtime/train/progress.h"
#include "runtime/train/trace_recording.h"
#include "runtime/train/worker.h"

namespace holdfast::inline train {

class Trainer {
 public:
  struct Parts {
    Worker& worker;
    CheckpointStore& store;
    Progress& progress;
    StopSource& stop;
    std::optional<HeldOutSet>& held_out;  // none: no evaluation
    std::optional<SaveCadence>& cadence;  // of the epochs before; made when the saver is prepared
    std::optional<DiskTier> tier = {};    // of the checkpoints; none: they are in one directory
    SaveRequests* requests = nullptr;     // null: this rank does not write the log
    const Claim* claim = nullptr;         // of the run directory; null: another rank has it
    bool survives_host = false;           // replicas are all on other hosts
    std::uint64_t writer = 0;             // StartPoint::writer
    std::int64_t started_ns = 0;          // when the program started, for run.stop_after
    // RAM snapshot that the state came from, which no checkpoint has; none: it came from elsewhere.
    std::optional<SnapshotStep> resumed = {};
    FailureHistory failures = {};  // of the run so far, on the rank that chooses intervals
    bool saves_first = false;      // to the disk, before the first step
    Growth* growth = nullptr;      // null: no new ranks are wanted, or this rank does not decide it
    // When a vote said that the rank which decides it starts new ranks now, until the next vote; 0: none did.
    std::int64_t* starts_ranks_ns = nullptr;
  };
  explicit Trainer(const Parts& parts);

  // Until the last step, a request to stop, or an error. Done: the last step is saved. Saved: state is saved,
  // the run can go on later.
  Result<ExitCode> run();
  // Whether it was done before the last step, for new ranks to come: the state is in a RAM snapshot or on the
  // disk, and the run goes on from there. Equal on all ranks.
  bool pauses_for_resize() const { return stands_still_; }
  // Returns whether it has ended with its state sealed for another start.
  bool ends_for_another_start() const { return ends_for_another_start_; }
  // After an error: StateSaver::unused_slot().
  std::optional<int> unused_slot() const { return saver_ ? saver_->unused_slot() : std::nullopt; }
  // After an error: what may have to wait for the disk before it can go; cancelled. Null: there is nothing.
  std::unique_ptr<StateSaver> give_up_saves();

 private:
  Result<ExitCode> run_steps();
  bool time_is_up() const;
  Result<bool> stops_before_a_step();
  bool evaluation_due(std::uint64_t step) const;
  Result<StepOutcome> step();
  Result<void> evaluate();
  // The state after this step: now, or while the next steps are made.
  Result<void> save();
  Result<void> begin_save(bool to_disk);
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
  // Keeps the first error that only this rank met (its ledger has no room): the next vote carries it to all.
  void keep(const Result<void>& result);

  Parts parts_;
  TraceRecording trace_;
  std::unique_ptr<StateSaver> saver_;  // null: nothing is due before the end
  SaveCadence* cadence_ = nullptr;     // there when the saver is prepared
  std::int64_t longest_step_ns_ = 0;
  std::int64_t longest_evaluation_ns_ = 0;
  std::int64_t longest_save_ns_ = 0;  // an estimate until something was saved
  std::uint64_t step_asked_for_ = 0;  // the newest step that somebody asked to save; 0: none is under way
  bool saved_ = false;
  bool stands_still_ = false, ends_for_another_start_ = false, told_unsealed_ = false;
  Result<void> trouble_;
  Uploads uploads_;
};

}  // namespace holdfast::inline train
