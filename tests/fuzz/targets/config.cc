// The config of a run as TOML; an input that begins with "--" is a command line, an override in each line.
#include <algorithm>
#include <array>
#include <sstream>

#include "runtime/config/document.h"
#include "runtime/config/loader.h"
#include "tests/fuzz/fuzz_env.h"

namespace holdfast::fuzz {
namespace {

constexpr const char* small_config =
    "run.directory = \"runs/a\"\ninclude = \"base.toml\"\n[data]\nsources = [{ path = \"corpus.txt\", format "
    "= "
    "\"text\" }]\n[training]\nsteps = 9\n";
constexpr const char* base_config =
    "[model]\nlayers = 2\nheads = 2\nwidth = 64\n[optimizer]\nlearning_rate = 0.001\n";

Result<LoadedConfig> load(FuzzEnv& env, const std::string& text) {
  if (!text.starts_with("--")) return load_config_text(env, text, "/run.toml", {});
  std::vector<std::string> arguments;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) arguments.push_back(line);
  HF_TRY(const std::vector<Override> overrides, parse_overrides(arguments));
  return load_config(env, "/run.toml", overrides);
}

bool run_config(Input input) {
  FuzzEnv env;
  env.put("/run.toml", bytes_of_text(small_config));
  env.put("/base.toml", bytes_of_text(base_config));
  Result<LoadedConfig> loaded = load(env, text_of(input));
  if (!loaded.ok()) {
    require_sentence(loaded.error(), {ExitCode::config});
    return false;
  }
  const std::string dumped = dump_config(loaded->config, loaded->origin);
  loaded->config.kernels.plugins.clear();  // a stored config loads no code
  const Result<LoadedConfig> again = load_stored_config(env, dumped, "/config.toml");
  if (!again.ok()) fail_run("what was loaded cannot be stored: " + again.error().message);
  require(dump_config(again->config) == dump_config(loaded->config), "what was stored is another config");
  require(config_identity(again->config) == config_identity(loaded->config),
          "what was stored is another run");
  require(diff_config(loaded->config, again->config).empty(), "what was stored differs");
  Config resolved = loaded->config;
  if (const Result<void> outcome = resolve_config(resolved, 256); !outcome.ok())
    require_sentence(outcome.error(), {ExitCode::config, ExitCode::data});
  return true;
}

std::vector<Seed> config_seeds() {
  FuzzEnv env;
  env.put("/base.toml", bytes_of_text(base_config));
  const Config config = load_config_text(env, small_config, "/run.toml", {}).value().config;
  return {{"small", bytes_of_text(small_config)},
          {"whole", bytes_of_text(dump_config(config))},
          {"overrides", bytes_of_text("--training.steps=12\n--model.width=128\n--data.sources=[{path='a b', "
                                      "format=\"llmc\", weight=0.5}]\n--checkpoint.every=1h30m\n")}};
}

constexpr std::array<std::string_view, 24> config_words = {"[model]\n",
                                                           "[training]\n",
                                                           "[data]\n",
                                                           "include = ",
                                                           "[",
                                                           "]",
                                                           "{",
                                                           "}",
                                                           " = ",
                                                           "\"",
                                                           "'''",
                                                           "\"\"\"",
                                                           "\n",
                                                           "\\u0000",
                                                           "\\U0010FFFF",
                                                           "a.b.",
                                                           "inf",
                                                           "nan",
                                                           "1979-05-27T07:32:00Z",
                                                           "\"auto\"",
                                                           "true",
                                                           "0x7fffffffffffffff",
                                                           "path = ",
                                                           "weight = "};

}  // namespace

extern const Target config_target;
const Target config_target{.name = "config",
                           .run = run_config,
                           .seeds = config_seeds,
                           .memory_per_byte = 1024,
                           .memory_beside = 1 << 20,
                           .words = config_words};

}  // namespace holdfast::fuzz
