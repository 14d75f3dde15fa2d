// TrainRun's part for the state that an epoch begins with: from RAM, from the disk, or made afresh.
#include "checkpoint/candidates.h"
#include "checkpoint/find_checkpoint.h"
#include "checkpoint/lineage.h"
#include "checkpoint/ram_tier.h"
#include "runtime/elastic/generation.h"
#include "runtime/elastic/train_run_internal.h"
#include "runtime/os/console.h"
#include "runtime/rank/watch.h"
#include "runtime/run/run_directory.h"
#include "runtime/save/save.h"

namespace holdfast::elastic {

SourceFinder TrainRun::source_of_world() {
  return SourceFinder({.inputs = group_.world(),
                       .waiter = group_.waiter(),
                       .config = setup_.config,
                       .in_place = journal_.recovery().has_value(),
                       .domains = group_.domains(),
                       .check = journal_.claim_check()});
}

SourceFinder TrainRun::source_of_active() {
  return SourceFinder({.inputs = group_.active(),
                       .waiter = group_.waiter(),
                       .config = setup_.config,
                       .in_place = journal_.recovery().has_value(),
                       .domains = group_.active_domains(),
                       .check = journal_.claim_check()});
}

// Loads the snapshot that was found. Where it is damaged the next state counts.
Result<void> TrainRun::load_state() {
  worker_->state().data_fingerprint = setup_.data->fingerprint();
  StartPoint& start = setup_.start;
  while (source_of(start) == StateSource::ram) {
    if (group_.leads()) print_line("resuming from {}", name_of(start));
    const Result<void> restored =
        restore_snapshot(worker_->state_view(), *start.snapshot, start.shm_run_id, journal_.changed_links());
    if (restored.ok()) recovery_.inventory.shm_run_id = start.shm_run_id;
    if (restored.ok() || restored.error().code != ExitCode::checkpoint) return restored;
    if (group_.leads()) print_message("RAM snapshot skipped: {}", restored.error().message);
    HF_TRY_VOID(source_of_active().skip_snapshot(start, recovery_.inventory.shm_run_id));
  }
  switch (source_of(start)) {
    case StateSource::nothing:
      return why_unusable(start);
    case StateSource::start:
      return start_afresh();
    default:
      return load_checkpoint();
  }
}

Result<void> TrainRun::load_checkpoint() {
  const StartPoint& start = setup_.start;
  recovery_.inventory.shm_run_id = start.shm_run_id;
  if (group_.leads()) print_line("resuming from {} (step {})", start.checkpoint, start.step);
  const StorageWait storage(launched_.watch, "the checkpoint");
  if (start.content.empty()) return restore_checkpoint(worker_->state_view(), start.checkpoint);
  return restore_parts(worker_->state_view(), start.checkpoint, start.content, *group_.active_domains(),
                       journal_.claim_check());
}

// Enters the generation. One that begins is in RUN/lineage.json before any state is made in it.
Result<void> TrainRun::enter_generation() {
  HF_TRY(const ResumeChanges changes, compare_with_stored(launched_.env, setup_.start, setup_.config));
  std::string numeric = changes.numeric;
  if (!setup_.start.device.empty() &&
      setup_.start.device != setup_.device->identity(precision_of(setup_.config)))
    numeric += numeric.empty() ? "device" : ", device";
  GenerationChoice choice =
      choose_generation(setup_.start, worker_->state(), numeric, numeric_settings(setup_.config));
  worker_->state().generation = choice.generation;
  worker_->state().jumps = std::move(choice.jumps);
  saves_.saves_first = choice.begins && setup_.start.snapshot.has_value();
  if (!choice.begins) return {};
  HF_FAULT_POINT(launched_.faults, "generation.before_publish");
  Result<void> published = journal_.check_claim();
  if (group_.writes() && published.ok()) {
    // A save of the epoch before may still be published by a thread of its store.
    published = saves_.store.has_value() ? saves_.store->replace_lineage(choice.lineage)
                                         : write_lineage(launched_.env, setup_.config.run.directory,
                                                         choice.lineage, journal_.claim_check());
  }
  HF_TRY_VOID(group_.agree(published));
  HF_FAULT_POINT(launched_.faults, "generation.after_publish");
  setup_.start.lineage = std::move(choice.lineage);
  setup_.start.begins.clear();
  if (group_.leads()) {
    print_line("generation {} begins after step {} ({}); what was made beyond it before is discarded",
               choice.generation, step(), setup_.start.lineage.generations.back().reason);
  }
  return {};
}

Result<void> TrainRun::start_afresh() {
  // An earlier run in this directory may have left objects in shared memory.
  if (!setup_.start.shm_run_id.empty())
    HF_TRY_VOID(
        group_.agree(outcome_of(remove_snapshots(launched_.env, digest_of(setup_.start.shm_run_id)))));
  std::string run_id = recovery_.inventory.shm_run_id;  // the run had begun, and begins again
  if (group_.leads() && run_id.empty()) run_id = new_run_id(launched_.env);
  HF_TRY(const std::vector<std::string> ids,
         all_gather_text(group_.active().communicator, group_.waiter(), run_id));
  recovery_.inventory.shm_run_id = ids.front();
  // A run that goes back to its start is the same run.
  const Lineage& lineage = setup_.start.lineage;
  worker_->state().run_id = lineage.goes_back_to_start() ? lineage.run_id : ids.front();
  if (setup_.config.run.initialize_from.empty()) return initialize_weights(worker_->state_view());
  Result<std::optional<FoundCheckpoint>> found =
      find_checkpoint(launched_.env, setup_.config.run.initialize_from);
  Result<void> outcome;
  if (!found.ok()) outcome = found.error();
  if (found.ok() && !found->has_value()) {
    outcome = fail(ExitCode::checkpoint,
                   "run.initialize_from: {} holds no checkpoint; expected a run directory or a checkpoint "
                   "(holdfast import makes one of a Hugging Face folder or an llm.c model)",
                   setup_.config.run.initialize_from);
  }
  HF_TRY_VOID(group_.agree(outcome));
  return restore_weights(worker_->state_view(), (*found)->checkpoint.directory());
}

}  // namespace holdfast::elastic
