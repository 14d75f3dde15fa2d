// TrainRun's part for the state that an epoch begins with: from RAM, from the disk, or made afresh.
#include "checkpoint/candidates.h"
#include "checkpoint/find_checkpoint.h"
#include "checkpoint/lineage.h"
#include "checkpoint/ram_tier.h"
#include "runtime/elastic/generation.h"
#include "runtime/elastic/join.h"
#include "runtime/elastic/train_run_internal.h"
#include "runtime/os/console.h"
#include "runtime/rank/watch.h"
#include "runtime/run/run_identity.h"
#include "runtime/save/save.h"

namespace holdfast::inline elastic {

Result<void> TrainRun::load_state() {
  worker_->state().data_fingerprint = data_->fingerprint();
  while (source_of(start_) == StateSource::ram) {
    HF_TRY(const bool loaded, load_snapshot());
    if (loaded) {
      inventory_.shm_run_id = start_.shm_run_id;
      return {};
    }
    if (recovery_.has_value() && !start_.snapshot.has_value()) {
      StartPoint asked = start_;
      asked.shm_run_id = inventory_.shm_run_id;
      HF_TRY(const std::optional<StorageDomains> domains, domains_of(active()));
      HF_TRY(start_, join_checkpoint_of_run(active(), waiter(), config_, asked, domains, claim_check()));
    }
  }
  const StateSource source = source_of(start_);
  if (source == StateSource::nothing) return fail(ExitCode::checkpoint, "{}", start_.unusable);
  if (source == StateSource::start) return start_afresh();
  inventory_.shm_run_id = start_.shm_run_id;
  if (first_) print_line("resuming from {} (step {})", start_.checkpoint, start_.step);
  const StorageWait storage(launched_.watch, "the checkpoint");
  if (start_.content.empty()) return restore_checkpoint(worker_->state_view(), start_.checkpoint);
  HF_TRY(const std::optional<StorageDomains> domains, domains_of(active()));
  return restore_parts(worker_->state_view(), start_.checkpoint, start_.content, *domains, claim_check());
}

// Enters the generation. One that begins is in RUN/lineage.json before any state is made in it.
Result<void> TrainRun::enter_generation() {
  HF_TRY(const ResumeChanges changes, compare_with_stored(launched_.env, start_, config_));
  std::string numeric = changes.numeric;
  if (!start_.device.empty() && start_.device != device_->identity(precision_of(config_)))
    numeric += numeric.empty() ? "device" : ", device";
  GenerationChoice choice = choose_generation(start_, worker_->state(), numeric, numeric_settings(config_));
  worker_->state().generation = choice.generation;
  saves_first_ = choice.begins && start_.snapshot.has_value();
  if (!choice.begins) return {};
  HF_FAULT_POINT(launched_.faults, "generation.before_publish");
  Result<void> published = check_claim();
  if (writes_ && published.ok())
    published = write_lineage(launched_.env, config_.run.directory, choice.lineage);
  HF_TRY_VOID(agree(published));
  HF_FAULT_POINT(launched_.faults, "generation.after_publish");
  start_.lineage = std::move(choice.lineage);
  start_.begins.clear();
  if (first_) {
    print_line("generation {} begins after step {} ({}); what was made beyond it before is discarded",
               choice.generation, step(), start_.lineage.generations.back().reason);
  }
  return {};
}

Result<void> TrainRun::start_afresh() {
  // An earlier run in this directory may have left objects in shared memory.
  if (!start_.shm_run_id.empty())
    HF_TRY_VOID(agree(outcome_of(remove_snapshots(launched_.env, digest_of(start_.shm_run_id)))));
  std::string run_id = inventory_.shm_run_id;  // the run had begun, and begins again
  if (first_ && run_id.empty()) run_id = new_run_id(launched_.env);
  HF_TRY(const std::vector<std::string> ids, all_gather_text(active().communicator, waiter(), run_id));
  worker_->state().run_id = inventory_.shm_run_id = ids.front();
  if (config_.run.initialize_from.empty()) return initialize_weights(worker_->state_view());
  Result<std::optional<FoundCheckpoint>> found = find_checkpoint(launched_.env, config_.run.initialize_from);
  Result<void> outcome;
  if (!found.ok()) outcome = found.error();
  if (found.ok() && !found->has_value()) {
    outcome = fail(ExitCode::checkpoint,
                   "run.initialize_from: {} holds no checkpoint; expected a run directory or a checkpoint "
                   "(holdfast import makes one of a Hugging Face folder or an llm.c model)",
                   config_.run.initialize_from);
  }
  HF_TRY_VOID(agree(outcome));
  return restore_weights(worker_->state_view(), (*found)->checkpoint.directory());
}

// Loads the snapshot. False: it is not sound, and the one before it counts, if there is one.
Result<bool> TrainRun::load_snapshot() {
  if (first_) print_line("resuming from {}", name_of(start_));
  const Result<void> restored = restore_snapshot(worker_->state_view(), *start_.snapshot, start_.shm_run_id);
  if (restored.ok()) return true;
  if (restored.error().code != ExitCode::checkpoint) return restored.error();
  if (first_) print_message("RAM snapshot skipped: {}", restored.error().message);
  start_.passed_over.push_back(*start_.snapshot);
  start_.snapshot.reset();
  HF_TRY_VOID(join_snapshot(active(), waiter(), config_, start_));
  return false;
}

}  // namespace holdfast::inline elastic
