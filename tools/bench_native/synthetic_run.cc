#include "tools/bench_native/synthetic_run.h"

#include <fmt/core.h>

#include <algorithm>

#include "runtime/config/presets.h"
#include "runtime/elastic/join.h"
#include "runtime/rank/device_choice.h"
#include "tools/bench_native/token_files.h"

namespace holdfast::bench {
namespace {

constexpr std::string_view synthetic_path = "synthetic";  // of the source that stands for made-up tokens

constexpr const char* default_run = R"(
[run]
directory = "none"
[model]
preset = "gpt2-124m"
[data]
sources = [{path = "synthetic", format = "llmc"}]
[training]
steps = 1000
sequence_length = 64
microbatch_size = 4
[parallel]
lanes = 1
)";

std::int64_t vocabulary_of(const Config& config) {
  if (const ModelPreset* preset = find_preset(config.model.preset)) return preset->model.vocabulary;
  constexpr std::int64_t gpt2 = 50257;
  return config.model.vocabulary > 0 ? config.model.vocabulary : gpt2;
}

Result<std::unique_ptr<ScratchDirectory>> make_tokens(Env& env, Config& config) {
  HF_TRY(std::unique_ptr<ScratchDirectory> scratch, ScratchDirectory::make(env));
  constexpr std::int64_t tokens = 1 << 20;
  const std::int64_t count = std::max(tokens, 16 * (config.training.sequence_length + 1));
  config.data.sources.front().path = scratch->file("tokens.bin");
  HF_TRY_VOID(outcome_of(write_token_file(env, {.format = "llmc", .vocabulary = vocabulary_of(config)},
                                          config.data.sources.front().path, count)));
  return scratch;
}

}  // namespace

Result<std::unique_ptr<ScratchDirectory>> ScratchDirectory::make(Env& env, std::string parent) {
  if (parent.empty()) parent = env.variable("TMPDIR").empty() ? "/tmp" : env.variable("TMPDIR");
  const std::string path = fmt::format("{}/holdfast-bench-{:016x}", parent, env.random_u64());
  HF_TRY_VOID(env.make_directories(path));
  return std::unique_ptr<ScratchDirectory>(new ScratchDirectory(env, path));
}

ScratchDirectory::~ScratchDirectory() {
  static_cast<void>(env_->remove_tree(path_).ok());  // nothing depends on it
}

int threads_of(Env& env, const Config& config) {
  return config.threads > 0 ? static_cast<int>(config.threads) : env.processor_count();
}

Result<BenchRun> load_bench_run(Env& env, const std::string& config_path,
                                const std::vector<Override>& overrides) {
  BenchRun run;
  HF_TRY(const LoadedConfig loaded,
         config_path.empty() ? load_config_text(env, default_run, "the default of bench", overrides)
                             : load_config(env, config_path, overrides));
  run.config = loaded.config;
  run.config.data.ledger = false;
  HF_TRY_VOID(check_device(env, run.config, loaded.origin));
  resolve_device(env, run.config);
  if (config_path.empty() && run.config.data.sources.size() == 1 &&
      run.config.data.sources.front().path == synthetic_path) {
    HF_TRY(run.scratch, make_tokens(env, run.config));
  }
  HF_TRY(run.data, DataSet::open(env, run.config.data.sources, run.config.training.sequence_length));
  HF_TRY_VOID(resolve_with_data(run.config, 1, *run.data));
  return run;
}

}  // namespace holdfast::bench
