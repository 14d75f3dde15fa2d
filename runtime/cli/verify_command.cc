#include <fmt/core.h>

#include "checkpoint/candidates.h"
#include "runtime/cli/commands.h"
#include "runtime/cli/common/arguments.h"
#include "runtime/cli/open_checkpoint.h"
#include "runtime/os/foreign_text.h"

namespace holdfast::cli {
namespace {

constexpr const char* verify_usage =
    "usage: holdfast verify PATH\n"
    "\n"
    "PATH is a run directory (all its checkpoints) or one checkpoint. Reads every byte against its checksum "
    "and prints a\n"
    "line for each checkpoint. Exit code 0 when all are whole, 5 when one is damaged or there is none.\n";

// Prints one line for one checkpoint. Returns whether it is whole.
bool verify_one(Env& env, const std::string& directory) {
  const Result<Checkpoint> checkpoint = open_verified(env, directory);
  if (!checkpoint.ok()) {
    fmt::print("damaged  {}: {}\n", directory, printable(checkpoint.error().message));
    return false;
  }
  const Manifest& manifest = checkpoint.value().manifest();
  std::uint64_t bytes = 0;
  for (const ShardFile& shard : manifest.shards) bytes += shard.bytes;
  fmt::print("whole    {}: step {}, {} bytes in {} file{}\n", directory, manifest.step, bytes,
             manifest.shards.size(), manifest.shards.size() == 1 ? "" : "s");
  return true;
}

Result<void> verify(const std::vector<std::string>& words) {
  Env& env = posix_env();
  HF_TRY(const Arguments arguments, Arguments::parse("verify", words, {"PATH"}, {}));
  HF_TRY(const CheckpointPaths paths, checkpoints_at(env, arguments.positional(0)));
  const std::vector<std::string>& directories = paths.directories;
  std::size_t damaged = 0;
  for (const std::string& directory : directories) damaged += verify_one(env, directory) ? 0 : 1;
  if (damaged == 0) return {};
  return fail(ExitCode::checkpoint,
              "{} of {} checkpoint{} {} damaged. A run resumes from the newest whole one; remove a damaged "
              "one, or restore it from a copy",
              damaged, directories.size(), directories.size() == 1 ? "" : "s", damaged == 1 ? "is" : "are");
}

}  // namespace

int run_verify_command(const std::vector<std::string>& arguments) {
  if (wants_help(arguments)) {
    fmt::print("{}", verify_usage);
    return 0;
  }
  const Result<void> outcome = verify(arguments);
  return outcome.ok() ? 0 : complain(outcome.error());
}

}  // namespace holdfast::cli
