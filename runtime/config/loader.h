// Loads a checked Config from TOML text, environment and command line, with the origin of every value.
//
// Precedence: default < include < file < environment (HOLDFAST_SECTION_KEY) < command line
// (--section.key=value). `include = "base.toml"` (or a list) is relative to the including file. Arrays
// replace, never merge. Unknown keys are errors with a suggestion, in the environment too. All errors are
// collected; each has file:line:column (or the flag, or the variable).
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "runtime/config/config.h"
#include "runtime/config/environment.h"
#include "runtime/core/result.h"
#include "runtime/os/env.h"

namespace holdfast::config {

struct Override {
  std::string key;    // "training.steps"
  std::string value;  // as typed; TOML value syntax, bare words are strings
};

struct LoadedConfig {
  Config config;
  std::map<std::string, std::string>
      origin;  // key -> "run.toml:3:6", "command line", "environment ...", "default"
};

// Describes one problem. Problems are in file order; format_problems prints one a line, with a count at the
// end.
struct ConfigProblem {
  std::string place;
  std::string message;
};
std::string format_problems(const std::vector<ConfigProblem>& problems);

// Both load and check a config. On failure the error (ExitCode::config) holds all problems of single keys
// and, when there are none of those, all cross-field ones.
Result<LoadedConfig> load_config(Env& env, const std::string& path, const std::vector<Override>& overrides);
Result<LoadedConfig> load_config_text(Env& env, const std::string& text, const std::string& name,
                                      const std::vector<Override>& overrides);

// StoredConfig says who stored a config.
enum class StoredConfig : std::uint8_t {
  of_run,
  of_weights,  // an import: what no weights tell (run.directory, data.sources, training.steps) may be missing
};
// Loads the config that a run or a checkpoint was stored with: from the text alone, because a stored config
// does not change with the present environment. Its kernels.plugins count as empty: code is loaded from where the user
// of this process says, never from what a run directory or a checkpoint says.
Result<LoadedConfig> load_stored_config(Env& env, const std::string& text, const std::string& name,
                                        StoredConfig of = StoredConfig::of_run,
                                        const std::vector<Override>& overrides = {});
// Does the same for the config of a run, with overrides.
inline Result<LoadedConfig> load_stored_config(Env& env, const std::string& text, const std::string& name,
                                               const std::vector<Override>& overrides) {
  return load_stored_config(env, text, name, StoredConfig::of_run, overrides);
}

// Splits "--section.key=value" arguments; anything else is an error with a message.
Result<std::vector<Override>> parse_overrides(const std::vector<std::string>& arguments);

// Checks the rules between fields (heads divide width, lanes >= data, ...); messages name both keys. Pure. A
// problem's place is the origin of a key that it names, empty when none was set.
std::vector<ConfigProblem> check_config(const Config& config,
                                        const std::map<std::string, std::string>& origin);
// Checks those of them that are about the model alone.
std::vector<ConfigProblem> check_model(const Config& config,
                                       const std::map<std::string, std::string>& origin);
// Checks the same for the intervals of saves. It is not called for a stored config, whose intervals no longer
// apply.
std::vector<ConfigProblem> check_intervals(const Config& config,
                                           const std::map<std::string, std::string>& origin);

// Default of parallel.lanes for a run that sets neither that nor parallel.data.
inline constexpr std::int64_t default_lanes = 8;

// Fills in what follows from other values: preset shapes, kv_heads, feed_forward, head, positions, lanes,
// tensor_lanes, tensor, pipeline. `vocabulary_of_data` is the smallest vocabulary that fits the data (0 =
// unknown) and the value of model.vocabulary when that is left out. parallel.data stays as it was given,
// because the number of available ranks is not a setting: the degree of a start is ranks / (tensor x
// pipeline). runtime/run/run_layout.h checks whether the layout is possible for them.
Result<void> resolve_config(Config& config, std::int64_t vocabulary_of_data);

// Returns the rows of the embedding and the head: the vocabulary, rounded up to a multiple of 64.
std::int64_t padded_vocabulary(const ModelConfig& model);

// Returns training.head_rows for a config that leaves it out, from its device, vocabulary and precision: 0 on
// a CPU, where a chunk of the LM head follows from the cache (head_chunk_rows() in
// runtime/model/activations.h). On a GPU each chunk reads the whole head and reads and writes its weight
// gradient, so a chunk is as large as fits into a bounded part of the GPU's memory.
std::int64_t default_head_rows(const Config& config);

// Takes over resolved values of the first start of a run: for each key of the logical shape that `config`
// leaves out (lanes, tensor lanes, model shapes that have a computed default), and for a device of "auto",
// the value of `stored`. A preset that meant another model when the run began gives way to the stored model. Call before
// resolve_config when a run is resumed.
void inherit_resolved(Config& config, const Config& stored);

}  // namespace holdfast::config
