#include "runtime/elastic/state_loader.h"

#include <fmt/core.h>

#include <algorithm>

#include "checkpoint/find_checkpoint.h"
#include "checkpoint/lineage.h"
#include "checkpoint/ram_tier.h"
#include "parallel/comm/collectives.h"
#include "parallel/comm/gather.h"
#include "runtime/elastic/join.h"
#include "runtime/elastic/recovery_plan.h"
#include "runtime/os/console.h"
#include "runtime/rank/watch.h"
#include "runtime/run/run_directory.h"
#include "runtime/save/save.h"

namespace holdfast::elastic {
namespace {

// Returns why a new generation begins; empty if the state goes on in generation `current`.
std::string why_one_begins(const Lineage& lineage, std::uint64_t current, const ParentCheckpoint& state,
                           const std::string& numeric, const std::string& settings) {
  if (state.generation == current) return numeric.empty() ? "" : "changed: " + numeric;
  const Generation* const begun = lineage.find(current);
  if (begun != nullptr && begun->settings == settings &&
      (begun->is_rollback ? !lineage.discards(state) : begun->parent == state))
    return "";
  return fmt::format("nothing is left of generation {}", current);
}

}  // namespace

Result<void> StateLoader::load() {
  worker_.state().data_fingerprint = setup_.data->fingerprint();
  StartPoint& start = setup_.start;
  while (source_of(start) == StateSource::ram) {
    if (group_.leads()) print_line("resuming from {}", name_of(start));
    const Result<void> restored =
        restore_snapshot(worker_.state_view(), *start.snapshot, start.shm_run_id, journal_.changed_links());
    if (restored.ok()) known_.shm_run_id = start.shm_run_id;
    if (restored.ok() || restored.error().code != ExitCode::checkpoint) return restored;
    if (group_.leads()) print_message("RAM snapshot skipped: {}", restored.error().message);
    HF_TRY_VOID(
        group_.source_of(group_.active(), journal_.claim_check()).skip_snapshot(start, known_.shm_run_id));
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

Result<void> StateLoader::load_checkpoint() {
  const StartPoint& start = setup_.start;
  known_.shm_run_id = start.shm_run_id;
  if (group_.leads()) print_line("resuming from {} (step {})", start.checkpoint, start.step);
  const StorageWait storage(group_.launched().watch, "the checkpoint");
  if (start.content.empty()) return restore_checkpoint(worker_.state_view(), start.checkpoint);
  return restore_parts(worker_.state_view(), start.checkpoint, start.content, *group_.active_domains(),
                       journal_.claim_check());
}

// Returns whether the device, or what it has planned, gives other bits than the one that the state was made on; all
// ranks return the same. The start has told of another device; of another plan this tells.
Result<bool> StateLoader::is_on_another_device() {
  const StartPoint& start = setup_.start;
  if (changes_device(start, setup_.config, setup_.device->identity(precision_of(setup_.config)))) return true;
  HF_TRY(const std::string difference,
         join_plan_difference(group_.active(), group_.waiter(), *setup_.device, start.device_plan));
  if (difference.empty()) return false;
  if (group_.leads()) {
    print_line(
        "resume: the state was made on another GPU of this kind, which computes {}  (numeric: the steps from "
        "here on may differ in their last bits)",
        difference);
  }
  return true;
}

Result<void> StateLoader::enter_generation() {
  HF_TRY(const ResumeChanges changes,
         compare_with_stored(group_.launched().env, setup_.start, setup_.config));
  HF_TRY(setup_.left_out_anew, left_out_anew(group_.launched().env, setup_.start, setup_.left_out));
  std::string numeric = changes.numeric;
  HF_TRY(const bool on_another_device, is_on_another_device());
  if (on_another_device) numeric += numeric.empty() ? "device" : ", device";
  GenerationChoice choice =
      choose_generation(setup_.start, worker_.state(), numeric, numeric_settings(setup_.config));
  worker_.state().generation = choice.generation;
  worker_.state().jumps = std::move(choice.jumps);
  saves_.save_first(choice.begins && setup_.start.snapshot.has_value());
  if (!choice.begins) return {};
  HF_FAULT_POINT(group_.launched().faults, "generation.before_publish");
  Result<void> published = journal_.check_claim();
  if (group_.writes() && published.ok())
    published = saves_.replace_lineage(choice.lineage, journal_.claim_check());
  HF_TRY_VOID(group_.agree(published));
  HF_FAULT_POINT(group_.launched().faults, "generation.after_publish");
  setup_.start.lineage = std::move(choice.lineage);
  setup_.start.begins.clear();
  if (group_.leads()) {
    print_line("generation {} begins after step {} ({}); what was made beyond it before is discarded",
               choice.generation, worker_.state().step, setup_.start.lineage.generations.back().reason);
  }
  return {};
}

Result<void> StateLoader::start_afresh() {
  // An earlier run in this directory may have left objects in shared memory.
  if (!setup_.start.shm_run_id.empty())
    HF_TRY_VOID(group_.agree(
        outcome_of(remove_snapshots(group_.launched().env, digest_of(setup_.start.shm_run_id)))));
  std::string run_id = known_.shm_run_id;  // the run had begun, and begins again
  if (group_.leads() && run_id.empty()) run_id = new_run_id(group_.launched().env);
  HF_TRY(const std::vector<std::string> ids,
         all_gather_text(group_.active().communicator, group_.waiter(), run_id));
  known_.shm_run_id = ids.front();
  // A run that goes back to its start is the same run.
  const Lineage& lineage = setup_.start.lineage;
  worker_.state().run_id = lineage.goes_back_to_start() ? lineage.run_id : ids.front();
  if (setup_.config.run.initialize_from.empty()) return initialize_weights(worker_.state_view());
  return restore_given_weights();
}

Result<void> StateLoader::restore_given_weights() {
  Result<std::optional<FoundCheckpoint>> found =
      find_checkpoint(group_.launched().env, setup_.config.run.initialize_from);
  Result<void> outcome;
  if (!found.ok()) outcome = found.error();
  if (found.ok() && !found->has_value()) {
    outcome = fail(ExitCode::checkpoint,
                   "run.initialize_from: {} holds no checkpoint; expected a run directory or a checkpoint "
                   "(holdfast import makes one of a Hugging Face folder or an llm.c model)",
                   setup_.config.run.initialize_from);
  }
  HF_TRY_VOID(group_.agree(outcome));
  return restore_weights(worker_.state_view(), (*found)->checkpoint.directory());
}

GenerationChoice choose_generation(const StartPoint& start, const RunState& state, const std::string& numeric,
                                   const std::string& settings) {
  GenerationChoice choice{.lineage = start.lineage, .jumps = state.jumps};
  Lineage& lineage = choice.lineage;
  const bool fresh = start.checkpoint.empty() && !start.snapshot.has_value();
  std::string reason = start.begins;
  if (!reason.empty()) lineage.generations.pop_back();
  if (lineage.run_id != state.run_id) {
    if (fresh) reason.clear();  // another run, which has no history
    lineage = {.run_id = state.run_id};
  }
  const ParentCheckpoint from = {.generation = state.generation, .step = state.step};
  const std::uint64_t current = std::max(lineage.current(), state.generation);
  choice.generation = current;
  if (reason.empty()) reason = why_one_begins(lineage, current, from, numeric, settings);
  if (reason.empty()) {
    lineage.add_jumps_after(from, choice.jumps);
    return choice;
  }
  choice.begins = true;
  choice.generation = current + 1;
  lineage.generations.push_back(
      {.number = choice.generation, .parent = from, .settings = settings, .reason = std::move(reason)});
  if (lineage.newest_checkpoint.has_value() && lineage.discards(*lineage.newest_checkpoint))
    lineage.newest_checkpoint.reset();
  lineage.add_jumps_after(from, choice.jumps);
  return choice;
}

}  // namespace holdfast::elastic
