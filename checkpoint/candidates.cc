#include "checkpoint/candidates.h"

#include <algorithm>
#include <tuple>

#include "checkpoint/lineage.h"
#include "checkpoint/names.h"
#include "runtime/os/foreign_text.h"
#include "runtime/os/retry.h"

namespace holdfast::checkpoint {
namespace {

namespace names = checkpoint_names;

Error as_checkpoint_error(const Error& error) {
  return with_code(ExitCode::checkpoint, error);
}

// Names in a directory; none when it does not exist.
Result<std::vector<std::string>> list_if_there(Env& env, const std::string& directory) {
  Result<FileStatus> status = env.status(directory);
  if (!status.ok()) return as_checkpoint_error(status.error());
  if (!status->exists) return std::vector<std::string>{};
  Result<std::vector<std::string>> list = env.list(directory);
  if (!list.ok()) return as_checkpoint_error(list.error());
  return list;
}

}  // namespace

Result<Checkpoint> open_verified(Env& env, const std::string& directory) {
  HF_TRY(Checkpoint checkpoint, Checkpoint::open(env, directory));
  HF_TRY_VOID(checkpoint.verify(env.processor_count()));
  return checkpoint;
}

Result<std::vector<CheckpointCandidate>> list_candidates(Env& env, const std::string& run_directory) {
  std::vector<CheckpointCandidate> candidates;
  const auto add = [&](std::uint64_t step, std::string directory) {
    Result<Manifest> manifest = read_manifest(env, directory);
    candidates.push_back({.step = step, .directory = std::move(directory), .manifest = std::move(manifest)});
  };
  const std::string visible = names::checkpoints(run_directory);
  HF_TRY(const std::vector<std::string> entries, list_if_there(env, visible));
  for (const std::string& name : entries) {
    if (const auto step = names::step_of(name)) add(*step, visible + "/" + name);
  }
  const std::string pending = names::pending(run_directory);
  HF_TRY(const std::vector<std::string> leftovers, list_if_there(env, pending));
  for (const std::string& name : leftovers) {
    if (!name.starts_with(names::replaced_prefix)) continue;
    const std::string step_name = name.substr(names::replaced_prefix.size());
    const auto step = names::step_of(step_name);
    const bool in_place = std::ranges::find(entries, step_name) != entries.end();
    if (step.has_value() && !in_place) add(*step, pending + "/" + name);
  }
  HF_TRY(const Lineage lineage, read_lineage(env, run_directory));
  std::uint64_t newest_generation = 0;
  for (CheckpointCandidate& candidate : candidates) {
    if (!candidate.manifest.ok()) continue;
    const Manifest& manifest = *candidate.manifest;
    candidate.discarded = manifest.run_id == lineage.run_id && lineage.discards(state_of(manifest));
    if (!candidate.discarded) newest_generation = std::max(newest_generation, manifest.generation);
  }
  std::ranges::stable_sort(candidates, std::greater<>(), [&](const CheckpointCandidate& candidate) {
    const std::uint64_t generation =
        candidate.manifest.ok() ? candidate.manifest.value().generation : newest_generation;
    return std::tuple(!candidate.discarded, generation, candidate.step);
  });
  return candidates;
}

Result<std::vector<CheckpointCandidate>> list_candidates_patiently(Env& env,
                                                                   const std::string& run_directory) {
  const auto list = [&]() -> Result<std::vector<CheckpointCandidate>> {
    HF_TRY(std::vector<CheckpointCandidate> candidates, list_candidates(env, run_directory));
    for (const CheckpointCandidate& candidate : candidates) {
      if (!candidate.manifest.ok() && candidate.manifest.error().reach == Reach::minute)
        return candidate.manifest.error();
    }
    return candidates;
  };
  Result<std::vector<CheckpointCandidate>> listed = retry_storage(env, list);
  return listed.ok() ? std::move(listed) : list_candidates(env, run_directory);
}

}  // namespace holdfast::checkpoint
