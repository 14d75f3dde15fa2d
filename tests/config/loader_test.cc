#include "runtime/config/loader.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <regex>
#include <set>

#include "runtime/config/document.h"
#include "tests/config/config_fixture.h"

namespace holdfast::test {
namespace {

TEST(Loader, ReadsEveryTypeAndRemembersWhereItStood) {
  const auto result = load(
      "threads = 3\n"
      "[run]\n"
      "directory = \"runs/x\"\n"
      "seed = 9223372036854775807\n"
      "stop_after = \"3h50m\"\n"
      "[training]\n"
      "steps = 1e3\n"
      "precision = \"bf16\"\n"
      "[optimizer]\n"
      "gradient_clip = 2\n"
      "[parallel]\n"
      "timeout = 1.5\n"
      "[data]\n"
      "ledger = true\n"
      "[[data.sources]]\n"
      "path = \"a.txt\"\n"
      "weight = 2\n"
      "[[data.sources]]\n"
      "path = \"b.bin\"\n"
      "format = \"llmc\"\n"
      "weight = 0.5\n",
      {{"model.preset", "llama-15m"}});
  ASSERT_TRUE(result.ok()) << result.error().message;
  const Config& config = result->config;
  EXPECT_EQ(config.threads, 3);
  EXPECT_EQ(config.run.directory, "runs/x");
  EXPECT_EQ(config.run.seed, 9223372036854775807u);
  EXPECT_EQ(config.run.stop_after_ms, 13'800'000);
  EXPECT_EQ(config.training.steps, 1000);
  EXPECT_EQ(config.training.precision, "bf16");
  EXPECT_DOUBLE_EQ(config.optimizer.gradient_clip, 2.0);
  EXPECT_EQ(config.parallel.timeout_ms, 1500);
  EXPECT_TRUE(config.data.ledger);
  ASSERT_EQ(config.data.sources.size(), 2u);
  EXPECT_EQ(config.data.sources[0].path, "a.txt");
  EXPECT_EQ(config.data.sources[0].format, "text");
  EXPECT_DOUBLE_EQ(config.data.sources[0].weight, 2.0);
  EXPECT_EQ(config.data.sources[1].format, "llmc");
  EXPECT_EQ(result->origin.at("training.steps"), "run.toml:7:9");
  EXPECT_EQ(result->origin.at("model.preset"), "command line");
  EXPECT_EQ(result->origin.at("log.every_steps"), "default");
}

TEST(Loader, PrecedenceIsIncludeFileEnvironmentCommandLine) {
  const TemporaryFolder folder;
  folder.write("base.toml", std::string(kCompleteText) + "log = { every_steps = 1 }\n" +
                                "checkpoint = { every_steps = 1, keep = 1 }\nevaluation = { batches = 1 }\n");
  const std::string path = folder.write(
      "run.toml",
      "include = \"base.toml\"\n[log]\nevery_steps = 2\n[checkpoint]\nevery_steps = 2\nkeep = 2\n");
  const ScopedVariable every("HOLDFAST_CHECKPOINT_EVERY_STEPS", "3");
  const ScopedVariable keep("HOLDFAST_CHECKPOINT_KEEP", "3");
  const auto result = load_config(posix_env(), path, {{"checkpoint.keep", "4"}});
  ASSERT_TRUE(result.ok()) << result.error().message;
  EXPECT_EQ(result->config.evaluation.batches, 1);
  EXPECT_EQ(result->config.log.every_steps, 2);
  EXPECT_EQ(result->config.checkpoint.every_steps, 3);
  EXPECT_EQ(result->config.checkpoint.keep, 4);
  EXPECT_EQ(result->origin.at("evaluation.batches"), folder.path("base.toml") + ":7:26");
  EXPECT_EQ(result->origin.at("log.every_steps"), path + ":3:15");
  EXPECT_EQ(result->origin.at("checkpoint.every_steps"), "environment HOLDFAST_CHECKPOINT_EVERY_STEPS");
  EXPECT_EQ(result->origin.at("checkpoint.keep"), "command line");
}

TEST(Loader, AStoredConfigDoesNotChangeWithTheEnvironment) {
  const ScopedVariable keep("HOLDFAST_CHECKPOINT_KEEP", "7");
  EXPECT_EQ(load(kCompleteText, {})->config.checkpoint.keep, 7);
  const auto stored = load_stored_config(posix_env(), kCompleteText, "stored");
  ASSERT_TRUE(stored.ok()) << stored.error().message;
  EXPECT_EQ(stored->config.checkpoint.keep, 3);
}

TEST(Loader, PluginsBeginAtTheFolderOfTheFileThatHasThem) {
  const TemporaryFolder folder;
  const std::string plugins = "[kernels]\nplugins = [\"mine.so\", \"../other.so\", \"/all/yours.so\"]\n";
  folder.write("sub/base.toml", std::string(kCompleteText) + plugins);
  const std::string path = folder.write("run.toml", "include = \"sub/base.toml\"\n");
  const auto of_file = load_config(posix_env(), path, {});
  ASSERT_TRUE(of_file.ok()) << of_file.error().message;
  EXPECT_EQ(of_file->config.kernels.plugins,
            (TextList{folder.path("sub/mine.so"), folder.path("sub/../other.so"), "/all/yours.so"}));
  const auto of_words = load_config(posix_env(), path, {{"kernels.plugins", "mine.so"}});
  ASSERT_TRUE(of_words.ok()) << of_words.error().message;
  EXPECT_EQ(of_words->config.kernels.plugins, TextList{"mine.so"});
}

TEST(Loader, AStoredConfigLoadsNoCodeUnlessTheUserSaysSo) {
  const std::string text = std::string(kCompleteText) + "[kernels]\nplugins = [\"mine.so\"]\n";
  const auto stored = load_stored_config(posix_env(), text, "run/config.toml");
  ASSERT_TRUE(stored.ok()) << stored.error().message;
  EXPECT_EQ(stored->config.kernels.plugins, TextList{});
  const auto given = load_stored_config(posix_env(), text, "run/config.toml", {{"kernels.plugins", "my.so"}});
  ASSERT_TRUE(given.ok()) << given.error().message;
  EXPECT_EQ(given->config.kernels.plugins, TextList{"my.so"});
}

TEST(Loader, ListsReplaceAndLaterIncludesWin) {
  const TemporaryFolder folder;
  folder.write("sub/first.toml", std::string(kCompleteText) + "threads = 1\n");
  folder.write("sub/second.toml", "threads = 2\n[data]\nsources = [{ path = \"x\" }, { path = \"y\" }]\n");
  folder.write("sub/both.toml", "include = [\"first.toml\", \"second.toml\"]\n");
  const std::string path =
      folder.write("run.toml", "include = \"sub/both.toml\"\n[data]\nsources = [{ path = \"z\" }]\n");
  const auto result = load_config(posix_env(), path, {});
  ASSERT_TRUE(result.ok()) << result.error().message;
  EXPECT_EQ(result->config.threads, 2);
  ASSERT_EQ(result->config.data.sources.size(), 1u);
  EXPECT_EQ(result->config.data.sources[0].path, "z");
}

TEST(Loader, CommandLineTakesTomlSyntaxAndBareWords) {
  auto overrides = complete();
  overrides.push_back({"run.initialize_from", "123"});
  overrides.push_back({"run.resume", "\"must\""});
  overrides.push_back({"optimizer.learning_rate", "3e-4"});
  overrides.push_back({"run.stop_after", "90s"});
  overrides.push_back({"parallel.timeout", "30"});
  overrides.push_back({"device", "cpu"});
  overrides.push_back({"data.ledger", "true"});
  overrides.push_back({"checkpoint.every_steps", "auto"});
  const auto result = load("", overrides);
  ASSERT_TRUE(result.ok()) << result.error().message;
  EXPECT_EQ(result->config.run.initialize_from, "123");
  EXPECT_EQ(result->config.run.resume, "must");
  EXPECT_DOUBLE_EQ(result->config.optimizer.learning_rate, 3e-4);
  EXPECT_EQ(result->config.run.stop_after_ms, 90'000);
  EXPECT_EQ(result->config.parallel.timeout_ms, 30'000);
  EXPECT_EQ(result->config.device, "cpu");
  EXPECT_TRUE(result->config.data.ledger);
  EXPECT_EQ(result->config.checkpoint.every_steps, CheckpointConfig::interval_auto);
}

struct BadText {
  const char* text;
  const char* expected;  // place and message, as format_problems aligns them
};

TEST(Loader, EveryBadValueHasItsPlaceAndSentence) {
  const std::vector<BadText> table = {
      {"[training]\nstpes = 100\n",
       "run.toml:2:1  error  unknown key training.stpes, did you mean training.steps?"},
      {"[training]\nlearning_rate = 1e-3\n",
       "run.toml:2:1  error  unknown key training.learning_rate, did you mean optimizer.learning_rate?"},
      {"[optim]\nlearning_rate = 1e-3\n",
       "run.toml:2:1  error  unknown key optim.learning_rate, did you mean optimizer.learning_rate?"},
      {"[modle]\nwidth = 8\n", "run.toml:2:1  error  unknown key modle.width, did you mean model.width?"},
      {"[data]\nqqqqqq = 1\n",
       "run.toml:2:1  error  unknown key data.qqqqqq: `holdfast config docs` lists every key"},
      {"\"training.steps\" = 5\n",
       "run.toml:1:1  error  unknown key \"training.steps\", did you mean training.steps?"},
      {"training = 5\n",
       "run.toml:1:12  error  training is a section, got integer 5: write [training] and its keys below it"},
      {"[training]\nsteps = \"fast\"\n",
       "run.toml:2:9  error  training.steps must be an integer, got string \"fast\""},
      {"[training]\nsteps = 0.5\n", "run.toml:2:9  error  training.steps must be an integer, got number 0.5"},
      {"[training.steps]\na = 1\n", "run.toml:1:1  error  training.steps must be an integer, got a table"},
      {"[training]\nsteps = 1979-05-27\n",
       "run.toml:2:9  error  training.steps must be an integer, got a date"},
      {"[checkpoint]\nevery_steps = \"often\"\n",
       "run.toml:2:15  error  checkpoint.every_steps must be an integer or \"auto\", got string \"often\""},
      {"[checkpoint]\nram_every_steps = -1\n",
       "run.toml:2:19  error  checkpoint.ram_every_steps must be >= 0, got -1"},
      {"[trace]\nsteps = \"auto\"\n",
       "run.toml:2:9  error  trace.steps must be an integer, got string \"auto\""},
      {"[training]\nsteps = 0\n", "run.toml:2:9  error  training.steps must be >= 1, got 0"},
      {"threads = 5000\n", "run.toml:1:11  error  threads must be <= 4096, got 5000"},
      {"[optimizer]\nbeta1 = true\n", "run.toml:2:9  error  optimizer.beta1 must be a number, got true"},
      {"[optimizer]\nbeta1 = 1\n", "run.toml:2:9  error  optimizer.beta1 must be <= 0.999999, got 1"},
      {"[optimizer]\nbeta1 = nan\n",
       "run.toml:2:9  error  optimizer.beta1 must be a finite number, got number nan"},
      {"[optimizer]\nepsilon = -inf\n", "run.toml:2:11  error  optimizer.epsilon must be >= 1e-30, got -inf"},
      {"[optimizer]\nlearning_rate = 9007199254740993\n",
       "run.toml:2:17  error  optimizer.learning_rate must be a number, got integer 9007199254740993"},
      {"[data]\nledger = \"yes\"\n",
       "run.toml:2:10  error  data.ledger must be true or false, got string \"yes\""},
      {"device = \"gpu\"\n",
       "run.toml:1:10  error  device must be one of auto, cpu, cuda, got \"gpu\", did you mean cpu?"},
      {"device = 1\n", "run.toml:1:10  error  device must be one of auto, cpu, cuda, got integer 1"},
      {"[run]\ndirectory = 5\n", "run.toml:2:13  error  run.directory must be a string, got integer 5"},
      {"[run]\ndirectory = \"a\\u0000b\"\n",
       "run.toml:2:13  error  run.directory must not contain a zero byte"},
      {"[run]\nseed = -1\n", "run.toml:2:8  error  run.seed must be >= 0, got -1"},
      {"[run]\nstop_after = true\n",
       "run.toml:2:14  error  run.stop_after must be a duration such as \"3h50m\" or a number of seconds, "
       "got true"},
      {"[run]\nstop_after = -1\n", "run.toml:2:14  error  run.stop_after must be >= 0s, got -1s"},
      {"[parallel]\ntimeout = \"2d\"\n", "run.toml:2:11  error  parallel.timeout must be <= 1d, got 2d"},
      {"[parallel]\ntensor = 32\n", "run.toml:2:10  error  parallel.tensor must be <= 16, got 32"},
      {"[parallel]\ntensor_lanes = 64\n",
       "run.toml:2:16  error  parallel.tensor_lanes must be <= 16, got 64"},
      {"[data]\nsources = \"corpus.txt\"\n",
       "run.toml:2:11  error  data.sources must be a list of tables like [{ path = \"corpus.txt\" }], got "
       "string "
       "\"corpus.txt\""},
      {"[data]\nsources = [\"corpus.txt\"]\n",
       "run.toml:2:12  error  data.sources[0] must be a table like { path = \"corpus.txt\" }, got string "
       "\"corpus.txt\""},
      {"[data]\nsources = [{ path = \"a\" }, { format = \"text\" }]\n",
       "run.toml:2:28  error  data.sources[1] has no path: every source names its file, like { path = "
       "\"corpus.txt\" "
       "}"},
      {"[data]\nsources = [{ path = \"\" }]\n",
       "run.toml:2:21  error  data.sources[0].path must name a file, got \"\""},
      {"[data]\nsources = [{ path = \"a\", wieght = 1 }]\n",
       "run.toml:2:26  error  unknown key data.sources[0].wieght, did you mean data.sources[0].weight?"},
      {"[data]\nsources = [{ path = \"a\", shuffle = 1 }]\n",
       "run.toml:2:26  error  unknown key data.sources[0].shuffle: a source has path, format and weight, "
       "and with text tokenizer, pattern, column and append_eos"},
      {"[data]\nsources = [{ path = \"a\", append_eos = 1 }]\n",
       "run.toml:2:39  error  data.sources[0].append_eos must be true or false, got integer 1"},
      {"[data]\nsources = [{ path = \"a\", tokenizer = \"\" }]\n",
       "run.toml:2:38  error  data.sources[0].tokenizer must name a file, got \"\""},
      {"[data]\nsources = [{ path = \"a\", weight = -1 }]\n",
       "run.toml:2:35  error  data.sources[0].weight must be between 0 and 1000000000, got -1"},
      {"[data]\nsources = [{ path = \"a\", format = \"txt\" }]\n",
       "run.toml:2:35  error  data.sources[0].format must be one of text, jsonl, llmc, megatron, llmq, got "
       "\"txt\", "
       "did you mean "
       "text?"},
      {"[model]\npreset = \"gpt2-125m\"\n",
       "run.toml:2:10  error  model.preset must be one of gpt2-124m, gpt2-355m, gpt2-774m, gpt2-1558m, "
       "llama-15m, "
       "llama-110m, llama-1b, llama-3b, llama-8b, qwen2.5-0.5b, qwen2.5-1.5b, qwen2.5-7b, qwen3-0.6b, "
       "qwen3-1.7b, "
       "qwen3-4b, qwen3-8b, got \"gpt2-125m\", did you mean gpt2-124m?"},
      {"include = 5\n", "run.toml:1:11  error  include must be a file name or a list of them, got integer 5"},
  };
  for (const BadText& bad : table) {
    EXPECT_EQ(failure(load(bad.text, complete())), std::string(bad.expected) + "\n1 error") << bad.text;
  }
}

TEST(Loader, NotTomlIsOneProblemWithItsPlace) {
  EXPECT_THAT(failure(load("[training]\nsteps = \n", {})),
              testing::AllOf(testing::StartsWith("run.toml:2:9  error  not valid TOML: "),
                             testing::EndsWith("\n1 error")));
  EXPECT_THAT(failure(load("threads = 1\nthreads = 2\n", {})), testing::StartsWith("run.toml:2:"));
  EXPECT_THAT(failure(load("a = \"\xff\"\n", {})), testing::StartsWith("run.toml:1:"));
}

TEST(Loader, KeysOfManyPartsAreRefusedBeforeTheyAreParsed) {
  std::string key = "a";
  for (int part = 0; part < 20'000; ++part) key += ".a";
  const std::string deep = "run.toml:2:1  error  not valid TOML: a key has more than 16 parts\n1 error";
  EXPECT_EQ(failure(load("threads = 1\n" + key + " = 1\n", {})), deep);
  EXPECT_EQ(failure(load("list = [\n{ " + key + " = 1 } ]\n", {})), deep);
  // An earlier error says more: this is no TOML at all.
  EXPECT_THAT(failure(load("\x7f\n\n" + key + "\n", {})), testing::StartsWith("run.toml:1:"));
}

TEST(Loader, AVariableOfNoKeyIsAnErrorWithASuggestion) {
  const auto problem_of = [](const std::string& name) {
    const ScopedVariable variable(name, "5");
    return failure(load(kCompleteText, {}));
  };
  const auto near = [](const std::string& name, const std::string& variable, const std::string& key) {
    return name + "  error  is the variable of no key, did you mean " + variable + " (" + key + ")?\n1 error";
  };
  EXPECT_EQ(problem_of("HOLDFAST_TRAINING_STEP"),
            near("HOLDFAST_TRAINING_STEP", "HOLDFAST_TRAINING_STEPS", "training.steps"));
  EXPECT_EQ(problem_of("HOLDFAST_TRIANING_STEPS"),
            near("HOLDFAST_TRIANING_STEPS", "HOLDFAST_TRAINING_STEPS", "training.steps"));
  EXPECT_EQ(problem_of("HOLDFAST_OPTIMIZER_LR"),
            near("HOLDFAST_OPTIMIZER_LR", "HOLDFAST_OPTIMIZER_LEARNING_RATE", "optimizer.learning_rate"));
  EXPECT_EQ(
      problem_of("HOLDFAST_HOME"),
      "HOLDFAST_HOME  error  is the variable of no key: `holdfast config docs` lists every key; unset it, "
      "or give it a name that does not begin with HOLDFAST_\n1 error");
  EXPECT_EQ(problem_of("HOLDFAST_NETWORK"),
            "HOLDFAST_NETWORK  error  is read no more: set network.interface, or HOLDFAST_NETWORK_INTERFACE, "
            "instead\n1 error");
  const ScopedVariable empty("HOLDFAST_TRAINING_STEP", "");
  EXPECT_TRUE(load(kCompleteText, {}).ok()) << "an empty variable counts as one that is not set";
}

// Checks that no run takes a variable of the program, the tests or the tools for a typing error.
TEST(Loader, KnowsEveryVariableThatTheTreeNames) {
  const std::regex quoted("[\"$]\\{?(HOLDFAST_[A-Z0-9_]+)[\"}]");
  const std::set<std::string> shown = {"HOLDFAST_NETWORK", "HOLDFAST_TRAINING_STEP",
                                       "HOLDFAST_TRIANING_STEPS", "HOLDFAST_OPTIMIZER_LR",
                                       "HOLDFAST_HOME"};  // wrong on purpose
  std::set<std::string> names;
  for (const char* folder : {"runtime", "checkpoint", "watchdog", "parallel", "kernels", "tests", "tools"}) {
    for (const auto& entry :
         std::filesystem::recursive_directory_iterator(std::string(HF_SOURCE_DIR "/") + folder)) {
      const std::string kind = entry.path().extension();
      if (!entry.is_regular_file() || (kind != "" && kind != ".cc" && kind != ".h" && kind != ".py"))
        continue;
      std::ifstream file(entry.path());
      const std::string text(std::istreambuf_iterator<char>(file), {});
      for (std::sregex_iterator found(text.begin(), text.end(), quoted), end; found != end; ++found)
        names.insert((*found)[1]);
    }
  }
  EXPECT_TRUE(names.contains("HOLDFAST_FAULTS_LOG") && names.contains("HOLDFAST_TEST_TIER"));
  for (const std::string& name : names) {
    if (shown.contains(name)) continue;
    const ScopedVariable variable(name, "5");
    EXPECT_THAT(unknown_variables(posix_env()), testing::IsEmpty());
  }
}

TEST(Loader, AllProblemsComeTogetherInFileOrder) {
  const ScopedVariable variable("HOLDFAST_THREADS", "many");
  EXPECT_EQ(
      failure(load("[training]\nsequence_length = 0\nstpes = 5\n[model]\nlayers = \"two\"\n",
                   {{"optimizer.beta1", "7"}, {"optim", "1"}, {"optimizer", "adamw"}})),
      "run.toml:2:19      error  training.sequence_length must be >= 1, got 0\n"
      "run.toml:3:1       error  unknown key training.stpes, did you mean training.steps?\n"
      "run.toml:5:10      error  model.layers must be an integer, got string \"two\"\n"
      "HOLDFAST_THREADS   error  threads must be an integer, got string \"many\"\n"
      "--optimizer.beta1  error  optimizer.beta1 must be <= 0.999999, got 7\n"
      "--optim            error  unknown key optim: `holdfast config docs` lists every key\n"
      "--optimizer        error  optimizer is a section: write --optimizer.key=value\n"
      "run.toml           error  run.directory is missing: Where the run keeps its events, status, "
      "report and "
      "checkpoints; one writer at a time. On a file system that the hosts share, or on a disk of each; "
      "for example "
      "[run] directory = \"runs/first\"\n"
      "run.toml           error  data.sources is missing: Training data: a list of {path, format, "
      "weight}, and with text {tokenizer, pattern, column, append_eos}. On resume the paths of files and "
      "tokenizers may change; all else may not; for example [data] sources = "
      "[{ path = \"text.txt\", format = \"text\" }]\n"
      "9 errors");
}

TEST(Loader, WhatNoWeightsTellMayBeMissingWhereTheyAreStored) {
  Config config;
  config.model.style = "gpt2";
  config.model.layers = 1;
  config.model.heads = 2;
  config.model.width = 8;
  config.model.positions = 512;
  const std::string text = dump_config(config);
  for (const char* key : {"\ndirectory = ", "\nsources = [", "\nsteps = 0"})
    EXPECT_EQ(text.substr(0, text.find("[evaluation]")).find(key), std::string::npos) << key;
  const auto stored = load_stored_config(posix_env(), text, "imported", StoredConfig::of_weights);
  ASSERT_TRUE(stored.ok()) << stored.error().message;
  EXPECT_EQ(stored->config.model.width, 8);
  EXPECT_EQ(dump_config(stored->config), text);
  EXPECT_THAT(failure(load_stored_config(posix_env(), text, "run")),
              testing::HasSubstr("training.steps is missing"));
  config.model.heads = 3;
  EXPECT_THAT(
      failure(load_stored_config(posix_env(), dump_config(config), "imported", StoredConfig::of_weights)),
      testing::HasSubstr("does not divide model.width"));
}

TEST(Loader, OverridesThatAreNotOneValueAreStrings) {
  auto overrides = complete();
  overrides.push_back({"threads", "1\nthreads = 2"});
  overrides.push_back({"run.resume", "a\xff"});
  EXPECT_EQ(failure(load("", overrides)),
            "--threads     error  threads must be an integer, got string \"1\\u000Athreads = 2\"\n"
            "--run.resume  error  run.resume must be UTF-8 text\n"
            "2 errors");
}

TEST(Loader, ProblemsOfIncludesNameTheirFile) {
  const TemporaryFolder folder;
  const std::string base = folder.write("base.toml", "[log]\nevery_steps = -1\n");
  const std::string path =
      folder.write("run.toml", "include = [\"base.toml\", \"none.toml\"]\nthreads = -1\n");
  const std::string message = failure(load_config(posix_env(), path, complete()));
  EXPECT_THAT(message, testing::HasSubstr(path + ":1:25"));
  EXPECT_THAT(message, testing::HasSubstr("none.toml"));
  EXPECT_THAT(message, testing::HasSubstr(path + ":2:11 "));
  EXPECT_THAT(message, testing::HasSubstr(base + ":2:15"));
  EXPECT_THAT(message, testing::HasSubstr("log.every_steps must be >= 1, got -1"));
  EXPECT_THAT(message, testing::EndsWith("\n3 errors"));
  EXPECT_LT(message.find("threads"), message.find("log.every_steps"));
}

TEST(Loader, IncludeCyclesAreErrors) {
  const TemporaryFolder folder;
  const std::string a = folder.write("a.toml", "include = \"sub/../b.toml\"\n");
  const std::string b = folder.write("b.toml", "include = \"a.toml\"\n");
  EXPECT_EQ(
      failure(load_config(posix_env(), a, complete())),
      b + ":1:11  error  " + a + " includes itself (by way of " + b + "): take one include out\n1 error");
}

TEST(Loader, MissingFileIsASentence) {
  const TemporaryFolder folder;
  const std::string message = failure(load_config(posix_env(), folder.path("none.toml"), {}));
  EXPECT_THAT(message, testing::StartsWith("the config cannot be read: "));
  EXPECT_THAT(message, testing::HasSubstr(folder.path("none.toml")));
}

TEST(ParseOverrides, SplitsAtTheFirstEquals) {
  const auto result =
      parse_overrides({"--device=cpu", "--data.sources=[{ path = \"a=b\" }]", "--run.resume="});
  ASSERT_TRUE(result.ok());
  ASSERT_EQ(result->size(), 3u);
  EXPECT_EQ((*result)[0].key, "device");
  EXPECT_EQ((*result)[1].key, "data.sources");
  EXPECT_EQ((*result)[1].value, "[{ path = \"a=b\" }]");
  EXPECT_EQ((*result)[2].value, "");
}

TEST(ParseOverrides, AValueInAWordOfItsOwnIsJoinedToItsKey) {
  const auto result = parse_overrides({"--lr", "1e-3", "--training.steps", "7"});
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().message,
            "--lr              error  has no value: write --optimizer.learning_rate=1e-3\n"
            "--training.steps  error  has no value: write --training.steps=7\n"
            "2 errors");
}

TEST(ParseOverrides, EverythingElseIsASentence) {
  const auto result = parse_overrides({"steps=5", "--training.steps", "--=5", "--"});
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().code, ExitCode::config);
  EXPECT_EQ(result.error().message,
            "steps=5           error  is not an option: options are written --section.key=value\n"
            "--training.steps  error  has no value: write --training.steps=VALUE\n"
            "--=5              error  names no key: options are written --section.key=value\n"
            "--                error  is not an option: options are written --section.key=value\n"
            "4 errors");
}

TEST(ParseOverrides, AWordOfOtherProgramsIsNotGivenAValue) {
  const auto sentence_of = [](const std::vector<std::string>& words) {
    return parse_overrides(words).error().message;
  };
  const std::string no_key = "is no key: options are written --section.key=value, as in ";
  EXPECT_EQ(sentence_of({"--override", "training.steps=7"}),
            "--override  error  " + no_key + "--training.steps=7\n1 error");
  EXPECT_EQ(sentence_of({"--overrides"}), "--overrides  error  " + no_key + "--training.steps=5\n1 error");
}

}  // namespace
}  // namespace holdfast::test
