#include <utility>

#include "checkpoint/candidates.h"
#include "checkpoint/names.h"
#include "checkpoint/store.h"

namespace holdfast {
namespace {

namespace names = checkpoint_names;

Error in_directory(const std::string& directory, const Error& error) {
  return fail(ExitCode::checkpoint, "{}: {}", directory, error.message);
}

Result<std::optional<FoundCheckpoint>> find_in_run(Env& env, const std::string& run_directory) {
  HF_TRY(const std::vector<CheckpointCandidate> candidates, list_candidates(env, run_directory));
  if (candidates.empty()) return std::optional<FoundCheckpoint>();
  std::vector<std::string> skipped;
  for (const CheckpointCandidate& candidate : candidates) {
    if (!candidate.manifest.ok()) {
      skipped.push_back(candidate.manifest.error().message);
      continue;
    }
    Result<Checkpoint> checkpoint = open_verified(env, candidate.directory);
    if (checkpoint.ok()) {
      return std::optional<FoundCheckpoint>(
          FoundCheckpoint{.checkpoint = std::move(checkpoint).value(), .skipped = std::move(skipped)});
    }
    skipped.push_back(checkpoint.error().message);
  }
  std::string list;
  for (const std::string& sentence : skipped) list += "\n  " + sentence;
  return fail(
      ExitCode::checkpoint,
      "{} holds {} checkpoint{}, none of them whole; restore one from a copy, or set run.resume = \"never\" "
      "and another run.directory to start from the beginning:{}",
      names::checkpoints(run_directory), skipped.size(), skipped.size() == 1 ? "" : "s", list);
}

}  // namespace

Result<Checkpoint> Checkpoint::open(Env& env, const std::string& directory) {
  Checkpoint checkpoint;
  checkpoint.directory_ = directory;
  HF_TRY(checkpoint.manifest_, read_manifest(env, directory));
  for (const ShardFile& shard : checkpoint.manifest_.shards) {
    HF_TRY(ShardReader reader,
           ShardReader::open(env, directory, shard, checkpoint.manifest_.step, checkpoint.manifest_.run_id));
    checkpoint.shards_.push_back(std::move(reader));
  }
  return checkpoint;
}

std::vector<ShardSpec> Checkpoint::pieces() const {
  std::vector<ShardSpec> all;
  for (const ShardReader& shard : shards_)
    all.insert(all.end(), shard.pieces().begin(), shard.pieces().end());
  return all;
}

Result<void> Checkpoint::read(std::span<const Wanted> wanted) {
  std::vector<ShardSpec> specs;
  for (const Wanted& each : wanted) {
    HF_CHECK(each.target.size() == each.spec.byte_count(), "'{}' needs {} bytes, the target has {}",
             each.spec.tensor, each.spec.byte_count(), each.target.size());
    specs.push_back(each.spec);
  }
  std::vector<std::pair<std::size_t, std::size_t>> places;  // of every piece: shard, index inside it
  for (std::size_t shard = 0; shard < shards_.size(); ++shard) {
    for (std::size_t i = 0; i < shards_[shard].pieces().size(); ++i) places.emplace_back(shard, i);
  }
  Result<std::vector<ShardCopy>> copies = plan_copies(pieces(), specs);
  if (!copies.ok()) return in_directory(directory_, copies.error());
  for (const ShardCopy& copy : *copies) {
    const Wanted& each = wanted[copy.wanted_index];
    const std::uint64_t element_bytes = bytes_of(each.spec.dtype);
    const auto [shard, index] = places[copy.existing_index];
    HF_TRY_VOID(shards_[shard].read(
        index, copy.existing_offset,
        each.target.subspan(copy.wanted_offset * element_bytes, copy.element_count * element_bytes)));
  }
  return {};
}

Result<void> Checkpoint::verify() {
  for (ShardReader& shard : shards_) HF_TRY_VOID(shard.verify());
  const std::vector<ShardSpec> existing = pieces();
  const Result<std::vector<ShardCopy>> copies = plan_copies(existing, whole_slices(existing));
  if (!copies.ok()) return in_directory(directory_, copies.error());
  return {};
}

Result<std::optional<FoundCheckpoint>> find_checkpoint(Env& env, const std::string& path) {
  const Result<FileStatus> status = env.status(path);
  const Result<FileStatus> manifest = env.status(path + "/" + names::manifest);
  if (!status.ok() || !manifest.ok()) {
    return Error{ExitCode::checkpoint, status.ok() ? manifest.error().message : status.error().message};
  }
  if (!status.value().exists) return std::optional<FoundCheckpoint>();
  if (!status.value().directory) {
    return fail(ExitCode::checkpoint, "{} is a file; name a run directory or one checkpoint directory in it",
                path);
  }
  std::string directory = path;
  while (directory.size() > 1 && directory.ends_with('/')) directory.pop_back();
  const bool named_as_checkpoint =
      names::step_of(std::string_view(directory).substr(directory.find_last_of('/') + 1)).has_value();
  if (!manifest.value().exists && !named_as_checkpoint) return find_in_run(env, directory);
  HF_TRY(Checkpoint checkpoint, open_verified(env, directory));
  return std::optional<FoundCheckpoint>(FoundCheckpoint{.checkpoint = std::move(checkpoint), .skipped = {}});
}

}  // namespace holdfast
