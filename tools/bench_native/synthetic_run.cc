#include "tools/bench_native/synthetic_run.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "runtime/config/presets.h"
#include "runtime/core/random.h"
#include "runtime/elastic/join.h"
#include "runtime/rank/device_choice.h"

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
  HF_TRY(run.data, DataSet::open(env, run.config.data.sources, run.config.training.sequence_length,
                                 data_options(run.config)));
  HF_TRY_VOID(resolve_with_data(run.config, 1, *run.data));
  return run;
}

namespace {

constexpr std::array<TokenFileKind, 6> kinds = {{{"text", 256},
                                                 {"llmc", 50257},
                                                 {"llmc", 128256},
                                                 {"megatron", 50257},
                                                 {"megatron", 128256},
                                                 {"llmq", 128256}}};
constexpr std::int64_t narrow_vocabulary = 65500;  // what is below has 16-bit tokens, by Megatron's rule

// Values one behind the other, as the machine (little-endian) holds them.
class Bytes {
 public:
  template <typename T>
  void add(const T& value) {
    text_.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  void add_text(std::string_view text) { text_ += text; }
  template <typename Token>
  void add_tokens(std::int64_t count, std::int64_t vocabulary) {
    const RandomStream stream(0, 0);
    const std::size_t begin = text_.size();
    text_.resize(begin + static_cast<std::size_t>(count) * sizeof(Token));
    for (std::int64_t i = 0; i < count; ++i) {
      const auto token =
          static_cast<Token>(stream.uniform(static_cast<std::uint64_t>(i)) * static_cast<double>(vocabulary));
      std::memcpy(text_.data() + begin + static_cast<std::size_t>(i) * sizeof(Token), &token, sizeof(Token));
    }
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

Bytes llmc(const TokenFileKind& kind, std::int64_t count) {
  const bool narrow = kind.vocabulary < narrow_vocabulary;
  std::array<std::int32_t, 256> header{};
  header[0] = narrow ? 20240520 : 20240801;
  header[1] = narrow ? 1 : 7;
  header[2] = static_cast<std::int32_t>(count);
  Bytes bytes;
  bytes.add(header);
  if (narrow) bytes.add_tokens<std::uint16_t>(count, kind.vocabulary);
  if (!narrow) bytes.add_tokens<std::uint32_t>(count, kind.vocabulary);
  return bytes;
}

Bytes llmq(const TokenFileKind& kind, std::int64_t count) {
  std::array<std::int32_t, 256> header{};
  std::memcpy(header.data(), "BIN.TOK\n", 8);
  header[2] = 1;
  header[3] = sizeof(std::int32_t);
  header[4] = static_cast<std::int32_t>(count);
  header[5] = static_cast<std::int32_t>(kind.vocabulary);
  Bytes bytes;
  bytes.add(header);
  bytes.add_tokens<std::int32_t>(count, kind.vocabulary);
  return bytes;
}

Bytes megatron_index(const TokenFileKind& kind, std::int64_t count) {
  constexpr std::int64_t document = 1024;
  constexpr std::uint8_t int32_code = 4, uint16_code = 8;
  const bool narrow = kind.vocabulary < narrow_vocabulary;
  const std::int64_t token_bytes = narrow ? 2 : 4;
  const std::int64_t sequences = (count + document - 1) / document;
  Bytes bytes;
  bytes.add_text({"MMIDIDX\0\0", 9});
  bytes.add(std::uint64_t{1});
  bytes.add(narrow ? uint16_code : int32_code);
  bytes.add(static_cast<std::uint64_t>(sequences));
  bytes.add(static_cast<std::uint64_t>(sequences + 1));
  for (std::int64_t i = 0; i < sequences; ++i) {
    bytes.add(static_cast<std::int32_t>(std::min(document, count - i * document)));
  }
  for (std::int64_t i = 0; i < sequences; ++i) bytes.add(i * document * token_bytes);
  for (std::int64_t i = 0; i <= sequences; ++i) bytes.add(i);
  return bytes;
}

Bytes raw(const TokenFileKind& kind, std::int64_t count) {
  Bytes bytes;
  if (kind.vocabulary <= 256) {
    bytes.add_tokens<std::uint8_t>(count, kind.vocabulary);
  } else if (kind.vocabulary < narrow_vocabulary) {
    bytes.add_tokens<std::uint16_t>(count, kind.vocabulary);
  } else {
    bytes.add_tokens<std::int32_t>(count, kind.vocabulary);
  }
  return bytes;
}

}  // namespace

std::span<const TokenFileKind> token_file_kinds() {
  return kinds;
}

Result<std::vector<std::string>> write_token_file(Env& env, const TokenFileKind& kind,
                                                  const std::string& path, std::int64_t count) {
  if (kind.format == "megatron") {
    HF_TRY_VOID(env.replace_text(path + ".bin", raw(kind, count).text()));
    HF_TRY_VOID(env.replace_text(path + ".idx", megatron_index(kind, count).text()));
    return std::vector<std::string>{path + ".bin", path + ".idx"};
  }
  const Bytes bytes = kind.format == "llmc"   ? llmc(kind, count)
                      : kind.format == "llmq" ? llmq(kind, count)
                                              : raw(kind, count);
  HF_TRY_VOID(env.replace_text(path, bytes.text()));
  return std::vector<std::string>{path};
}

}  // namespace holdfast::bench
