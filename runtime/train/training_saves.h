// TrainingSaves makes the saves of a run that trains: when one is due, how it begins, what is told of it when it ends,
// and how the state is sealed for a resized run or for another start. A part of the training loop (trainer.h), which
// calls it between two steps, on all ranks together. The state is checked for damage before it is saved.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "checkpoint/store.h"
#include "runtime/rank/train_inputs.h"
#include "runtime/run/claim.h"
#include "runtime/run/requests.h"
#include "runtime/save/disk_tier.h"
#include "runtime/save/save_cadence.h"
#include "runtime/save/state_saver.h"
#include "runtime/save/uploads.h"
#include "runtime/train/evaluation.h"
#include "runtime/train/growth.h"
#include "runtime/train/progress.h"
#include "runtime/train/step.h"
#include "runtime/train/worker.h"

namespace holdfast::train {

// SavePlaces holds where a run saves, from one membership epoch to the next.
struct SavePlaces {
  std::optional<CheckpointStore> store = {};  // set while there is a trainer
  std::unique_ptr<ShardCopies> copies = {};   // null: there are none
  std::optional<DiskTier> tier = {};          // none: checkpoints are in one directory
  std::optional<SaveCadence> cadence = {};    // measures over all epochs; created when the saver is prepared
  bool survives_host = false;                 // replicas of all snapshots are on other hosts
};

// TrainingParts holds what a run trains with in one membership epoch. What it refers to outlives the trainer.
struct TrainingParts {
  Worker& worker;
  SavePlaces& saves;
  Progress& progress;
  StopSource& stop;
  std::optional<HeldOutSet>& held_out;          // none: no evaluation
  std::unique_ptr<SaveRequests> requests = {};  // null: this rank does not write the log
  const Claim* claim = nullptr;                 // claim of the run directory; null: another rank holds it
  std::uint64_t writer = 0;                     // StartPoint::writer
  std::int64_t started_ns = 0;                  // when the program started, for run.stop_after
  std::int64_t startup_ns = 0;                  // what it took to come to the steps
  // RAM snapshot that the state was resumed from and that no checkpoint holds; none: the state came from
  // elsewhere.
  std::optional<SnapshotStep> resumed = {};
  FailureHistory failures = {};       // failures of the run so far, on the rank that chooses intervals
  bool saves_first = false;           // saves to the disk before the first step
  std::optional<Growth> growth = {};  // none: no new ranks are wanted, or another rank decides
};

// StepsVerdict is a verdict that ends the steps, equal on all ranks.
struct StepsVerdict {
  VerdictEvent event = {};  // without time_us
  VerdictAction action = VerdictAction::none;
  std::vector<int> leaving_ranks = {};    // CheckedStep::leaving_ranks
  std::optional<Rollback> rollback = {};  // CheckedStep::rollback
};

// GivenUpSaves is what a fault leaves of the saves.
struct GivenUpSaves {
  // Cancelled. It uses the worker and the store, and may have to wait for the disk before it can be destroyed; null:
  // there is none.
  std::unique_ptr<StateSaver> saver = {};
  std::optional<int> unused_slot = {};          // StateSaver::unused_slot()
  std::optional<std::uint64_t> kept_step = {};  // newest step that all ranks have whole in RAM
};

class TrainingSaves {
 public:
  // `trouble`: gets the first error that only this rank has.
  TrainingSaves(const TrainingParts& parts, Result<void>& trouble);

  // Offers the newest checkpoint for an upload; the first call.
  Result<void> offer_newest();
  // Makes memory for saves that are made beside the steps. Called once, when the state is there, before all functions
  // below.
  Result<void> prepare();
  // Removes the RAM snapshots that the run resumed from where there is no RAM tier: no newer snapshot would
  // ever replace them, and they would take memory until the end of the run. They are removed when the state is
  // on the disk; where the save fails they stay.
  Result<void> free_old_snapshots();

  // Returns the saves that are due after the coming step. A requested save waits for the save before it, so
  // that the next steps do not wait for the disk, and for a growth, which would itself have to wait for the
  // save.
  SaveDue due();
  // Returns what a growth after the coming step has to wait for.
  Growth::Saves under_way(const SaveDue& due) const;
  // Returns what is under way beside the coming step, and tells the watchdog.
  SaveCadence::Step begin_step();
  StateSaver* saver() { return saver_.get(); }  // null: no save is due before the end
  Uploads& uploads() { return uploads_; }
  // Goes on with what is under way after a step, by its votes.
  Result<void> advance(const StepOutcome& outcome);
  void stepped(std::uint64_t step, const SaveCadence::Step& cost);

  // Saves the state after this step. begin() saves while the next steps are made; save() waits until all is complete,
  // as nothing comes after, and an error ends the run. save_at_end() waits for storage that no rank can write, for
  // elastic.input_timeout, unless `gives_up`.
  Result<void> begin(bool to_disk);
  Result<void> save();
  Result<void> save_at_end(const std::function<bool()>& gives_up);
  // Seals the state for a pause of the run; where there is no RAM tier the disk has it.
  Result<void> seal(bool to_disk);
  // Seals the state so that it survives the loss of the hosts that leave, and returns whether this succeeded.
  Result<bool> seal_elsewhere(bool to_disk, int hosts_leaving);
  // Returns, once, the verdict on a state that was found damaged when it was to be saved. That function returned an
  // error.
  std::optional<StepsVerdict> take_verdict() { return std::exchange(verdict_, std::nullopt); }

  // Waits for the saves under way, after a look at the state, because no update follows that would read it: damage is an
  // error, and take_verdict() has it. finish_uploads() waits for uploads, or cancels them.
  Result<void> finish();
  Result<void> finish_uploads(bool cancels);
  void cancel_uploads() { uploads_.cancel(); }
  // Removes the RAM snapshots of a run whose complete state is on the disk. Nothing is saved after it.
  void remove_snapshots();
  GivenUpSaves give_up();
  std::int64_t longest_save_ns() const { return longest_save_ns_; }  // an estimate until the first save

 private:
  Result<void> check_state(bool update_follows);
  void keep_what_is_needed();
  std::uint64_t newest_saved_step() const;
  std::optional<UnsavedWork::Size> unsaved() const;
  Result<void> save_on_request();
  Result<void> seal_in_memory(bool to_disk);
  void answer_requests();
  void report();
  void saved(const SaveReport& report);
  void failed(const SaveReport& report);
  void note_save(std::int64_t duration_ns);

  const TrainingParts& parts_;
  const RankContext& rank_;
  Result<void>& trouble_;
  std::unique_ptr<StateSaver> saver_;  // null: no save is due before the end
  Uploads uploads_;
  std::int64_t longest_save_ns_ = 0;
  std::uint64_t step_asked_for_ = 0;  // newest step whose save was requested; 0: no such save is under way
  bool saved_ = false;
  std::optional<StepsVerdict> verdict_;
};

}  // namespace holdfast::train
