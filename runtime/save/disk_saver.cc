#include "runtime/save/disk_saver.h"

#include <algorithm>

#include "parallel/comm/gather.h"
#include "runtime/rank/watch.h"
#include "runtime/save/checkpoint_parts.h"
#include "runtime/save/save_failure.h"

namespace holdfast::save {

DiskSaver::DiskSaver(StateView& view, CheckpointStore& store, std::optional<DiskTier> tier)
    : view_(&view),
      store_(&store),
      tier_(tier.has_value() ? *std::move(tier) : DiskTier(view.rank.communicator.rank())),
      drain_mutex_(view.rank.env) {}

void DiskSaver::cancel() {
  cancelled_ = true;
  if (tier_.copies() != nullptr) tier_.copies()->cancel();
}

DiskSaver::~DiskSaver() {
  cancel();
  saves_.clear();
  publish_.wait();
}

Result<void> DiskSaver::remove_leftovers() {
  return tier_.publishes() ? store_->remove_leftovers() : Result<void>();
}

void DiskSaver::begin(std::shared_ptr<SnapshotCopy> copy) {
  auto save = std::make_unique<Save>();
  save->report.step = copy->snapshot->state().step;
  save->copy = std::move(copy);
  const auto work = [this, begun = save.get()] { return copy_and_drain(*begun); };
  // The votes for a snapshot count on its copy, whether or not it gets to the disk.
  if (!save->job.start(view_->rank.env, "save", work)) save->copy->make();
  saves_.push_back(std::move(save));
}

// Copies the state and drains it. Runs in the background, as drain() does.
Result<ShardFile> DiskSaver::copy_and_drain(Save& save) {
  Env& env = view_->rank.env;
  save.copy->make();
  if (!save.copy->outcome.ok()) return save.copy->outcome.error();
  env.lower_thread_priority();
  const std::lock_guard one_at_a_time(drain_mutex_);
  const std::int64_t begin_ns = env.monotonic_ns(), processor_begin_ns = env.thread_processor_ns();
  Result<ShardFile> shard = drain(save);
  save.drain_ns = env.monotonic_ns() - begin_ns;
  if (shard.ok() && is_alone() && wait_until_checked(save.report.step)) {
    Manifest manifest = save.copy->snapshot->manifest();
    manifest.shards = {*shard};
    note_checked(*view_, manifest);
    save.published = publish(save, manifest);
  }
  save.processor_ns = env.thread_processor_ns() - processor_begin_ns;
  return shard;
}

// Waits until an update has read the state of the step and found it sound. Returns false if the saves are
// abandoned first. One rank alone asks nobody else, and publishes what it has drained before it drains more.
bool DiskSaver::wait_until_checked(std::uint64_t step) const {
  constexpr std::int64_t look_again_us = 500;
  while (is_checked_later() && checked_step_ < step && !cancelled_) view_->rank.env.sleep_us(look_again_us);
  return !cancelled_;
}

// Publishes the save. Runs on a rank that publishes, and returns its duration in ns.
Result<std::int64_t> DiskSaver::publish(Save& save, const Manifest& manifest) {
  Env& env = view_->rank.env;
  const std::int64_t begin_ns = env.monotonic_ns();
  const std::int64_t keep = tier_.kept(view_->rank.config.checkpoint.keep);
  // Another host may not publish its part, so retention counts the checkpoints that exist without this one.
  if (tier_.in_parts()) retain_or_complain(*store_, keep);
  HF_TRY_VOID(store_->publish(manifest));
  save.durable_ns = env.monotonic_ns() - save.copy->begin_ns;
  if (!tier_.in_parts()) retain_or_complain(*store_, keep);
  return env.monotonic_ns() - begin_ns;
}

// Writes the shard once.
Result<ShardFile> DiskSaver::write_shard(Save& save) {
  Env& env = view_->rank.env;
  FaultPoints& faults = view_->rank.faults;
  const Snapshot& snapshot = *save.copy->snapshot;
  const RunState& state = snapshot.state();
  const std::string directory = store_->pending_directory(state.step);
  HF_FAILING_FAULT_POINT(faults, write_point);
  if (const Result<void> made = env.make_directories(directory); !made.ok())
    return with_code(ExitCode::checkpoint, made.error());
  ShardWriteOptions options = shard_options(*view_, *store_);
  // Compression is left out because processors that train do not compute while they compress.
  if (view_->rank.device.host_sees_memory() && options.compression == Compression::automatic)
    options.compression = Compression::none;
  RankWatch* const watch = view_->rank.watch;
  options.pace = [&](std::uint64_t bytes) {
    const std::uint64_t drained = save.drained_bytes += bytes;
    if (watch != nullptr) watch->drains(state.step, drained);
    HF_FAULT_POINT(faults, "save.mid_shard");
  };
  options.cancelled = [this] { return cancelled_.load(); };
  return write_shard_file(env, directory, CheckpointStore::shard_name(view_->rank.communicator.rank()),
                          state.step, state.run_id, snapshot.pieces(), {}, options);
}

Result<ShardFile> DiskSaver::drain(Save& save) {
  Result<ShardFile> shard = write_shard_repeatedly(
      view_->rank.env, tier_, [&] { return write_shard(save); }, [this] { return cancelled_.load(); });
  HF_FAULT_POINT(view_->rank.faults, "save.after_shard");
  RankWatch* const watch = view_->rank.watch;
  if (shard.ok()) {
    const std::uint64_t step = save.report.step;
    const auto count = [&](std::uint64_t bytes) {
      const std::uint64_t drained = save.drained_bytes += bytes;
      if (watch != nullptr) watch->drains(step, drained);
    };
    if (const Result<void> copied = tier_.copy(step, store_->pending_directory(step), *shard, count);
        !copied.ok())
      shard = copied.error();
  }
  if (watch != nullptr) watch->drained();
  return shard;
}

void DiskSaver::let_publish(std::uint64_t checked_step) {
  if (checked_step > checked_step_) checked_step_ = checked_step;
}

void DiskSaver::vote(SaveVotes& votes) {
  const std::uint64_t step = view_->state.step;
  if (step > 0 && !view_->optimizer.finding().has_value()) let_publish(step - 1);
  const bool is_sound =
      !saves_.empty() && (!is_checked_later() || checked_step_ >= saves_.front()->report.step);
  if (is_sound && saves_.front()->job.finished())
    (saves_.front()->job.result().ok() ? votes.durable : votes.failed) = 1;
  if (publishing_ && tier_.publishes() && publish_.finished())
    (publish_.result().ok() ? votes.published : votes.unpublished) = 1;
}

Result<void> DiskSaver::advance(const SaveVotes& sums) {
  if (publishing_ && sums.published + sums.unpublished == tier_.publishers())
    HF_TRY_VOID(end_publishing(sums.unpublished == 0));
  const bool drained = sums.durable + sums.failed == view_->rank.communicator.size();
  if (!drained || publishing_) return {};
  return sums.failed == 0 ? begin_publishing() : give_up();
}

Result<void> DiskSaver::begin_publishing() {
  std::unique_ptr<Save> save = std::move(saves_.front());
  saves_.pop_front();
  const std::int64_t begin_ns = view_->rank.env.monotonic_ns();
  const Result<ShardFile> shard = save->job.take();
  if (save->published.has_value()) {
    save->report.bytes = shard->bytes;
    report(*save, outcome_of(*save->published));
    return {};
  }
  Manifest manifest = save->copy->snapshot->manifest();
  HF_TRY(manifest.shards, gather(view_->rank.communicator, view_->rank.waiter, *shard));
  save->report.bytes = bytes_of_shards(manifest.shards);
  note_checked(*view_, manifest);
  HF_TRY_VOID(describe_parts(*view_, tier_, manifest));
  if (tier_.publishes()) {
    publish_.start(view_->rank.env, "publisher",
                   [this, published = save.get(), manifest = std::move(manifest)] {
                     view_->rank.env.lower_thread_priority();
                     return publish(*published, manifest);
                   });
  }
  save->report.stall_ns += view_->rank.env.monotonic_ns() - begin_ns;
  publishing_ = std::move(save);
  return {};
}

Result<void> DiskSaver::end_publishing(bool published) {
  const std::unique_ptr<Save> save = std::move(publishing_);
  if (tier_.publishes()) save->published = publish_.take();
  if (!published)
    return tell_failure(*save, save->published.has_value() ? outcome_of(*save->published) : Result<void>());
  if (tier_.in_parts())
    store_->all_hosts_have({.generation = view_->state.generation, .step = save->report.step});
  report(*save, {});
  return {};
}

// Abandons the oldest save, because the parts of other ranks are of no use.
Result<void> DiskSaver::give_up() {
  const std::unique_ptr<Save> save = std::move(saves_.front());
  saves_.pop_front();
  return tell_failure(*save, outcome_of(save->job.take()));
}

// Reports the error that caused a save to fail, on all ranks. Where some are unfit, it is returned, and no save of this
// group can succeed any more. `mine`: what this rank had to do for the save.
Result<void> DiskSaver::tell_failure(Save& save, const Result<void>& mine) {
  const Result<void> outcome = agree_on_written(*view_, tier_, *store_, save.report.step, mine);
  HF_CHECK(!outcome.ok());
  if (view_->rank.communicator.abandoned()) return outcome;
  if (tier_.publishes()) static_cast<void>(store_->abandon_save(save.report.step).ok());
  report(save, outcome);
  if (!is_of_unfit_ranks(outcome.error())) return {};
  cancel();
  return outcome;
}

// Reports a save on which none of its threads works any more.
void DiskSaver::report(Save& save, const Result<void>& outcome) {
  save.report.outcome = outcome;
  save.report.stall_ns += save.copy->stall_ns;
  save.report.copy_ns = save.copy->duration_ns;
  save.report.drain_ns = save.drain_ns;
  save.report.processor_ns = save.processor_ns;
  save.report.durable_ns = save.durable_ns;
  if (save.published.has_value() && save.published->ok()) save.report.publish_ns = **save.published;
  save.report.duration_ns = view_->rank.env.monotonic_ns() - save.copy->begin_ns;
  reports_.push_back(std::move(save.report));
}

std::vector<std::uint64_t> DiskSaver::steps() const {
  std::vector<std::uint64_t> steps;
  if (publishing_ != nullptr) steps.push_back(publishing_->report.step);
  for (const std::unique_ptr<Save>& save : saves_) steps.push_back(save->report.step);
  return steps;
}

std::vector<const Snapshot*> DiskSaver::snapshots() const {
  std::vector<const Snapshot*> snapshots;
  for (const std::unique_ptr<Save>& save : saves_) snapshots.push_back(save->copy->snapshot);
  return snapshots;
}

bool DiskSaver::is_busy() const {
  return (publish_.started() && !publish_.finished()) ||
         std::ranges::any_of(saves_, [](const auto& save) { return !save->job.finished(); });
}

std::uint64_t DiskSaver::drained_bytes() const {
  std::uint64_t drained = 0;
  for (const std::unique_ptr<Save>& save : saves_) drained += save->drained_bytes;
  return drained;
}

void DiskSaver::wait() {
  for (const std::unique_ptr<Save>& save : saves_) save->job.wait();
  publish_.wait();
}

}  // namespace holdfast::save
