#include "runtime/bench/synthetic_run.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>

#include "runtime/config/presets.h"
#include "runtime/core/random.h"
#include "runtime/train/join.h"

namespace holdfast {
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
  HF_TRY_VOID(write_token_shard(env, config.data.sources.front().path, count, vocabulary_of(config)));
  return scratch;
}

template <typename Token>
std::string shard_text(std::array<std::int32_t, 256> header, std::int64_t count, std::int64_t vocabulary) {
  std::vector<Token> tokens(static_cast<std::size_t>(count));
  const RandomStream stream(0, 0);
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    tokens[i] = static_cast<Token>(stream.uniform(i) * static_cast<double>(vocabulary));
  }
  std::string text(sizeof(header) + tokens.size() * sizeof(Token), '\0');
  std::memcpy(text.data(), header.data(), sizeof(header));
  std::memcpy(text.data() + sizeof(header), tokens.data(), tokens.size() * sizeof(Token));
  return text;
}

}  // namespace

Result<std::unique_ptr<ScratchDirectory>> ScratchDirectory::make(Env& env) {
  const std::string parent = env.variable("TMPDIR").empty() ? "/tmp" : env.variable("TMPDIR");
  const std::string path = fmt::format("{}/holdfast-bench-{:016x}", parent, env.random_u64());
  HF_TRY_VOID(env.make_directories(path));
  return std::unique_ptr<ScratchDirectory>(new ScratchDirectory(env, path));
}

ScratchDirectory::~ScratchDirectory() {
  static_cast<void>(env_->remove_tree(path_).ok());  // nothing depends on it
}

Result<void> write_token_shard(Env& env, const std::string& path, std::int64_t count,
                               std::int64_t vocabulary) {
  const bool narrow = vocabulary <= std::numeric_limits<std::uint16_t>::max() + 1;
  std::array<std::int32_t, 256> header{};  // runtime/data/source.h has the format
  header[0] = narrow ? 20240520 : 20240801;
  header[1] = narrow ? 1 : 7;
  header[2] = static_cast<std::int32_t>(count);
  return env.replace_text(path, narrow ? shard_text<std::uint16_t>(header, count, vocabulary)
                                       : shard_text<std::uint32_t>(header, count, vocabulary));
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
  HF_TRY_VOID(check_device(run.config));
  if (config_path.empty() && run.config.data.sources.size() == 1 &&
      run.config.data.sources.front().path == synthetic_path) {
    HF_TRY(run.scratch, make_tokens(env, run.config));
  }
  HF_TRY(run.data, DataSet::open(env, run.config.data.sources, run.config.training.sequence_length));
  HF_TRY_VOID(resolve_with_data(run.config, 1, *run.data));
  return run;
}

}  // namespace holdfast
