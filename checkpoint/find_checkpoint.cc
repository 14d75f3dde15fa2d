#include "checkpoint/find_checkpoint.h"

#include <utility>

#include "checkpoint/candidates.h"
#include "checkpoint/lineage.h"
#include "checkpoint/names.h"
#include "runtime/os/retry.h"

namespace holdfast::checkpoint {
namespace {

namespace names = checkpoint_names;

Result<Checkpoint> open_and_use(Env& env, const std::string& directory, const CheckpointUse& use) {
  HF_TRY(Checkpoint checkpoint, Checkpoint::open(env, directory));
  HF_TRY_VOID(use(checkpoint));
  return checkpoint;
}

// Checkpoints that do not count, and why.
struct Skipped {
  std::vector<std::string> sentences = {};
  // Reach::minute: one of them may be read at another time; else Reach::peers: a part of one is on other hosts.
  Reach reach = Reach::run;

  void add(const Error& error) {
    sentences.push_back(error.message);
    const bool is_elsewhere = error.reach == Reach::peers && reach == Reach::run;
    if (error.reach == Reach::minute || is_elsewhere) reach = error.reach;
  }
};

Error only_discarded(const std::string& run_directory, const CheckpointCandidate& newest) {
  return fail(
      ExitCode::checkpoint,
      "{} holds checkpoints up to step {} of a future that the run has left ({}), and none that it goes "
      "on from; name one of them (run.resume = \"{}\") to go on from there",
      names::checkpoints(run_directory), newest.step, names::lineage(run_directory), newest.directory);
}

Result<std::optional<FoundCheckpoint>> find_in_run(Env& env, const std::string& run_directory,
                                                   const CheckpointUse& use) {
  HF_TRY(const std::vector<CheckpointCandidate> candidates, list_candidates_patiently(env, run_directory));
  if (candidates.empty()) return std::optional<FoundCheckpoint>();
  Skipped skipped;
  for (const CheckpointCandidate& candidate : candidates) {
    if (candidate.discarded) break;
    if (!candidate.manifest.ok()) {
      skipped.add(candidate.manifest.error());
      continue;
    }
    // An older one costs work, so a read that fails for a moment is repeated first.
    Result<Checkpoint> checkpoint =
        retry_storage(env, [&] { return open_and_use(env, candidate.directory, use); });
    if (checkpoint.ok()) {
      return std::optional<FoundCheckpoint>(FoundCheckpoint{.checkpoint = std::move(checkpoint).value(),
                                                            .skipped = std::move(skipped.sentences)});
    }
    skipped.add(checkpoint.error());
  }
  if (skipped.sentences.empty()) {
    HF_TRY(const Lineage lineage, read_lineage(env, run_directory));
    if (lineage.goes_back_to_start()) return std::optional<FoundCheckpoint>();
    return only_discarded(run_directory, candidates.front());
  }
  std::string list;
  for (const std::string& sentence : skipped.sentences) list += "\n  " + sentence;
  const std::size_t count = skipped.sentences.size();
  return with_reach(
      skipped.reach,
      fail(ExitCode::checkpoint,
           "{} holds {} checkpoint{}, none of them whole; restore one from a copy, or set run.resume = "
           "\"never\" and another run.directory to start from the beginning:{}",
           names::checkpoints(run_directory), count, count == 1 ? "" : "s", list));
}

}  // namespace

Result<std::optional<FoundCheckpoint>> find_checkpoint(Env& env, const std::string& path) {
  return find_checkpoint(env, path,
                         [&](Checkpoint& checkpoint) { return checkpoint.verify(env.processor_count()); });
}

Result<std::optional<FoundCheckpoint>> find_checkpoint(Env& env, const std::string& path,
                                                       const CheckpointUse& use) {
  const Result<FileStatus> status = env.status(path);
  const Result<FileStatus> manifest = env.status(path + "/" + names::manifest);
  if (!status.ok() || !manifest.ok()) {
    return with_code(ExitCode::checkpoint, status.ok() ? manifest.error() : status.error());
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
  if (!manifest.value().exists && !named_as_checkpoint) return find_in_run(env, directory, use);
  HF_TRY(Checkpoint checkpoint, open_and_use(env, directory, use));
  return std::optional<FoundCheckpoint>(FoundCheckpoint{.checkpoint = std::move(checkpoint), .skipped = {}});
}

}  // namespace holdfast::checkpoint
