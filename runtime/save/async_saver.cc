#include "runtime/save/async_saver.h"

#include <algorithm>
#include <iterator>

#include "parallel/comm/agreement.h"
#include "parallel/comm/device_wait.h"
#include "runtime/core/kept_memory.h"
#include "runtime/core/units.h"
#include "runtime/os/available_memory.h"
#include "runtime/os/tell.h"
#include "runtime/rank/watch.h"
#include "runtime/save/checkpoint_parts.h"
#include "runtime/save/shard_options.h"

namespace holdfast::inline save {

AsyncSaver::AsyncSaver(StateView& view, CheckpointStore& store, std::uint64_t writer,
                       const std::optional<SnapshotStep>& resumed, std::optional<DiskTier> tier)
    : view_(&view),
      store_(&store),
      writer_(writer),
      resumed_(resumed),
      tier_(tier.has_value() ? *std::move(tier) : DiskTier(view.rank.communicator.rank())) {}

void AsyncSaver::cancel() {
  cancelled_ = true;
  prefault_.wait();   // for as long as a few pages take
  replicas_.reset();  // which waits for nobody, and reads slots
  if (tier_.copies() != nullptr) tier_.copies()->cancel();
}

AsyncSaver::~AsyncSaver() {
  cancel();
  cleanup_.wait();  // it uses the pool, to which all slots go
  saves_.clear();
  publish_.wait();
  snapshots_.clear();
  if (memory_.has_value() && view_->snapshots.slots() != nullptr) memory_->keep_in(*view_->snapshots.slots());
}

Result<void> AsyncSaver::prepare() {
  const Digest run = digest_of(view_->state.shm_run_id);
  if (SlotPool* const slots = view_->snapshots.slots(); slots != nullptr) {
    slots->begin(view_->rank.env, run, writer_, resumed_);
    slots->trim(view_->rank.env, slot_lengths());
  }
  // After this agreement every rank of the host has given up what its new slots do not need.
  HF_TRY_VOID(agree_on_outcome(view_->rank.communicator, patient_waiter(*view_),
                               tier_.publishes() ? store_->remove_leftovers() : Result<void>(),
                               view_->rank.env.host_name()));
  HF_TRY(memory_, SnapshotMemory::create(*view_, writer_));
  for (const std::span<std::byte> slot : memory_->slots())
    snapshots_.push_back(std::make_unique<Snapshot>(*view_, slot, writer_));
  if (!memory_->outlives_process()) return {};
  HF_TRY_VOID(make_replicas());
  fault_in_slots();
  // All ranks of the host have taken what they need of the old ones.
  if (view_->snapshots.slots() != nullptr) view_->snapshots.slots()->forget_unneeded();
  static_cast<void>(
      remove_unneeded_snapshots(view_->rank.env, run, resumed_, writer_).ok());  // else they go later
  return {};
}

// Returns the lengths of the slots that this rank is about to make.
std::vector<std::uint64_t> AsyncSaver::slot_lengths() const {
  const SnapshotTiers tiers = view_->snapshots.decision().room.tiers;
  std::vector<std::uint64_t> lengths;
  if (tiers == SnapshotTiers::none) return lengths;
  lengths.assign(static_cast<std::size_t>(SnapshotMemory::slots_at_once), view_->snapshots.bytes());
  if (tiers != SnapshotTiers::all) return lengths;
  for (const int rank : view_->snapshots.kept_ranks())
    lengths.insert(lengths.end(), ReplicaKeeper::places, view_->snapshots.bytes_of(rank));
  return lengths;
}

Result<void> AsyncSaver::make_replicas() {
  if (view_->snapshots.buddies().empty()) return {};
  if (const MemoryDecision& decision = view_->snapshots.decision();
      decision.room.tiers != SnapshotTiers::all) {
    replica_warning_ =
        decision.warning + ". A host that is lost costs the steps since the newest checkpoint on disk";
    return {};
  }
  Result<std::unique_ptr<Replicas>> replicas = Replicas::create(*view_, writer_);
  if (replicas.ok()) {
    replicas_ = std::move(replicas).value();
  } else if (view_->rank.communicator.abandoned()) {
    return replicas.error();
  } else {
    replica_warning_ = replicas.error().message;
  }
  return {};
}

// All slots are reserved, so nothing can fail; but a start would wait for their pages, which are first needed
// by the first snapshot.
void AsyncSaver::fault_in_slots() {
  std::vector<std::span<std::byte>> slots = memory_->slots();
  if (replicas_ != nullptr) std::ranges::copy(replicas_->places(), std::back_inserter(slots));
  prefault_.start([this, slots = std::move(slots)]() -> Result<std::monostate> {
    view_->rank.env.lower_thread_priority();
    for (const std::span<std::byte> slot : slots) fault_in_beside(slot, [this] { return cancelled_.load(); });
    return std::monostate();
  });
}

Snapshot* AsyncSaver::free_snapshot() const {
  Snapshot* oldest = nullptr;
  for (const std::unique_ptr<Snapshot>& snapshot : snapshots_) {
    const auto uses_it = [&](const std::unique_ptr<Save>& save) { return save->snapshot == snapshot.get(); };
    if (snapshot.get() == confirmed_ || snapshot.get() == sent_ || std::ranges::any_of(saves_, uses_it))
      continue;
    if (oldest == nullptr || snapshot->state().step < oldest->state().step) oldest = snapshot.get();
  }
  return oldest;
}

std::optional<int> AsyncSaver::unused_slot() const {
  const Snapshot* const unused = free_snapshot();
  if (unused == nullptr || !has_ram_tier()) return std::nullopt;
  const auto is_it = [&](const std::unique_ptr<Snapshot>& each) { return each.get() == unused; };
  return static_cast<int>(std::ranges::find_if(snapshots_, is_it) - snapshots_.begin());
}

bool AsyncSaver::is_saving() const {
  return publishing_ != nullptr ||
         std::ranges::any_of(saves_, [](const std::unique_ptr<Save>& save) { return save->to_disk; });
}

std::vector<std::uint64_t> AsyncSaver::saves_under_way() const {
  std::vector<std::uint64_t> steps;
  if (publishing_ != nullptr) steps.push_back(publishing_->report.step);
  for (const std::unique_ptr<Save>& save : saves_) {
    if (save->to_disk) steps.push_back(save->report.step);
  }
  return steps;
}

std::optional<std::uint64_t> AsyncSaver::confirmed_step() const {
  if (confirmed_ == nullptr) return std::nullopt;
  return confirmed_->state().step;
}

Result<bool> AsyncSaver::begin(bool to_disk) {
  if (!to_disk && (sent_ != nullptr || free_snapshot() == nullptr)) return false;
  auto save = std::make_unique<Save>();
  save->report.step = view_->state.step;
  save->begin_ns = view_->rank.env.monotonic_ns();
  save->to_disk = to_disk;
  while ((save->snapshot = free_snapshot()) == nullptr) HF_TRY_VOID(complete_round());
  save->snapshot->begin();
  save->report.stall_ns = view_->rank.env.monotonic_ns() - save->begin_ns;
  save->job.start([this, begun = save.get()] { return copy_and_drain(*begun); });
  saves_.push_back(std::move(save));
  return true;
}

// Runs in the background, as drain() does.
Result<ShardFile> AsyncSaver::copy_and_drain(Save& save) {
  Env& env = view_->rank.env;
  const std::int64_t copy_begin_ns = env.monotonic_ns(), processor_before_ns = env.thread_processor_ns();
  save.is_whole = save.snapshot->complete();
  save.copy_ns = env.monotonic_ns() - copy_begin_ns;
  save.copy_processor_ns = env.thread_processor_ns() - processor_before_ns;
  save.copied = true;
  save.copied.notify_one();
  if (!save.is_whole) return fail(ExitCode::communication, "the device failed while its state was copied");
  if (!save.to_disk) return ShardFile{};
  env.lower_thread_priority();
  const std::lock_guard one_at_a_time(disk_);
  const std::int64_t begin_ns = env.monotonic_ns(), processor_begin_ns = env.thread_processor_ns();
  Result<ShardFile> shard = drain(save);
  save.drain_ns = env.monotonic_ns() - begin_ns;
  if (shard.ok() && is_alone()) {
    Manifest manifest = save.snapshot->manifest();
    manifest.shards = {*shard};
    save.published = publish(save, manifest);
  }
  save.processor_ns = env.thread_processor_ns() - processor_begin_ns;
  return shard;
}

// Runs on a rank that publishes, and returns how long it took, in ns.
Result<std::int64_t> AsyncSaver::publish(Save& save, const Manifest& manifest) {
  Env& env = view_->rank.env;
  const std::int64_t begin_ns = env.monotonic_ns();
  const std::int64_t keep = tier_.kept(view_->rank.config.checkpoint.keep);
  // Another host may not publish its part, so what is there counts without this one.
  if (tier_.in_parts()) retain_or_complain(*store_, keep);
  HF_TRY_VOID(store_->publish(manifest));
  save.durable_ns = env.monotonic_ns() - save.begin_ns;
  if (!tier_.in_parts()) retain_or_complain(*store_, keep);
  return env.monotonic_ns() - begin_ns;
}

Result<ShardFile> AsyncSaver::drain(Save& save) {
  Env& env = view_->rank.env;
  FaultPoints& faults = view_->rank.faults;
  const RunState& state = save.snapshot->state();
  const std::string directory = store_->pending_directory(state.step);
  HF_FAULT_POINT(faults, "save.before_shard");
  if (const Result<void> made = env.make_directories(directory); !made.ok())
    return Error{ExitCode::checkpoint, made.error().message};
  ShardWriteOptions options = shard_options(view_->rank.config.checkpoint, *store_);
  // Processors that train do not compute while they compress.
  if (view_->rank.device.host_sees_memory() && options.compression == Compression::automatic)
    options.compression = Compression::none;
  RankWatch* const watch = view_->rank.watch;
  options.pace = [&](std::uint64_t bytes) {
    const std::uint64_t drained = save.drained_bytes += bytes;
    if (watch != nullptr) watch->drains(state.step, drained);
    HF_FAULT_POINT(faults, "save.mid_shard");
  };
  options.cancelled = [this] { return cancelled_.load(); };
  Result<ShardFile> shard =
      write_shard_file(env, directory, CheckpointStore::shard_name(view_->rank.communicator.rank()),
                       state.step, state.run_id, save.snapshot->pieces(), {}, options);
  HF_FAULT_POINT(faults, "save.after_shard");
  if (shard.ok()) {
    const auto count = [&](std::uint64_t bytes) {
      const std::uint64_t drained = save.drained_bytes += bytes;
      if (watch != nullptr) watch->drains(state.step, drained);
    };
    if (const Result<void> copied = tier_.copy(state.step, directory, *shard, count); !copied.ok())
      shard = copied.error();
  }
  if (watch != nullptr) watch->drained();
  return shard;
}

// Peers want to hear of a rank whose threads do not compute meanwhile.
void AsyncSaver::wait_for_copy(const Save& save) {
  constexpr std::int64_t look_again_us = 100;
  if (view_->rank.device.host_sees_memory()) return save.copied.wait(false);
  while (!save.copied) {
    poll_peers(view_->rank.communicator);
    view_->rank.env.sleep_us(look_again_us);
  }
}

SaveVotes AsyncSaver::vote() {
  SaveVotes votes;
  if (is_copying()) {
    Save& newest = *saves_.back();
    const std::int64_t begin_ns = view_->rank.env.monotonic_ns();
    const HostSpan wait(&view_->rank.spans, {.kind = SpanKind::wait_snapshot});
    wait_for_copy(newest);
    newest.report.stall_ns += view_->rank.env.monotonic_ns() - begin_ns;
  }
  if (!saves_.empty() && saves_.front()->to_disk && saves_.front()->job.finished())
    (saves_.front()->job.result().ok() ? votes.durable : votes.failed) = 1;
  if (publishing_ && tier_.publishes() && publish_.finished())
    (publish_.result().ok() ? votes.published : votes.unpublished) = 1;
  const bool has_last = cleanup_.finished() && memory_->slots().size() > snapshots_.size();
  votes.last_slots = has_last ? 1 : 0;
  votes.settling = older_removed_ && cleanup_.finished() ? 0 : 1;
  if (sent_ != nullptr && replicas_->finished())
    (replicas_->succeeded() ? votes.replicated : votes.unreplicated) = 1;
  return votes;
}

Result<void> AsyncSaver::advance(const SaveVotes& sums) {
  if (sums.last_slots == view_->rank.communicator.size())
    snapshots_.push_back(std::make_unique<Snapshot>(*view_, memory_->slots().back(), writer_));
  is_settled_ = sums.settling == 0;
  HF_TRY_VOID(end_sending(sums));
  confirm_newest();
  if (publishing_ && sums.published + sums.unpublished == tier_.publishers())
    end_publishing(sums.unpublished == 0);
  const bool drained = sums.durable + sums.failed == view_->rank.communicator.size();
  if (!drained || publishing_) return {};
  return sums.failed == 0 ? begin_publishing() : give_up();
}

// Confirms the newest snapshot: every rank has voted, and none before its copy was whole. Where there are
// replicas, it only begins to send them.
void AsyncSaver::confirm_newest() {
  if (!is_copying()) return;
  Save& newest = *saves_.back();
  newest.confirmed = true;
  // As many threads copy as train (snapshot.h), so each of those loses what this one took.
  if (view_->rank.device.host_sees_memory()) copy_ns_ = newest.copy_processor_ns;
  if (replicas_ != nullptr) {
    if (sent_ == nullptr) begin_sending(*newest.snapshot);
  } else if (memory_->outlives_process()) {
    confirm(*newest.snapshot);
  }
  if (!newest.to_disk) saves_.pop_back();
}

void AsyncSaver::confirm(const Snapshot& snapshot) {
  confirmed_ = &snapshot;
  if (std::exchange(older_removed_, true)) return;
  cleanup_.start([this]() -> Result<std::monostate> {
    view_->rank.env.lower_thread_priority();
    HF_TRY_VOID(replace_older());
    return std::monostate();
  });
}

// Makes the slot that lacks: those of a step that was resumed are not needed any more, and one of them
// becomes it.
Result<void> AsyncSaver::replace_older() {
  Result<void> made;
  if (view_->snapshots.slots() != nullptr) view_->snapshots.slots()->confirmed();
  if (memory_->lacks_slot()) {
    made = wait_for_room();
    if (made.ok()) made = memory_->make_last(*view_, writer_);
  }
  if (view_->snapshots.slots() != nullptr) view_->snapshots.slots()->forget();
  const Result<void> removed =
      outcome_of(remove_snapshots(view_->rank.env, digest_of(view_->state.shm_run_id), writer_));
  if (!made.ok()) tell("RAM snapshots go on with two slots: {}", made.error().message);
  return made.ok() ? removed : made;
}

// Waits until the host has room for the slot that lacks: another rank may not have given up its part of the
// resumed step yet.
Result<void> AsyncSaver::wait_for_room() {
  SlotPool* const slots = view_->snapshots.slots();
  if (slots == nullptr) return {};
  Env& env = view_->rank.env;
  slots->trim(env, {view_->snapshots.bytes()});
  const std::uint64_t new_bytes =
      view_->snapshots.bytes() - std::min(slots->unneeded_bytes(), view_->snapshots.bytes());
  const std::int64_t timeout_ms = view_->rank.config.elastic.memory_timeout_ms;
  const std::int64_t end_ns = env.monotonic_ns() + timeout_ms * 1'000'000;
  constexpr std::int64_t look_again_us = 50'000;
  for (;;) {
    const std::optional<MemoryRoom> room = memory_room(env);
    if (!room.has_value() || room->available_bytes >= new_bytes || cancelled_) return {};
    if (env.monotonic_ns() >= end_ns) {
      return fail(ExitCode::does_not_fit, "host {} has {} available, and {} are needed, after {}",
                  env.host_name(), format_bytes(room->available_bytes), format_bytes(new_bytes),
                  format_duration(timeout_ms));
    }
    env.sleep_us(look_again_us);
  }
}

void AsyncSaver::begin_sending(const Snapshot& snapshot) {
  const auto step_of = [&](const Snapshot& of) {
    return SnapshotStep{.writer = writer_, .generation = of.state().generation, .step = of.state().step};
  };
  sent_ = &snapshot;
  replicas_->send(step_of(snapshot), snapshot.memory(),
                  confirmed_ == nullptr ? SnapshotStep{} : step_of(*confirmed_));
}

// Ends the sending of a snapshot when all ranks have sent it, or failed to.
Result<void> AsyncSaver::end_sending(const SaveVotes& sums) {
  if (sent_ == nullptr || sums.replicated + sums.unreplicated < view_->rank.communicator.size()) return {};
  const Snapshot* const snapshot = std::exchange(sent_, nullptr);
  ReplicaReport report = replicas_->take();
  if (sums.unreplicated == 0) {
    confirm(*snapshot);
  } else {
    report.outcome = agree_on_outcome(view_->rank.communicator, view_->rank.waiter, report.outcome,
                                      view_->rank.env.host_name());
    HF_CHECK(!report.outcome.ok());
    if (view_->rank.communicator.abandoned()) return report.outcome;
  }
  replica_reports_.push_back(std::move(report));
  return {};
}

Result<void> AsyncSaver::begin_publishing() {
  std::unique_ptr<Save> save = std::move(saves_.front());
  saves_.pop_front();
  const std::int64_t begin_ns = view_->rank.env.monotonic_ns();
  const Result<ShardFile> shard = save->job.take();
  if (save->published.has_value()) {
    save->report.bytes = shard->bytes;
    report(*save, outcome_of(*save->published));
    return {};
  }
  HF_TRY(const std::vector<std::string> texts,
         all_gather_text(view_->rank.communicator, view_->rank.waiter, to_text(*shard)));
  save->report.bytes = bytes_of_shards(texts);
  Manifest manifest = save->snapshot->manifest();
  for (const std::string& text : texts) manifest.shards.push_back(shard_from_text(text));
  HF_TRY_VOID(describe_parts(*view_, tier_, manifest));
  if (tier_.publishes()) {
    publish_.start([this, published = save.get(), manifest = std::move(manifest)] {
      view_->rank.env.lower_thread_priority();
      return publish(*published, manifest);
    });
  }
  save->report.stall_ns += view_->rank.env.monotonic_ns() - begin_ns;
  publishing_ = std::move(save);
  return {};
}

void AsyncSaver::end_publishing(bool published) {
  Result<void> outcome;
  if (!published && tier_.in_parts()) {
    outcome = fail(ExitCode::checkpoint, "a host could not publish its part of the checkpoint");
  } else if (!published) {
    outcome = fail(ExitCode::checkpoint, "rank 0 could not publish the checkpoint");
  }
  if (published && tier_.in_parts())
    store_->all_hosts_have({.generation = view_->state.generation, .step = publishing_->report.step});
  if (tier_.publishes()) {
    publishing_->published = publish_.take();
    if (!publishing_->published->ok()) outcome = publishing_->published->error();
  }
  report(*publishing_, outcome);
  publishing_.reset();
}

// Gives up the oldest save: what the others wrote is of no use. The error that made it so is the one to tell.
Result<void> AsyncSaver::give_up() {
  const std::unique_ptr<Save> save = std::move(saves_.front());
  saves_.pop_front();
  const Result<void> outcome = agree_on_outcome(view_->rank.communicator, view_->rank.waiter,
                                                outcome_of(save->job.take()), view_->rank.env.host_name());
  HF_CHECK(!outcome.ok());
  if (outcome.error().code == ExitCode::communication) return outcome;
  if (tier_.publishes()) static_cast<void>(store_->abandon_save(save->report.step).ok());
  report(*save, outcome);
  return {};
}

// Reports a save that none of its threads works on any more.
void AsyncSaver::report(Save& save, const Result<void>& outcome) {
  save.report.outcome = outcome;
  save.report.copy_ns = save.copy_ns;
  save.report.drain_ns = save.drain_ns;
  save.report.processor_ns = save.processor_ns;
  save.report.durable_ns = save.durable_ns;
  if (save.published.has_value() && save.published->ok()) save.report.publish_ns = **save.published;
  save.report.duration_ns = view_->rank.env.monotonic_ns() - save.begin_ns;
  reports_.push_back(std::move(save.report));
}

// A slow disk is not one that hangs: the limit is for a part of it, not for all.
void AsyncSaver::wait_for_disk() {
  RankWatch* const watch = view_->rank.watch;
  const auto busy = [&] {
    return (publish_.started() && !publish_.finished()) ||
           std::ranges::any_of(saves_, [](const auto& save) { return !save->job.finished(); });
  };
  constexpr std::int64_t look_again_us = 1000;
  if (watch != nullptr && busy()) {
    enter(watch, Phase::save, view_->state.step, view_->rank.config.watchdog.ceiling_ms);
    for (std::uint64_t before = 0; busy(); view_->rank.env.sleep_us(look_again_us)) {
      std::uint64_t drained = 0;
      for (const std::unique_ptr<Save>& save : saves_) drained += save->drained_bytes;
      if (std::exchange(before, drained) != drained) mark(watch);
    }
  }
  for (const std::unique_ptr<Save>& save : saves_) save->job.wait();
  publish_.wait();
}

// Holds a vote of its own, in which every rank has done what it has under way.
Result<void> AsyncSaver::complete_round() {
  wait_for_disk();
  if (is_copying() && !saves_.back()->is_whole) {
    const Result<void> device = view_->device_outcome();
    view_->rank.communicator.abandon();  // no step follows whose vote would tell the others
    return device.ok() ? outcome_of(saves_.back()->job.result()) : device;
  }
  SaveVotes::Words words = vote().words();
  HF_TRY_VOID(all_reduce_sum(view_->rank.communicator, patient_waiter(*view_), words));
  return advance(SaveVotes::of(words));
}

Result<void> AsyncSaver::finish() {
  while (!saves_.empty() || publishing_) HF_TRY_VOID(complete_round());
  return {};
}

Result<void> AsyncSaver::finish_with_replicas() {
  while (!saves_.empty() || publishing_ || sent_ != nullptr) HF_TRY_VOID(complete_round());
  return {};
}

}  // namespace holdfast::inline save
