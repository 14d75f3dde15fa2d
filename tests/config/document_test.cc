#include "runtime/config/document.h"
#include "runtime/core/json.h"

#include <gmock/gmock.h>

#include <sstream>

#include "runtime/config/option_value.h"
#include "tests/config/config_fixture.h"

namespace holdfast::test {
namespace {

// Every key has another value than its default, but for model.preset, which would fix the rest, and
// verdict.preset, whose others leave verdict.on_spike no choice.
Config all_changed() {
  Config config;
  config.device = "cpu";
  config.threads = 3;
  config.run = {"runs/\"a\"\\b\n\tä", 9223372036854775807u, "must", 13'800'001, "runs/b"};
  config.model = {.preset = "",
                  .style = "gpt2",
                  .layers = 2,
                  .heads = 4,
                  .kv_heads = 2,
                  .width = 64,
                  .feed_forward = 96,
                  .vocabulary = 512,
                  .head = "untied",
                  .positions = 512,
                  .rope_theta = 12345.678,
                  .attention_window = 96,
                  .attention_sinks = 4,
                  .norm_epsilon = 1e-6,
                  .freeze = {"embedding", "layers 0-1"}};
  config.data = {{{"a.txt", "text", 0.1},
                  {"b # \"]\".bin", "llmc", 1e9},
                  {"c.jsonl", "jsonl", 2.0, "t.json", "gpt2", "content", true}},
                 true,
                 5,
                 6,
                 0.125,
                 8,
                 7,
                 "cache",
                 true};
  config.training = {1'000'000'000'000, 128, 2, 3, "bf16", "full", 512, true};
  config.parallel = {5, 5, 1, 3, 1, 2, 3, "interleaved", 90'500, "host", 4};
  config.elastic.in_place = false;
  config.elastic.min_data_parallel = 2;
  config.elastic.spares = 1;
  config.elastic.recovery_timeout_ms = 31'000;
  config.elastic.memory_timeout_ms = 2'000;
  config.elastic.input_timeout_ms = 3'000;
  config.elastic.settle_after_ms = 4'000;
  config.elastic.grow = "off";
  config.elastic.grow_after_ms = 1'500;
  config.elastic.notice_file = "/run/preempted";
  config.elastic.notice_command = "exit 1";
  config.elastic.notice_every_ms = 2'000;
  config.watchdog = {false, 4.5, 600, 61'000};
  config.network.interface = "ib0";
  config.optimizer = {"lion", 1.0 / 3.0, "wsd", 17,   0.0,    1.0,  0.8,
                      0.999,  1e-30,     0.0,   1e12, "bf16", true, {"*.bias=0", "embedding.*=0.01"},
                      0.999};
  config.verdict = {"guard",    100, 7.5, 9.5, 20,  0.25,       50, "clip",   "stop",
                    "rollback", 5,   70,  2,   0.5, "continue", 7,  3'600'000};
  config.health = {"off", 5'000, "/host", "127.0.0.1:9400", {"gpu-hot=drain:87", "xid=watch"}};
  config.checkpoint = {.every_steps = 11,
                       .every_ms = 1'800'000,
                       .keep = 4,
                       .keep_every_steps = 22,
                       .upload_command = {},
                       .upload_shard_command = "cp \"$HOLDFAST_FILE\" there",
                       .upload_timeout_ms = 1000,
                       .download_command = "cp there/* \"$HOLDFAST_DOWNLOAD\"",
                       .download_timeout_ms = 2000,
                       .compression = "always",
                       .delta = false,
                       .ram_every_steps = 6,
                       .replicas = "on",
                       .mtbf_ms = 0,
                       .lose_at_most_ms = 300'000,
                       .io = "threads"};
  config.evaluation = {12, {{"c.txt", "text", 0.0}}, 9};
  config.hazard = {50'000.0};
  config.cost = {3.0, "EUR "};
  config.kernels.isa = "avx2";
  config.kernels.implementations.fill("mine");
  config.kernels.plan = "mine.plan";
  config.kernels.on_failure = "fall_back";
  config.kernels.plugins = {"mine.so", "other/yours.so"};
  config.kernels.rules = {{.op = "add", .layers = "0-3", .where = {}, .use = "mine"},
                          {.op = "matmul",
                           .layers = "",
                           .where = {{"m", ">=8"}, {"transpose_a", "true"}, {"a \"b\"", "1"}},
                           .use = "x"}};
  config.kernels.shadows = {{.op = "add", .layers = "", .where = {}, .use = "mine", .every_steps = 7}};
  config.log = {1, 1'000'000};
  config.metrics = {5'000, true, "127.0.0.1:9400"};
  config.notify = {"curl there", 5'000, 12, 60'000};
  config.trace = {13, 14};
  return config;
}

// Adapters do not go with model.freeze.
bool is_of_adapters(std::string_view key) {
  return key.starts_with("lora.");
}

// Keys that gpt2, which has model.positions, does not go with.
bool is_of_rotary_models(std::string_view key) {
  return key == "model.head_size" || (key.starts_with("model.rope_") && key != "model.rope_theta");
}

TEST(DumpConfig, LoadsBackToTheSameConfig) {
  const Config config = all_changed();
  for (const Option& option : option_registry()) {
    const bool contradicts = option.key == "model.preset" || option.key == "verdict.preset" ||
                             option.key == "checkpoint.upload_command" || option.key == "checkpoint.mtbf" ||
                             is_of_rotary_models(option.key) || is_of_adapters(option.key);
    if (contradicts) continue;
    EXPECT_NE(value_text(option, config), default_text(option))
        << option.key << " is not covered by this test";
  }
  const auto loaded = load(dump_config(config), {});
  ASSERT_TRUE(loaded.ok()) << loaded.error().message << dump_config(config);
  for (const Option& option : option_registry()) {
    EXPECT_EQ(value_text(option, loaded->config), value_text(option, config)) << option.key;
  }
  EXPECT_EQ(loaded->config.run.directory, config.run.directory);
  EXPECT_DOUBLE_EQ(loaded->config.optimizer.learning_rate, 1.0 / 3.0);
  EXPECT_EQ(loaded->config.data.sources[1].path, config.data.sources[1].path);
  EXPECT_EQ(dump_config(loaded->config), dump_config(config));
}

TEST(DumpConfig, KeysOfRotaryModelsAndAdaptersLoadBack) {
  Config config = all_changed();
  config.model.freeze = {};
  config.lora = {.rank = 8, .alpha = 24.0, .targets = {"q", "down_proj"}};
  config.model.style = "qwen3";
  config.model.positions = 0;
  config.model.head_size = 24;
  config.model.rope_scaling = "llama3";
  config.model.rope_factor = 8.5;
  config.model.rope_low_frequency_factor = 1.5;
  config.model.rope_high_frequency_factor = 4.5;
  config.model.rope_original_positions = 4096;
  for (const Option& option : option_registry()) {
    if (!is_of_rotary_models(option.key) && !is_of_adapters(option.key)) continue;
    EXPECT_NE(value_text(option, config), default_text(option)) << option.key;
  }
  const auto loaded = load(dump_config(config), {});
  ASSERT_TRUE(loaded.ok()) << loaded.error().message;
  EXPECT_EQ(dump_config(loaded->config), dump_config(config));
}

// Younger keys do not count while they have their defaults, so older manifests keep their identity.
TEST(ConfigIdentity, HasTheRotaryScalingWhereThereIsOne) {
  Config plain = all_changed();
  plain.model.style = "llama";
  plain.model.positions = 0;
  Config scaled = plain;
  scaled.model.rope_scaling = "llama3";
  scaled.model.rope_original_positions = 64;
  EXPECT_NE(config_identity(scaled), config_identity(plain));
  Config other = scaled;
  other.model.rope_factor = 9.0;
  EXPECT_NE(config_identity(other), config_identity(scaled));
  Config wide = plain;
  wide.model.head_size = 24;
  EXPECT_NE(config_identity(wide), config_identity(plain));
}

TEST(ConfigIdentity, HasTheRuleOfUpdatesThatIsNotAdamW) {
  Config config;
  const std::string plain = config_identity(config);
  config.optimizer.name = "lion";
  EXPECT_NE(config_identity(config), plain);
}

TEST(ConfigIdentity, HasTheAdaptersWhereThereAreAny) {
  Config config;
  const std::string plain = config_identity(config);
  config.lora.targets = {"q"};
  EXPECT_EQ(config_identity(config), plain) << "there are none";
  config.lora.rank = 4;
  const std::string four = config_identity(config);
  EXPECT_NE(four, plain);
  config.lora.alpha = 8.0;
  EXPECT_NE(config_identity(config), four);
}

TEST(ConfigIdentity, HasTheWindowWhereThereIsOne) {
  Config config = all_changed();
  config.model.attention_window = config.model.attention_sinks = 0;
  const std::string plain = config_identity(config);
  config.model.attention_window = 64;
  const std::string window = config_identity(config);
  EXPECT_NE(window, plain);
  config.model.attention_sinks = 1;
  EXPECT_NE(config_identity(config), window);
}

// A config of a program that had the preset without its rotary scaling means what that program computed.
TEST(LoadStoredConfig, APresetFromBeforeRotaryScalingStaysPlain) {
  Config config = all_changed();
  config.model = {};
  config.model.preset = "llama-1b";
  ASSERT_TRUE(resolve_config(config, 256).ok());
  std::string older;
  std::istringstream lines(dump_config(config));
  for (std::string line; std::getline(lines, line);) {
    const bool is_younger = line.starts_with("head_size") || line.starts_with("attention_window") ||
                            line.starts_with("attention_sinks") ||
                            (line.starts_with("rope_") && !line.starts_with("rope_theta"));
    if (!is_younger) older += line + "\n";
  }
  const auto loaded = load_stored_config(posix_env(), older, "manifest.json");
  ASSERT_TRUE(loaded.ok()) << loaded.error().message;
  EXPECT_EQ(loaded->config.model.preset, "");
  EXPECT_EQ(loaded->config.model.rope_scaling, "none");
  EXPECT_EQ(loaded->config.model.layers, 16);
  // Its checkpoints have the identity of the preset, and the user's config still names it.
  Config then = loaded->config;
  then.model.preset = "llama-1b";
  EXPECT_TRUE(has_identity(loaded->config, config_identity(then)));
  EXPECT_FALSE(has_identity(config, config_identity(then))) << "scaled, it is another model";
  Config later = all_changed();
  later.model = {};
  later.model.preset = "llama-1b";
  inherit_resolved(later, loaded->config);
  ASSERT_TRUE(resolve_config(later, 256).ok());
  for (const ConfigChange& change : diff_config(loaded->config, later)) ADD_FAILURE() << change.key;
  later.model = {};
  later.model.preset = "llama-3b";
  inherit_resolved(later, loaded->config);
  ASSERT_TRUE(resolve_config(later, 256).ok());
  EXPECT_EQ(later.model.rope_scaling, "llama3") << "a preset of other shapes is another model";
  const auto today = load_stored_config(posix_env(), dump_config(config), "manifest.json");
  ASSERT_TRUE(today.ok()) << today.error().message;
  EXPECT_EQ(today->config.model.preset, "llama-1b");
  EXPECT_EQ(today->config.model.rope_scaling, "llama3");
}

TEST(DumpConfig, ResolvedPresetLoadsBack) {
  Config config = all_changed();
  config.model = {};
  config.model.preset = "llama-1b";
  ASSERT_TRUE(resolve_config(config, 256).ok());
  const auto loaded = load(dump_config(config), {});
  ASSERT_TRUE(loaded.ok()) << loaded.error().message;
  EXPECT_EQ(dump_config(loaded->config), dump_config(config));
}

TEST(DumpConfig, IntervalsThatFollowFromMeasurementsLoadBack) {
  const auto loaded = load(std::string(kCompleteText) + "[checkpoint]\nevery_steps = \"auto\"\n",
                           {{"checkpoint.ram_every_steps", "auto"}});
  ASSERT_TRUE(loaded.ok()) << loaded.error().message;
  const std::string text = dump_config(loaded->config);
  EXPECT_THAT(text, testing::HasSubstr("\nevery_steps = \"auto\"\n"));
  EXPECT_THAT(text, testing::HasSubstr("\nram_every_steps = \"auto\"\n"));
  const auto again = load(text, {});
  ASSERT_TRUE(again.ok()) << again.error().message;
  EXPECT_EQ(again->config.checkpoint.every_steps, CheckpointConfig::interval_auto);
  EXPECT_EQ(again->config.checkpoint.ram_every_steps, CheckpointConfig::interval_auto);
}

TEST(DumpConfig, OriginsAreComments) {
  const auto loaded = load(kCompleteText, {{"threads", "2"}});
  ASSERT_TRUE(loaded.ok());
  auto origin = loaded->origin;
  origin["device"] = "bad\nname\xff";
  const std::string text = dump_config(loaded->config, origin);
  EXPECT_THAT(text,
              testing::StartsWith("device = \"auto\"  # bad?name?\nthreads = 2  # command line\n\n[run]\n"
                                  "directory = \"runs/a\"  # run.toml:1:21\n"));
  EXPECT_THAT(text, testing::HasSubstr(
                        "sources = [\n  { path = \"corpus.txt\", format = \"text\", weight = 0.0 },\n]  # "
                        "run.toml:2:"));
  EXPECT_THAT(text, testing::HasSubstr("timeout = \"5m\"  # default\n"));
  EXPECT_TRUE(load(text, {}).ok());
}

// People put tokens into them, and records are uploaded and shown.
TEST(RecordConfig, HasNoCommand) {
  const Config config = all_changed();
  const std::string text = record_config(config);
  for (const char* command : {"cp there", "HOLDFAST_FILE", "exit 1"})
    EXPECT_EQ(text.find(command), std::string::npos) << command;
  EXPECT_THAT(text, testing::HasSubstr(
                        "\nupload_shard_command = \"\"  # set, and left out here: it may hold a secret\n"));
  EXPECT_THAT(text, testing::HasSubstr("\nupload_command = \"\"\n"));
  const auto loaded = load(text, {});
  ASSERT_TRUE(loaded.ok()) << loaded.error().message;
  EXPECT_TRUE(diff_config(config, loaded->config).empty()) << "what no record has is no change";
  EXPECT_EQ(config_identity(loaded->config), config_identity(config));
  EXPECT_EQ(without_commands(text), text);
}

TEST(DiffConfig, NamesChangesWithTheirEffect) {
  const Config before = all_changed();
  Config after = before;
  after.training.steps = 5;
  after.optimizer.learning_rate = 0.5;
  after.parallel.lanes = 6;
  const auto changes = diff_config(before, after);
  ASSERT_EQ(changes.size(), 3u);
  EXPECT_EQ(changes[0].key, "training.steps");
  EXPECT_EQ(changes[0].before, "1000000000000");
  EXPECT_EQ(changes[0].after, "5");
  EXPECT_EQ(changes[0].effect, ResumeEffect::safe);
  EXPECT_EQ(changes[1].key, "parallel.lanes");
  EXPECT_EQ(changes[1].effect, ResumeEffect::numeric);
  EXPECT_EQ(changes[2].key, "optimizer.learning_rate");
  EXPECT_EQ(changes[2].effect, ResumeEffect::numeric);
  EXPECT_TRUE(diff_config(before, before).empty());
}

TEST(DiffConfig, OfASourceOnlyThePathMayChange) {
  const Config before = all_changed();
  const auto effect_of = [&](auto change) {
    Config after = before;
    change(after.data.sources);
    const auto changes = diff_config(before, after);
    EXPECT_EQ(changes.size(), 1u);
    const bool same_run = config_identity(before) == config_identity(after);
    EXPECT_EQ(same_run, changes.at(0).effect == ResumeEffect::safe);
    return changes.at(0).effect;
  };
  EXPECT_EQ(effect_of([](SourceList& sources) { sources[0].path = "moved/a.txt"; }), ResumeEffect::safe);
  EXPECT_EQ(effect_of([](SourceList& sources) { sources[0].weight = 0.2; }), ResumeEffect::forbidden);
  EXPECT_EQ(effect_of([](SourceList& sources) { sources[0].format = "llmc"; }), ResumeEffect::forbidden);
  EXPECT_EQ(effect_of([](SourceList& sources) { sources.pop_back(); }), ResumeEffect::forbidden);
}

TEST(ConfigIdentity, FollowsExactlyTheForbiddenKeys) {
  const Config changed = all_changed();
  const Config initial;
  for (const Option& option : option_registry()) {
    if (option.type == OptionType::sources || option.key == "model.preset") continue;
    if (is_of_rotary_models(option.key)) continue;  // HasTheRotaryScalingWhereThereIsOne
    if (is_of_adapters(option.key)) continue;       // HasTheAdaptersWhereThereAreAny
    Config one = initial;
    const auto tree = std::get<TomlValue>(parse_toml("value = " + value_text(option, changed)));
    std::vector<ValueProblem> problems;
    assign_value(option, tree.members.at(0).value, one, problems);
    ASSERT_TRUE(problems.empty()) << option.key;
    EXPECT_EQ(config_identity(one) == config_identity(initial),
              option.effect != ResumeEffect::forbidden && option.key != "parallel.lanes" &&
                  option.key != "parallel.lane_block" && option.key != "parallel.tensor_lanes")
        << option.key;
  }
  EXPECT_EQ(config_identity(initial).size(), 32u);
}

TEST(OptionsHelp, ShowsASectionAKeyOrAll) {
  const std::string section = options_help("checkpoint").value();
  EXPECT_THAT(
      section,
      testing::StartsWith(
          "checkpoint\n"
          "  --checkpoint.every_steps=  integer or auto (steps), 0 to 1000000000000, default \"auto\"; "
          "on resume: safe\n"
          "      Save this often; auto = as often as loses least time to saves and to failures, from what a "
          "save is measured to cost (Young, Daly); 0 = only at the end, when asked to, and as "
          "checkpoint.every says\n"
          "  --checkpoint.every=  duration, 0s to 3650d, default \"0s\"; on resume: safe\n"
          "      Save at the latest this long after the last save, such as \"30m\", also where "
          "checkpoint.every_steps does not; with checkpoint.every_steps = 0 this alone decides; 0 = never by "
          "the clock\n"
          "  --checkpoint.mtbf=  duration, 0s to 3650d, default \"0s\"; on resume: safe\n"
          "      Mean time between failures of the whole run, for checkpoint.every_steps = auto; not "
          "together "
          "with hazard.mtbf_hours, which is of one device; 0 = from hazard.mtbf_hours and the failures that "
          "the run has had\n"
          "  --checkpoint.lose_at_most=  duration, 0s to 3650d, default \"0s\"; on resume: safe\n"
          "      Most training that may be lost, such as \"5m\": where their interval is auto, checkpoints "
          "and "
          "RAM snapshots come so often that no more is newer than the last one, whatever they cost; 0 = no "
          "limit\n"
          "  --checkpoint.keep=  integer (checkpoints), 1 to 1000000, default 3; on resume: safe\n"
          "      Newest checkpoints that are kept; older ones are removed after a newer one is whole. A "
          "run of several replicas keeps up to two more that it may have to go back to "
          "(verdict.on_wrong_rank)\n"));
  EXPECT_THAT(section, testing::Not(testing::HasSubstr("--evaluation.")));
  EXPECT_THAT(options_help("checkpoint.keep").value(), testing::StartsWith("  --checkpoint.keep=  integer"));
  const Result<std::string> nothing = options_help("nothing");
  EXPECT_EQ(nothing.error().code, ExitCode::config);
  EXPECT_EQ(
      nothing.error().message,
      "there is no key or section nothing; the sections are general, run, model, lora, data, training, "
      "parallel, elastic, watchdog, network, optimizer, verdict, health, checkpoint, evaluation, hazard, "
      "cost, "
      "kernels, log, metrics, "
      "notify, trace");
  const auto nearest = [](std::string_view word) { return options_help(word).error().message; };
  EXPECT_THAT(nearest("learning_rate"), testing::HasSubstr(", did you mean optimizer.learning_rate?"));
  EXPECT_THAT(nearest("every_steps"),
              testing::HasSubstr("did you mean checkpoint.every_steps or evaluation.every_steps or log."));
  EXPECT_THAT(nearest("lr"), testing::HasSubstr(", did you mean optimizer.learning_rate?"));
  EXPECT_THAT(nearest("chekpoint"), testing::HasSubstr(", did you mean checkpoint?"));
  const std::string all = options_help("").value();
  for (const Option& option : option_registry()) {
    EXPECT_THAT(all, testing::HasSubstr("--" + std::string(option.key) + "="));
  }
}

TEST(OptionsReference, HasARowForEveryKeyAndPreset) {
  const std::string text = options_reference();
  for (const Option& option : option_registry()) {
    EXPECT_THAT(text, testing::HasSubstr("\n| `" + std::string(option.key) + "` | "));
  }
  EXPECT_THAT(text,
              testing::HasSubstr("\n| `gpt2-124m` | gpt2 | 12 | 12 | 12 | 768 | 3072 | 50257 | tied | "));
  EXPECT_THAT(text, testing::HasSubstr("`text`, `jsonl`, `llmc`"));
}

TEST(OptionsSchema, DescribesEveryKey) {
  const auto schema = Json::parse(options_schema());
  EXPECT_EQ(schema["$schema"], "https://json-schema.org/draft/2020-12/schema");
  EXPECT_EQ(schema["additionalProperties"], false);
  for (const Option& option : option_registry()) {
    const std::string section(section_of(option.key));
    const std::string name(section.empty() ? option.key : option.key.substr(section.size() + 1));
    const auto& table = section.empty() ? schema : schema["properties"][section];
    ASSERT_TRUE(table["properties"].contains(name)) << option.key;
    EXPECT_EQ(table["properties"][name]["description"], std::string(option.help));
    EXPECT_EQ(table["additionalProperties"], false);
  }
  const auto& training = schema["properties"]["training"]["properties"];
  EXPECT_EQ(training["steps"]["type"], "integer");
  EXPECT_EQ(training["steps"]["minimum"], 1);
  EXPECT_EQ(training["precision"]["enum"], Json({"fp32", "bf16"}));
  const auto& preset = schema["properties"]["model"]["properties"]["preset"];
  EXPECT_THAT(preset["enum"], testing::Contains(Json("")));
  EXPECT_EQ(schema["properties"]["run"]["properties"]["seed"]["maximum"], 9223372036854775807);
}

}  // namespace
}  // namespace holdfast::test
