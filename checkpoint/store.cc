#include "checkpoint/store.h"

#include <fmt/core.h>

#include <algorithm>
#include <set>
#include <tuple>

#include "checkpoint/candidates.h"
#include "checkpoint/names.h"

namespace holdfast::checkpoint {
namespace {

namespace names = checkpoint_names;

Result<void> write_manifest(Env& env, const std::string& directory, const std::string& text) {
  HF_TRY(const std::unique_ptr<File> file, env.open(directory + "/" + names::manifest, OpenMode::create));
  HF_TRY_VOID(file->write_at(0, std::as_bytes(std::span(text.data(), text.size()))));
  HF_TRY_VOID(file->sync());
  return env.sync_directory(directory);
}

// Returns what is in RUN/.pending; nothing where that is not there.
Result<std::vector<std::string>> entries_of(Env& env, const std::string& pending) {
  HF_TRY(const FileStatus status, env.status(pending));
  if (!status.exists) return std::vector<std::string>();
  return env.list(pending);
}

// A writer died between moving a whole checkpoint away and putting its successor there.
Result<void> put_replaced_back(Env& env, const std::string& run_directory) {
  const std::string pending = names::pending(run_directory);
  HF_TRY(const std::vector<std::string> entries, entries_of(env, pending));
  for (const std::string& name : entries) {
    if (!name.starts_with(names::replaced_prefix)) continue;
    const std::string visible = names::checkpoints(run_directory);
    const std::string target = visible + "/" + name.substr(names::replaced_prefix.size());
    HF_TRY(const FileStatus in_place, env.status(target));
    if (in_place.exists) continue;
    HF_TRY_VOID(env.rename(pending + "/" + name, target));
    HF_TRY_VOID(env.sync_directory(visible));
  }
  return {};
}

// Lists every tensor and kind in the shards of a checkpoint once. Opens all shards, so that one that its
// writer calls durable and that this rank does not see fails the save, not the restart.
Result<std::vector<ShardSpec>> tensors_of_shards(Env& env, const std::string& directory,
                                                 const Manifest& manifest) {
  std::vector<ShardSpec> tensors;
  std::set<std::pair<std::string, std::string>> seen;
  for (const ShardFile& shard : manifest.shards) {
    HF_TRY(const ShardReader reader,
           ShardReader::open(env, directory, shard, manifest.step, manifest.run_id));
    for (const IndexedPiece& piece : reader.pieces()) {
      if (!seen.insert({piece.spec.tensor, piece.spec.kind}).second) continue;
      ShardSpec& tensor = tensors.emplace_back(piece.spec);
      tensor.slice = 0;
      tensor.first_block = 0;
      tensor.block_count = tensor.slice_blocks();
    }
  }
  std::ranges::sort(tensors, {}, [](const ShardSpec& spec) { return std::tie(spec.tensor, spec.kind); });
  return tensors;
}

// The part of this host, opened for the same reason.
Result<std::vector<ShardReader>> shards_of_host(Env& env, const std::string& directory,
                                                const Manifest& manifest, const std::string& host) {
  std::vector<ShardReader> shards;
  for (const ShardFile& shard : manifest.shards) {
    if (std::ranges::find(shard.hosts, host) == shard.hosts.end()) continue;
    HF_TRY(ShardReader reader, ShardReader::open(env, directory, shard, manifest.step, manifest.run_id));
    shards.push_back(std::move(reader));
  }
  return shards;
}

// Returns whether there is already a whole checkpoint with exactly this manifest, and so with exactly these
// bytes.
bool is_already_there(const Result<Checkpoint>& existing, const Manifest& manifest) {
  if (!existing.ok()) return false;
  Manifest there = existing->manifest();
  there.epoch = manifest.epoch;  // whoever wrote it
  return encode_manifest(there) == encode_manifest(manifest);
}

// Turns every error into ExitCode::checkpoint, whatever the system calls it.
Result<void> as_checkpoint_result(Result<void> result) {
  if (!result.ok()) return with_code(ExitCode::checkpoint, result.error());
  return {};
}

}  // namespace

CheckpointStore::CheckpointStore(Env& env, FaultPoints& faults, std::string run_directory,
                                 std::uint64_t writer)
    : env_(&env), faults_(&faults), run_directory_(std::move(run_directory)), writer_(writer) {}

std::string CheckpointStore::pending_directory(std::uint64_t step) const {
  return fmt::format("{}/{}-{:016x}", names::pending(run_directory_), names::step_name(step), writer_);
}

std::string CheckpointStore::checkpoint_directory(std::uint64_t step) const {
  return names::checkpoints(run_directory_) + "/" + names::step_name(step);
}

std::string CheckpointStore::shard_name(int rank) {
  return fmt::format("shard-{:05}.hfs", rank);
}

Result<void> CheckpointStore::restore_replaced() {
  HF_TRY_VOID(check_fence());
  return as_checkpoint_result(put_replaced_back(*env_, run_directory_));
}

Result<void> CheckpointStore::remove_leftovers() {
  const std::string pending = names::pending(run_directory_);
  // Leftovers that are there before the fence says that nobody else writes are of this writer or an earlier one, even
  // where this process is stopped after that.
  const Result<std::vector<std::string>> leftovers = entries_of(*env_, pending);
  HF_TRY_VOID(as_checkpoint_result(outcome_of(leftovers)));
  HF_TRY_VOID(restore_replaced());
  // One that cannot be removed now takes room and does no harm: a save counts by what its manifest names.
  for (const std::string& name : *leftovers) static_cast<void>(env_->remove_tree(pending + "/" + name).ok());
  return {};
}

Result<void> CheckpointStore::begin_save(std::uint64_t step) {
  HF_TRY_VOID(remove_leftovers());
  return as_checkpoint_result(env_->make_directories(pending_directory(step)));
}

Result<void> CheckpointStore::record_rollback(const std::string& run_id, const Generation& generation) {
  const std::scoped_lock lock(lineage_mutex_);
  return checkpoint::record_rollback(*env_, run_directory_, run_id, generation, fence_.check);
}

Result<void> CheckpointStore::replace_lineage(const Lineage& lineage) {
  const std::scoped_lock lock(lineage_mutex_);
  return write_lineage(*env_, run_directory_, lineage, fence_.check);
}

Result<void> CheckpointStore::abandon_save(std::uint64_t step) {
  return env_->remove_tree(pending_directory(step));
}

Result<void> CheckpointStore::publish(const Manifest& manifest) {
  Result<void> published = publish_pending(manifest);
  if (!published.ok()) {
    // Gives the disk its space back; if that fails too, the next writer removes it, and the first error is
    // the one to tell.
    static_cast<void>(abandon_save(manifest.step).ok());
    if (published.error().code == ExitCode::communication) return published;
    return fail_because(published.error(), ExitCode::checkpoint,
                        "the checkpoint of step {} could not be published: {}", manifest.step,
                        published.error().message);
  }
  return {};
}

std::string CheckpointStore::newest_directory() const {
  const Result<std::vector<CheckpointCandidate>> candidates = list_candidates(*env_, run_directory_);
  if (!candidates.ok()) return {};
  const auto newest = std::ranges::find_if(candidates.value(), [](const CheckpointCandidate& candidate) {
    return candidate.manifest.ok() && !candidate.discarded;
  });
  return newest == candidates.value().end() ? std::string() : newest->directory;
}

std::optional<ParentCheckpoint> CheckpointStore::parent_of(const Manifest& manifest) const {
  const Result<std::vector<CheckpointCandidate>> candidates = list_candidates(*env_, run_directory_);
  if (!candidates.ok()) return std::nullopt;
  for (const CheckpointCandidate& candidate : candidates.value()) {
    if (!candidate.manifest.ok() || candidate.discarded) continue;
    const Manifest& other = candidate.manifest.value();
    if (std::pair(other.generation, other.step) < std::pair(manifest.generation, manifest.step))
      return ParentCheckpoint{.generation = other.generation, .step = other.step};
  }
  return std::nullopt;
}

Result<void> CheckpointStore::publish_pending(Manifest manifest) {
  const std::string source = pending_directory(manifest.step);
  const std::string target = checkpoint_directory(manifest.step);
  if (host_.empty()) {
    HF_TRY(manifest.tensors, tensors_of_shards(*env_, source, manifest));
  } else {
    HF_TRY_VOID(outcome_of(shards_of_host(*env_, source, manifest, host_)));
  }
  manifest.parent = parent_of(manifest);
  manifest.epoch = fence_.epoch;
  const std::string text = encode_manifest(manifest);
  HF_FAILING_FAULT_POINT(*faults_, "save.before_manifest");
  HF_TRY_VOID(write_manifest(*env_, source, text));
  HF_TRY_VOID(env_->make_directories(names::checkpoints(run_directory_)));
  HF_TRY(const FileStatus occupied, env_->status(target));
  if (occupied.exists && is_already_there(verify_own(target), manifest)) return abandon_save(manifest.step);
  HF_TRY_VOID(check_fence());

  const std::string aside = fmt::format("{}/{}{}", names::pending(run_directory_), names::replaced_prefix,
                                        names::step_name(manifest.step));
  if (occupied.exists) {
    // .pending was made anew by this save: what is moved into it must not be lost with its name.
    HF_TRY_VOID(env_->sync_directory(run_directory_));
    HF_TRY_VOID(env_->rename(target, aside));
  }
  const std::scoped_lock lock(lineage_mutex_);  // published() sees the checkpoint with its record
  Result<void> renamed = faults_->attempt("save.before_rename");
  if (renamed.ok()) renamed = check_fence();
  if (renamed.ok()) renamed = env_->rename(source, target);
  if (!renamed.ok()) {
    // The rename back is for tidiness after a mere error; the checkpoint would be found where it is, too.
    if (occupied.exists) static_cast<void>(env_->rename(aside, target).ok());
    return renamed;
  }
  HF_FAULT_POINT(*faults_, "save.after_rename");
  HF_TRY_VOID(env_->sync_directory(names::checkpoints(run_directory_)));
  HF_TRY_VOID(env_->sync_directory(run_directory_));
  // The record serves only to notice that a checkpoint was removed from outside later, so a failure is
  // ignored.
  static_cast<void>(record_newest_checkpoint(*env_, run_directory_, manifest, fence_.check).ok());
  // The save is done; what cannot be removed now is removed by the next writer.
  if (occupied.exists) static_cast<void>(env_->remove_tree(aside).ok());
  return {};
}

CheckpointStore::Published CheckpointStore::published() {
  const std::scoped_lock lock(lineage_mutex_);
  return {.candidates = list_candidates(*env_, run_directory_),
          .lineage = read_lineage(*env_, run_directory_)};
}

void CheckpointStore::set_in_use(std::vector<std::uint64_t> steps) {
  const std::scoped_lock lock(mutex_);
  steps_in_use_ = std::move(steps);
}

void CheckpointStore::keep_for_good(std::int64_t every_steps) {
  HF_CHECK(every_steps >= 0);
  good_every_steps_ = static_cast<std::uint64_t>(every_steps);
}

void CheckpointStore::keep_around(std::uint64_t step) {
  const std::scoped_lock lock(mutex_);
  around_ = step;
}

std::vector<std::string> CheckpointStore::kept_around(std::span<const CheckpointCandidate> candidates) {
  const std::scoped_lock lock(mutex_);
  if (!around_.has_value()) return {};
  const CheckpointCandidate *before = nullptr, *after = nullptr;
  for (const CheckpointCandidate& candidate : candidates) {  // newest first
    if (!candidate.manifest.ok() || candidate.discarded) continue;
    if (candidate.step > *around_) after = &candidate;
    if (candidate.step <= *around_ && before == nullptr) before = &candidate;
  }
  std::vector<std::string> kept;
  for (const CheckpointCandidate* const each : {before, after})
    if (each != nullptr) kept.push_back(each->directory);
  return kept;
}

// Returns the newest whole checkpoint of a future that was left, if the run has none of its step or beyond; else an
// empty text.
std::string CheckpointStore::newest_ahead(std::span<const CheckpointCandidate> candidates) const {
  std::optional<std::uint64_t> reached;
  for (const CheckpointCandidate& candidate : candidates) {  // newest first, discarded ones last
    const bool is_ahead = candidate.discarded && candidate.step > reached.value_or(0);
    const bool matters = is_ahead || (!candidate.discarded && !reached.has_value());
    if (!matters || !candidate.manifest.ok() || !open_own(candidate.directory).ok()) continue;
    if (candidate.discarded) return candidate.directory;
    reached = candidate.step;
  }
  return {};
}

bool CheckpointStore::stays(const CheckpointCandidate& candidate) {
  if (!candidate.manifest.ok()) return false;
  if (good_every_steps_ > 0 && candidate.step % good_every_steps_ == 0) return true;
  const std::scoped_lock lock(mutex_);
  return std::ranges::find(steps_in_use_, candidate.step) != steps_in_use_.end();
}

bool CheckpointStore::is_beyond(const CheckpointCandidate& candidate) const {
  if (!has_part() || !candidate.manifest.ok()) return false;
  const ParentCheckpoint state = state_of(*candidate.manifest);
  return std::pair(state.generation, state.step) > std::pair(on_all_hosts_->generation, on_all_hosts_->step);
}

bool CheckpointStore::is_known_whole(const CheckpointCandidate& candidate) const {
  return !candidate.discarded && candidate.manifest.ok() &&
         encode_manifest(candidate.manifest.value()) == read_to_the_end_ &&
         open_own(candidate.directory).ok();
}

// Reads only the newest whole checkpoint to the end before it removes anything. Files that are there with the
// right lengths and indices make a checkpoint count, but one must be verified to the last bit before anything
// older is removed; reading every one would take the disk and a processor from training at every save.
Result<void> CheckpointStore::retain(std::int64_t keep) {
  HF_CHECK(keep >= 1);
  if (has_part() && !on_all_hosts_.has_value()) return {};
  HF_TRY(std::vector<CheckpointCandidate> candidates, list_candidates(*env_, run_directory_));
  std::erase_if(candidates, [this](const CheckpointCandidate& candidate) { return is_beyond(candidate); });
  if (std::ssize(candidates) <= keep) return {};
  constexpr std::int64_t keep_with_one_ahead = 3;  // two at least are of the run
  const std::string ahead = keep >= keep_with_one_ahead ? newest_ahead(candidates) : "";
  if (!ahead.empty()) --keep;
  const auto stay = std::span(candidates).first(static_cast<std::size_t>(keep));
  bool one_is_known =
      std::ranges::any_of(stay, [this](const CheckpointCandidate& one) { return is_known_whole(one); });
  std::int64_t whole = 0;
  const std::vector<std::string> kept = kept_around(candidates);
  for (const CheckpointCandidate& candidate : candidates) {
    if (candidate.directory == ahead) continue;
    if (whole >= keep) {
      if (stays(candidate) || std::ranges::find(kept, candidate.directory) != kept.end()) continue;
      HF_TRY_VOID(remove_directory(candidate.directory));
      continue;
    }
    if (!candidate.manifest.ok()) continue;
    const bool counts =
        one_is_known ? open_own(candidate.directory).ok() : verify_own(candidate.directory).ok();
    if (!counts) continue;
    ++whole;
    if (!one_is_known) read_to_the_end_ = encode_manifest(candidate.manifest.value());
    one_is_known = true;
  }
  return {};
}

Result<Checkpoint> CheckpointStore::open_own(const std::string& directory) const {
  if (host_.empty()) return Checkpoint::open(*env_, directory);
  HF_TRY(Checkpoint checkpoint, Checkpoint::open(*env_, directory, Checkpoint::Shards::present));
  for (const ShardFile& shard : checkpoint.manifest().shards) {
    const bool is_own = std::ranges::find(shard.hosts, host_) != shard.hosts.end();
    if (is_own && std::ranges::find(checkpoint.missing(), shard.name) != checkpoint.missing().end())
      return fail(ExitCode::checkpoint, "{}/{} is missing; {} names this host", directory, shard.name,
                  names::manifest);
  }
  return checkpoint;
}

Result<Checkpoint> CheckpointStore::verify_own(const std::string& directory) const {
  HF_TRY(Checkpoint checkpoint, open_own(directory));
  HF_TRY_VOID(checkpoint.verify(env_->processor_count()));
  return checkpoint;
}

Result<void> CheckpointStore::remove(std::uint64_t step) {
  return remove_directory(checkpoint_directory(step));
}

Result<void> CheckpointStore::remove_directory(const std::string& directory) {
  HF_TRY_VOID(check_fence());
  return as_checkpoint_result(remove_checkpoint(directory));
}

// The rename makes it disappear at once: a half-removed checkpoint is never visible.
Result<void> CheckpointStore::remove_checkpoint(const std::string& directory) {
  const std::string pending = names::pending(run_directory_);
  const std::string aside = pending + "/removed-" + directory.substr(directory.find_last_of('/') + 1);
  HF_TRY_VOID(env_->make_directories(pending));
  HF_TRY_VOID(env_->remove_tree(aside));
  HF_FAULT_POINT(*faults_, "retain.before_rename");
  HF_TRY_VOID(env_->rename(directory, aside));
  HF_FAULT_POINT(*faults_, "retain.after_rename");
  HF_TRY_VOID(env_->sync_directory(names::checkpoints(run_directory_)));
  return env_->remove_tree(aside);
}

}  // namespace holdfast::checkpoint
