#include "runtime/elastic/run_saves.h"

#include <algorithm>

#include "checkpoint/lineage.h"
#include "checkpoint/ram_tier.h"
#include "runtime/rank/watch.h"
#include "runtime/run/run_directory.h"
#include "runtime/save/keepers.h"
#include "runtime/save/storage_domains.h"
#include "runtime/save/uploads.h"

namespace holdfast::elastic {
namespace {

// Tells the store the checkpoint of which all hosts have their parts.
void tell_whole_checkpoint(CheckpointStore& store, const StartPoint& start) {
  if (!start.content.empty()) store.all_hosts_have({.generation = start.generation, .step = start.step});
}

}  // namespace

Result<void> RunSaves::begin_epoch(Worker& worker) {
  const TrainInputs& launched = group_.launched();
  given_up_ = {};
  drop_copies();
  const std::optional<ParentCheckpoint> on_all_hosts =
      places_.store.has_value() ? places_.store->on_all_hosts() : std::optional<ParentCheckpoint>();
  places_.store.emplace(launched.env, launched.faults, setup_.config.run.directory, setup_.start.writer);
  if (on_all_hosts.has_value()) places_.store->all_hosts_have(*on_all_hosts);
  if (setup_.claim != nullptr)
    places_.store->fence({.epoch = setup_.claim->epoch(), .check = setup_.claim->fence()});
  places_.store->keep_for_good(setup_.config.checkpoint.keep_every_steps);
  places_.tier.reset();
  const std::optional<StorageDomains>& domains = group_.active_domains();
  if (!domains.has_value()) return {};
  if (domains->count() > 1) {
    places_.store->holds_part_of(setup_.domain->host);
    tell_whole_checkpoint(*places_.store, setup_.start);
    if (setup_.config.checkpoint.replicas != "off") {
      HF_TRY(places_.copies,
             ShardCopies::create(worker.state_view(), *places_.store, *domains, setup_.start.writer));
    }
  }
  places_.tier.emplace(group_.active().communicator.rank(), *domains, places_.copies.get());
  return {};
}

Result<void> RunSaves::replace_lineage(const Lineage& lineage, const ClaimCheck& check) {
  if (places_.store.has_value()) return places_.store->replace_lineage(lineage);
  return write_lineage(group_.launched().env, setup_.config.run.directory, lineage, check);
}

// The others know by now which ranks are left, so they wait for this rank, which waits for storage.
void RunSaves::finish_given_up(std::uint64_t step) {
  if (given_up_.saver == nullptr) return;
  RankWatch* watch = group_.launched().watch;
  {
    const StorageWait storage(watch, "a save that is given up");
    given_up_.saver.reset();
  }
  enter_recovery(watch, step, setup_.config);
}

void RunSaves::distrust(const RunState& state, std::uint64_t trusted_step) {
  const TrainInputs& launched = group_.launched();
  enter_recovery(launched.watch, state.step, setup_.config);
  finish_given_up(state.step);
  unseal_snapshots_after(launched.env, digest_of(state.shm_run_id), trusted_step);
  given_up_.unused_slot.reset();
  given_up_.kept_step = std::min(kept_step(), trusted_step);
}

void RunSaves::drop_copies() {
  if (places_.copies == nullptr) return;
  places_.tier.reset();
  const StorageWait storage(group_.launched().watch, "a copy that is given up");
  places_.copies.reset();
}

Result<void> RunSaves::upload_last() {
  const TrainInputs& launched = group_.launched();
  CheckpointStore store(launched.env, launched.faults, setup_.config.run.directory, setup_.start.writer);
  tell_whole_checkpoint(store, setup_.start);
  Communicator& all = group_.world().communicator;
  Uploads uploads({.env = launched.env,
                   .faults = launched.faults,
                   .store = store,
                   .config = setup_.config,
                   .rank = all.rank(),
                   .ranks = all.size(),
                   .domains = group_.domains()});
  HF_TRY_VOID(uploads.offer_newest(all, group_.waiter()));
  HF_TRY_VOID(uploads.finish(all, group_.waiter(), [&] { mark(launched.watch); }));
  for (const UploadReport& report : uploads.take_reports()) {
    if (all.rank() == 0) report_upload(report);
  }
  return {};
}

}  // namespace holdfast::elastic
