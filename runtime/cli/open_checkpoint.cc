#include "runtime/cli/open_checkpoint.h"

#include <algorithm>
#include <filesystem>

#include "checkpoint/find_checkpoint.h"
#include "checkpoint/names.h"
#include "runtime/interop/checkpoint_contents.h"
#include "runtime/os/console.h"
#include "runtime/os/paths.h"
#include "runtime/rank/device_choice.h"
#include "runtime/text/source_tokens.h"
#include "runtime/text/tokenizer_file.h"

namespace holdfast::cli {
namespace {

Error no_checkpoint(const std::string& path) {
  return fail(
      ExitCode::checkpoint,
      "{} holds no checkpoint. Give the run.directory of a run that has saved, or one checkpoint in its "
      "checkpoints/",
      path);
}

void say_skipped(const FoundCheckpoint& found) {
  for (const std::string& sentence : found.skipped) print_message("checkpoint skipped: {}", sentence);
}

}  // namespace

Result<Checkpoint> open_newest_checkpoint(Env& env, const std::string& path) {
  HF_TRY(std::optional<FoundCheckpoint> found, find_checkpoint(env, path));
  if (!found.has_value()) return no_checkpoint(path);
  say_skipped(*found);
  return std::move(found->checkpoint);
}

Result<void> use_newest_checkpoint(Env& env, const std::string& path,
                                   const std::function<Result<void>(Checkpoint&)>& use) {
  Result<void> outcome;
  const Result<std::optional<FoundCheckpoint>> found =
      find_checkpoint(env, path, [&](Checkpoint& checkpoint) -> Result<void> {
        outcome = use(checkpoint);
        return checkpoint.damage().has_value() ? *checkpoint.damage() : Result<void>();
      });
  if (!found.ok()) return found.error();
  if (!found->has_value()) return no_checkpoint(path);
  say_skipped(**found);
  return outcome;
}

Result<CheckpointPaths> checkpoints_at(Env& env, std::string path) {
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  HF_TRY(const FileStatus manifest, env.status(path + "/" + checkpoint_names::manifest));
  const bool is_checkpoint =
      manifest.exists ||
      checkpoint_names::step_of(std::string_view(path).substr(path.find_last_of('/') + 1)).has_value();
  if (is_checkpoint) return CheckpointPaths{.directories = {std::move(path)}, .of_run = {}};
  CheckpointPaths paths;
  HF_TRY(paths.of_run, list_candidates(env, path));
  for (const CheckpointCandidate& candidate : paths.of_run) paths.directories.push_back(candidate.directory);
  if (paths.directories.empty()) return no_checkpoint(path);
  return paths;
}

Result<std::vector<Override>> take_kernel_keys(std::vector<std::string>& words) {
  std::vector<std::string> keys;
  std::erase_if(words, [&keys](const std::string& word) {
    const bool is_key = word.starts_with("--kernels.");
    if (is_key) keys.push_back(word);
    return is_key;
  });
  return parse_overrides(keys);
}

Result<std::string> device_option(const Arguments& arguments, Env& env) {
  Config config;
  HF_TRY(config.device, arguments.choice("device", {"auto", "cpu", "cuda"}));
  const std::string choice = resolve_device(env, config);
  if (!choice.empty()) print_message("{}", choice);
  return config.device;
}

// A checkpoint may lie anywhere, beside a tokenizer that has nothing to do with it: the config decides.
Result<std::string> tokenizer_of_run(Env& env, const Checkpoint& checkpoint) {
  HF_TRY(const Config config, config_of_checkpoint(env, checkpoint));
  if (std::ranges::none_of(config.data.sources, is_tokenized)) return std::string();
  const std::filesystem::path directory = os::real_path(checkpoint.directory());
  std::string kept = kept_tokenizer(directory.parent_path().parent_path().string());
  HF_TRY(const FileStatus status, env.status(kept));
  return status.exists ? std::move(kept) : std::string();
}

Result<std::optional<Tokenizer>> tokenizer_option(Env& env, const Arguments& arguments,
                                                  const Checkpoint& checkpoint) {
  if (arguments.has("pattern") && !arguments.has("tokenizer"))
    return fail(
        ExitCode::config,
        "--pattern is for --tokenizer FILE with a rank file of tiktoken; give it, or leave --pattern out");
  std::string file = arguments.text("tokenizer", "");
  if (file.empty()) {
    HF_TRY(file, tokenizer_of_run(env, checkpoint));
  }
  if (file.empty()) return std::optional<Tokenizer>();
  HF_TRY(Tokenizer tokenizer, read_tokenizer(env, file, arguments.text("pattern", "")));
  return std::optional(std::move(tokenizer));
}

Result<void> check_fits(const Tokenizer& tokenizer, std::int64_t vocabulary) {
  if (tokenizer.vocabulary() <= vocabulary) return {};
  return fail(
      ExitCode::config,
      "the tokenizer has {} tokens, the model {}: it was trained with another tokenizer; give that one",
      tokenizer.vocabulary(), vocabulary);
}

}  // namespace holdfast::cli
