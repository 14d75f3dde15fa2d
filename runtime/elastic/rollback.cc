#include "runtime/elastic/rollback.h"

#include <algorithm>
#include <array>

#include "checkpoint/candidates.h"
#include "checkpoint/ram_tier.h"
#include "runtime/elastic/download.h"
#include "runtime/elastic/source.h"
#include "runtime/os/console.h"
#include "runtime/os/paths.h"
#include "runtime/os/retry.h"
#include "runtime/rank/watch.h"
#include "runtime/run/run_directory.h"

namespace holdfast::elastic {
namespace {

bool counts(const CheckpointCandidate& candidate) {
  return candidate.manifest.ok() && !candidate.discarded;
}

}  // namespace

// Returns whether the run directory, or the start of the run, has a state to go back to. What cannot be read is left to
// the recovery.
bool RunRollback::disk_goes_back(const RunState& state, std::uint64_t trusted_step) {
  const auto [candidates, lineage] = saves_.store().published();
  if (!candidates.ok() || !lineage.ok() || trusted_step == 0) return true;
  if (lineage->run_id == state.run_id && lineage->start_counts(trusted_step)) return true;
  return std::ranges::any_of(*candidates, [&](const CheckpointCandidate& each) {
    return counts(each) && each.step <= trusted_step;
  });
}

// Returns whether the run may begin again though nobody knows what it has published: no checkpoint counts.
bool RunRollback::has_nothing_to_lose(const RunState& state) {
  const auto [candidates, lineage] = saves_.store().published();
  if (!candidates.ok() || !lineage.ok()) return true;
  const bool is_known = lineage->run_id == state.run_id && lineage->first_step.has_value();
  return !is_known && std::ranges::none_of(*candidates, counts);
}

// Returns whether all ranks that write say yes.
Result<bool> RunRollback::all_say(bool mine) {
  std::array<std::int64_t, 1> refusals = {mine ? 0 : 1};
  HF_TRY_VOID(all_reduce_sum(group_.active().communicator, group_.waiter(), refusals));
  return refusals[0] == 0;
}

// Returns whether the hosts have a state to go back to, which all ranks agree on. The parts of a snapshot are on many
// hosts; one that is not whole without the ranks that leave is no state.
Result<bool> RunRollback::knows_state(const RunState& state, const Rollback& rollback,
                                      std::span<const int> leaving_ranks) {
  HF_TRY(std::vector<std::vector<SnapshotIdentity>> offers,
         group_.source_of(group_.active(), journal_.claim_check()).snapshots(digest_of(state.shm_run_id)));
  for (const int rank : leaving_ranks) offers[static_cast<std::size_t>(rank)].clear();
  for (std::vector<SnapshotIdentity>& each : offers) {
    std::erase_if(each, [&](const SnapshotIdentity& of) {
      return of.step > rollback.trusted_step ||
             setup_.start.lineage.discards({.generation = of.generation, .step = of.step});
    });
  }
  if (newest_whole_step(offers, {}).has_value()) return true;
  return all_say(!group_.writes() || disk_goes_back(state, rollback.trusted_step));
}

// Lets checkpoint.download_command fetch a state to go back to, and returns whether it has. Where run.directory is local
// to each host, that comes to the host of rank 0 alone, which has to stay.
Result<bool> RunRollback::fetch_state(std::uint64_t step, std::uint64_t trusted_step,
                                      std::span<const int> leaving_ranks) {
  const bool is_lost =
      setup_.domain.has_value() && std::ranges::find(leaving_ranks, 0) != leaving_ranks.end();
  if (setup_.config.checkpoint.download_command.empty() || is_lost) return false;
  saves_.store().keep_around(trusted_step);  // a save that is under way may remove old ones at its end
  RankWatch* watch = group_.launched().watch;
  enter(watch, Phase::load, step, setup_.config.watchdog.ceiling_ms);
  Result<bool> came = join_earlier_download(group_.source_of(group_.active(), journal_.claim_check()),
                                            *setup_.data, trusted_step + 1);
  enter_recovery(watch, step, setup_.config);
  return came;
}

// Returns whether there is a state to go back to. Errors are those of the communicator.
Result<bool> RunRollback::is_possible(const RunState& state, const Rollback& rollback,
                                      std::span<const int> leaving_ranks) {
  HF_TRY(const bool is_here, knows_state(state, rollback, leaving_ranks));
  if (is_here) return true;
  HF_TRY(const bool came, fetch_state(state.step, rollback.trusted_step, leaving_ranks));
  if (came) return true;
  return all_say(!group_.writes() || has_nothing_to_lose(state));
}

bool RunRollback::decide(Worker& worker, const Rollback& rollback, std::span<const int> leaving_ranks,
                         const std::string& reason) {
  const Result<bool> possible = is_possible(worker.state(), rollback, leaving_ranks);
  if (possible.ok() && !*possible) return false;
  keep(worker.state(), rollback, reason);
  return true;
}

// Keeps the decision in shared memory, where it outlives this process, and has the writer record it. A write that
// fails is made again by the recovery, or by the next start.
void RunRollback::keep(const RunState& state, const Rollback& rollback, const std::string& reason) {
  const TrainInputs& launched = group_.launched();
  decided_ = {.run_id = state.run_id,
              .generation = {.parent = {.generation = state.generation, .step = rollback.trusted_step},
                             .settings = numeric_settings(setup_.config),
                             .reason = reason}};
  if (rollback.data_cursor.has_value())
    decided_->generation.jump =
        DataJump{.at_step = rollback.trusted_step, .data_cursor = *rollback.data_cursor};
  const StorageWait storage(launched.watch, "the record of a roll-back");
  // The memory of this process has to do where shared memory has no room.
  static_cast<void>(
      keep_rollback(launched.env, digest_of(state.shm_run_id), setup_.start.writer,
                    launched.communicator.rank(),
                    {.decided = *decided_, .run_directory = real_path(setup_.config.run.directory)})
          .ok());
  if (const Result<void> recorded = record(); !recorded.ok()) print_message("{}", recorded.error().message);
}

// Has the decision in the lineage, on a rank that writes.
Result<void> RunRollback::record() {
  if (!group_.writes()) return {};
  const TrainInputs& launched = group_.launched();
  HF_TRY_VOID(journal_.check_claim());
  HF_TRY(const Lineage lineage, read_lineage(launched.env, setup_.config.run.directory));
  if (is_recorded(*decided_, lineage)) return {};
  HF_FAULT_POINT(launched.faults, "generation.before_publish");
  return saves_.store().record_rollback(decided_->run_id, decided_->generation);
}

Result<void> RunRollback::complete(const RecoveryInventory& known) {
  const TrainInputs& launched = group_.launched();
  const bool is_decided = decided_.has_value();
  Result<void> recorded;
  if (is_decided) {
    const StorageWait storage(launched.watch, "the record of a roll-back");
    recorded = retry_storage(launched.env, [this] { return record(); });
  }
  const std::int64_t patience_ms = setup_.config.parallel.timeout_ms + storage_patience_ms;
  HF_TRY_VOID(group_.agree_among_all(recorded, group_.waiter().with_timeout(patience_ms)));
  renew_limits(launched.watch);
  decided_.reset();
  if (is_decided && !known.lost_some)
    static_cast<void>(remove_kept_rollbacks(launched.env, digest_of(known.shm_run_id)).ok());
  return {};
}

}  // namespace holdfast::elastic
