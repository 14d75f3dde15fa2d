// Opens the checkpoint or checkpoints that a command works on, and reads the device that it computes on.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/candidates.h"
#include "checkpoint/store.h"
#include "runtime/cli/common/arguments.h"
#include "runtime/config/loader.h"
#include "runtime/core/result.h"
#include "runtime/os/env.h"
#include "runtime/text/tokenizer.h"

namespace holdfast::cli {

// Opens a checkpoint. `path` is a run directory (its newest whole checkpoint) or one checkpoint. Damaged ones
// that were skipped are named on stderr. ExitCode::checkpoint when there is none.
Result<Checkpoint> open_newest_checkpoint(Env& env, const std::string& path);
// Does the same for a caller that reads the checkpoint anyhow, so that its bytes are read once: `use` gets a
// checkpoint whose bytes are not verified yet, and calls verify() before it uses what it has read. Where
// verify() or a read finds damage, the result of `use` is discarded, and it is called with the next older
// checkpoint.
Result<void> use_newest_checkpoint(Env& env, const std::string& path,
                                   const std::function<Result<void>(Checkpoint&)>& use);

// All checkpoints that a path stands for, newest first; at least one.
struct CheckpointPaths {
  std::vector<std::string> directories;
  std::vector<CheckpointCandidate> of_run;  // the same, of a run directory; empty for a single checkpoint
};
Result<CheckpointPaths> checkpoints_at(Env& env, std::string path);

// Returns the tokenizer.json that the run of a checkpoint has kept (text/source_tokens.h); empty: it has none.
Result<std::string> tokenizer_of_run(Env& env, const Checkpoint& checkpoint);

// Returns the tokenizer of a command's --tokenizer and --pattern, or else the one that the run of the checkpoint has kept; nothing: there
// is none. Errors: data, where the file is none that can be used; config.
Result<std::optional<Tokenizer>> tokenizer_option(Env& env, const Arguments& arguments,
                                                  const Checkpoint& checkpoint);
// Fails with ExitCode::config where a model with a vocabulary of this size was not trained with the tokenizer.
Result<void> check_fits(const Tokenizer& tokenizer, std::int64_t vocabulary);

// Takes the words that are keys of [kernels] (--kernels.add=mine) out of a command's words. ExitCode::config where one has no
// value.
Result<std::vector<Override>> take_kernel_keys(std::vector<std::string>& words);

// Reads --device of a command that computes with a trained model. Returns "cpu" or "cuda", and prints on stderr what auto was resolved to where there may be a GPU.
// ExitCode::config for any other word.
Result<std::string> device_option(const Arguments& arguments, Env& env);

}  // namespace holdfast::cli
