// TrainRun's part for what depends on whether run.directory is local to each host: who writes, which checkpoint all hosts
// have, who keeps copies, and the last upload.
#include "runtime/elastic/train_run_internal.h"
#include "runtime/rank/watch.h"
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

// Drops the copies of shards; this may wait for the disk, because a copy may be arriving.
void TrainRun::drop_copies() {
  if (saves_.copies == nullptr) return;
  saves_.tier.reset();
  const StorageWait storage(launched_.watch, "a copy that is given up");
  saves_.copies.reset();
}

// Makes the disk tier of the epoch that begins: which checkpoints the store has, and which ranks store copies
// of them.
Result<void> TrainRun::make_tier() {
  saves_.tier.reset();
  const std::optional<StorageDomains>& domains = group_.active_domains();
  if (!domains.has_value()) return {};
  const int rank = group_.active().communicator.rank();
  if (domains->count() > 1) {
    saves_.store->holds_part_of(setup_.domain->host);
    tell_whole_checkpoint(*saves_.store, setup_.start);
    if (setup_.config.checkpoint.replicas != "off") {
      HF_TRY(saves_.copies,
             ShardCopies::create(worker_->state_view(), *saves_.store, *domains, setup_.start.writer));
    }
  }
  saves_.tier.emplace(rank, *domains, saves_.copies.get());
  return {};
}

// Uploads the last checkpoint of a run that was killed when only the upload was left to do.
Result<void> TrainRun::send_last() {
  CheckpointStore store(launched_.env, launched_.faults, setup_.config.run.directory, setup_.start.writer);
  tell_whole_checkpoint(store, setup_.start);
  Communicator& all = group_.world().communicator;
  Uploads uploads({.env = launched_.env,
                   .faults = launched_.faults,
                   .store = store,
                   .config = setup_.config,
                   .rank = all.rank(),
                   .ranks = all.size(),
                   .domains = group_.domains()});
  HF_TRY_VOID(uploads.offer_newest(all, group_.waiter()));
  HF_TRY_VOID(uploads.finish(all, group_.waiter(), [&] { mark(launched_.watch); }));
  for (const UploadReport& report : uploads.take_reports()) {
    if (all.rank() == 0) report_upload(report);
  }
  return {};
}

}  // namespace holdfast::elastic
