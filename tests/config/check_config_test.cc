// Rules between keys: each problem names every key involved with its value and place.
#include "tests/config/config_fixture.h"

namespace holdfast::test {
namespace {

struct BadPair {
  const char* text;
  std::vector<Override> overrides;
  const char* expected;
};

constexpr const char* kRest =
    "run = { directory = \"runs/a\" }\n"
    "data = { sources = [{ path = \"corpus.txt\" }] }\n"
    "training = { steps = 100 }\n";

// Each text stands below the three lines of kRest: its first line is line 4.
std::vector<BadPair> shape_table() {
  return {
      {"model = { layers = 2, heads = 5, width = 64 }\n",
       {},
       "run.toml:4:31  error  model.heads = 5 (run.toml:4:31) does not divide model.width = 64 "
       "(run.toml:4:42): every "
       "head needs the same number of channels"},
      {"model = { layers = 2, heads = 2, width = 6 }\n",
       {},
       "run.toml:4:31  error  model.heads = 2 (run.toml:4:31) with model.width = 6 (run.toml:4:42) makes "
       "heads of 3 "
       "channels: rotary positions need an even number"},
      {"model = { layers = 2, heads = 1 }\n",
       {{"model.width", "512"}},
       "run.toml:4:31  error  model.heads = 1 (run.toml:4:31) with model.width = 512 (command line) makes "
       "heads of 512 "
       "channels: at most 256 are supported, use more heads"},
      {"model = { layers = 2, heads = 6, width = 96, kv_heads = 4 }\n",
       {},
       "run.toml:4:57  error  model.kv_heads = 4 (run.toml:4:57) does not divide model.heads = 6 "
       "(run.toml:4:31): "
       "every key/value head serves the same number of heads"},
      {"model = { layers = 2, heads = 4, width = 64, rope_factor = 2.0 }\n",
       {},
       "run.toml:4:60  error  model.rope_factor = 2.0 (run.toml:4:60) needs a model.rope_scaling, which is "
       "\"none\": "
       "say linear or llama3, or leave model.rope_factor out"},
      {"model = { layers = 2, heads = 4, width = 64, rope_low_frequency_factor = 2.0 }\n",
       {},
       "run.toml:4:74  error  model.rope_low_frequency_factor = 2.0 (run.toml:4:74) needs a "
       "model.rope_scaling, which is \"none\": "
       "say linear or llama3, or leave model.rope_low_frequency_factor out"},
      {"model = { layers = 2, heads = 4, width = 64, attention_sinks = 4 }\n",
       {},
       "run.toml:4:64  error  model.attention_sinks = 4 (run.toml:4:64) needs a model.attention_window: "
       "without "
       "one every token sees all tokens before it, the first among them; give the window, which is 4096 in "
       "Mistral 7B, or leave model.attention_sinks out"},
      {"model = { layers = 2, heads = 4, width = 64, rope_scaling = \"linear\" }\n",
       {},
       "run.toml:4:61  error  model.rope_scaling = \"linear\" (run.toml:4:61) needs model.rope_factor: give "
       "what frequencies are divided by, which is 8 in Llama 3.1 and 32 in Llama 3.2"},
      {"model = { layers = 2, heads = 4, width = 64, rope_scaling = \"llama3\", rope_factor = 8.0 }\n",
       {},
       "run.toml:4:61  error  model.rope_scaling = \"llama3\" (run.toml:4:61) needs "
       "model.rope_original_positions: give "
       "the context that the frequencies were made for, which is 8192 in Llama 3"},
      {"model = { layers = 2, heads = 4, width = 64, style = \"gpt2\", rope_scaling = \"linear\", "
       "rope_factor = 2.0 }\n",
       {},
       "run.toml:4:77  error  model.rope_scaling = \"linear\" (run.toml:4:77) does not go with model.style = "
       "\"gpt2\" "
       "(run.toml:4:54), which has no rotary frequencies: leave model.rope_scaling out"},
      {"model = { layers = 2, heads = 4, width = 64, style = \"gpt2\", head_size = 32 }\n",
       {},
       "run.toml:4:74  error  model.head_size = 32 (run.toml:4:74) does not go with model.style = \"gpt2\" "
       "(run.toml:4:54), whose heads have width / heads channels: leave model.head_size out"},
      {"model = { layers = 2, heads = 3, width = 64, head_size = 7 }\n",
       {},
       "run.toml:4:58  error  model.head_size = 7 (run.toml:4:58) is odd: rotary positions need an even "
       "number of "
       "channels"},
      {"model = { layers = 2, heads = 4 }\n",
       {},
       "run.toml  error  model.width is missing: give it, or take all shapes from a model.preset"},
      {"model = { preset = \"gpt2-124m\", layers = 3 }\n",
       {},
       "run.toml:4:42  error  model.layers = 3 (run.toml:4:42) contradicts model.preset = \"gpt2-124m\" "
       "(run.toml:4:20), which fixes it to 12: leave out model.layers, or leave out the preset and give "
       "every shape"},
      {"model = { preset = \"gpt2-124m\", style = \"llama\" }\n",
       {},
       "run.toml:4:41  error  model.style = \"llama\" (run.toml:4:41) contradicts model.preset = "
       "\"gpt2-124m\" "
       "(run.toml:4:20), which fixes it to \"gpt2\": leave out model.style, or leave out the preset and give "
       "every "
       "shape"},
      {"model = { preset = \"llama-1b\", rope_theta = 10000.0 }\n",
       {},
       "run.toml:4:45  error  model.rope_theta = 10000.0 (run.toml:4:45) contradicts model.preset = "
       "\"llama-1b\" "
       "(run.toml:4:20), which fixes it to 500000.0: leave out model.rope_theta, or leave out the preset and "
       "give "
       "every shape"},
      {"model = { preset = \"gpt2-124m\" }\n",
       {{"training.sequence_length", "2048"}},
       "command line  error  training.sequence_length = 2048 (command line) is larger than model.positions = "
       "1024 "
       "(preset gpt2-124m): the model has no positions beyond that"},
      {"model = { layers = 2, heads = 4, width = 64, style = \"gpt2\", positions = 128 }\n",
       {},
       "run.toml:4:74  error  training.sequence_length = 256 (default) is larger than model.positions = 128 "
       "(run.toml:4:74): the model has no positions beyond that"},
      {"model = { layers = 2, heads = 4, width = 64, positions = 1024 }\n",
       {},
       "run.toml:4:58  error  model.positions = 1024 (run.toml:4:58) does not go with model.style = "
       "\"llama\" "
       "(default): only gpt2 has a table of positions; leave model.positions out"},
  };
}

std::vector<BadPair> freeze_table() {
  return {
      {"model = { layers = 2, heads = 4, width = 64, freeze = [\"embeddings\"] }\n",
       {},
       "run.toml:4:55  error  model.freeze has the entry \"embeddings\", did you mean \"embedding\"? An "
       "entry is "
       "\"embedding\", \"head\", \"layers 0-5\" (the first and the last, counted from 0) or \"all but biases "
       "and "
       "norms\""},
      {"model = { layers = 2, heads = 4, width = 64 }\n",
       {{"model.freeze", "layers 2-1"}},
       "command line  error  model.freeze has the entry \"layers 2-1\": an entry is \"embedding\", \"head\", "
       "\"layers 0-5\" (the first and the last, counted from 0) or \"all but biases and norms\""},
      {"model = { layers = 2, heads = 4, width = 64 }\n",
       {{"model.freeze", "layers 1-2"}},
       "command line  error  model.freeze = [\"layers 1-2\"] (command line) names layer 2, which is beyond "
       "model.layers = 2 (run.toml:4:20): layers are counted from 0"},
      {"model = { preset = \"gpt2-124m\" }\n",
       {{"model.freeze", "[\"layer 3\", \"head\"]"}},
       "command line  error  model.freeze = [\"layer 3\", \"head\"] (command line) names the head, which is "
       "tied "
       "to the embedding: write \"embedding\", which freezes both uses of that matrix"},
      {"model = { layers = 2, heads = 4, width = 64 }\n",
       {{"model.freeze", "[\"layers 0-1\", \"embedding\", \"head\"]"}},
       "command line  error  model.freeze = [\"layers 0-1\", \"embedding\", \"head\"] (command line) freezes "
       "the "
       "whole model, so there is nothing to train: leave out what is to be trained"},
  };
}

std::vector<BadPair> lora_table() {
  return {
      {"model = { layers = 2, heads = 4, width = 64 }\n",
       {{"lora.alpha", "16"}},
       "command line  error  lora.alpha = 16.0 (command line) needs a lora.rank, which is 0: there are no "
       "adapters; "
       "give a rank, such as 16, or leave lora.alpha out"},
      {"model = { layers = 2, heads = 4, width = 64 }\nlora = { rank = 8, targets = [\"q\", \"c_attn\"] }\n",
       {},
       "run.toml:5:30  error  lora.targets has the entry \"c_attn\": an entry is \"all\", or a part of a "
       "block of "
       "model.style = \"llama\", which are \"q\", \"k\", \"v\", \"o\", \"gate\", \"up\", \"down\""},
      {"model = { layers = 2, heads = 4, width = 64, freeze = [\"embedding\"] }\n",
       {{"lora.rank", "8"}},
       "run.toml:4:55  error  model.freeze = [\"embedding\"] (run.toml:4:55) does not go with lora.rank = 8 "
       "(command "
       "line): adapters are all that is trained; leave model.freeze out"},
      {"model = { layers = 2, heads = 4, width = 64 }\n",
       {{"lora.rank", "12"}, {"lora.alpha", "16"}, {"training.precision", "bf16"}},
       "command line  error  lora.alpha = 16.0 (command line) / lora.rank = 12 (command line) is "
       "1.3333333333333333, "
       "which bf16 does not hold exactly: the adapters would count otherwise than in other programs; give an "
       "alpha "
       "that is a simple multiple of the rank, such as 12 or 24"},
  };
}

// Each text stands below kRest and a good model on line 4: its first line is line 5.
std::vector<BadPair> run_table() {
  return {
      {"optimizer = { warmup_steps = 101 }\n",
       {},
       "run.toml:5:30  error  optimizer.warmup_steps = 101 (run.toml:5:30) is more than training.steps = 100 "
       "(run.toml:3:22): the learning rate would never reach its peak"},
      {"optimizer = { weight_decay_groups = [\"*.bias\"] }\n",
       {},
       "run.toml:5:37  error  optimizer.weight_decay_groups has the entry \"*.bias\": an entry is "
       "\"PATTERN=DECAY\", such as \"*.bias=0\" or \"embedding.*=0.01\", with a decay from 0 to 100"},
      {"parallel = { lanes = 2, data = 4 }\n",
       {},
       "run.toml:5:32  error  parallel.data = 4 (run.toml:5:32) is more than parallel.lanes = 2 "
       "(run.toml:5:22): every "
       "rank needs a lane; lower parallel.data, or give more parallel.lanes (a run that is resumed is then "
       "cut anew)"},
      {"checkpoint = { every = \"100ms\" }\n",
       {},
       "run.toml:5:24  error  checkpoint.every = \"100ms\" (run.toml:5:24) is shorter than a second: give a "
       "longer time, or the number of steps between two saves as checkpoint.every_steps"},
      {"checkpoint = { ram_every_steps = 0, replicas = \"on\" }\n",
       {},
       "run.toml:5:48  error  checkpoint.replicas = \"on\" (run.toml:5:48) contradicts "
       "checkpoint.ram_every_steps = 0 (run.toml:5:34): replicas are copies of RAM snapshots; leave one of "
       "the two out"},
      {"checkpoint = { every_steps = 100, keep_every_steps = 250 }\n",
       {},
       "run.toml:5:54  error  checkpoint.keep_every_steps = 250 (run.toml:5:54) contradicts "
       "checkpoint.every_steps = 100 (run.toml:5:30): no save is due after those steps; give "
       "checkpoint.every_steps a number that divides them, or leave it out"},
      {"checkpoint = { every_steps = 0, every = \"30m\", keep_every_steps = 250 }\n",
       {},
       "run.toml:5:67  error  checkpoint.keep_every_steps = 250 (run.toml:5:67) contradicts "
       "checkpoint.every_steps = 0 (run.toml:5:30): no save is due after those steps; give "
       "checkpoint.every_steps a number that divides them, or leave it out"},
      {"checkpoint = { mtbf = \"6h\" }\nhazard = { mtbf_hours = 50000 }\n",
       {},
       "run.toml:5:23  error  checkpoint.mtbf = \"6h\" (run.toml:5:23) and hazard.mtbf_hours = 50000.0 "
       "(run.toml:6:25) are both given: the first is the time between failures of the whole run, the second "
       "that of one device, from which the run's follows; leave one of the two out"},
      {"cost = { per_rank_hour = -3 }\n",
       {},
       "run.toml:5:26  error  cost.per_rank_hour must be >= 0, got -3"},
      {"evaluation = { every_steps = 10 }\n",
       {},
       "run.toml:5:30  error  evaluation.every_steps = 10 (run.toml:5:30) needs held-out data: give "
       "evaluation.sources or data.validation_fraction, or leave evaluation.every_steps out"},
      {"",
       {{"data.sources", "[]"}},
       "command line  error  data.sources is empty: give at least one source, like [{ path = \"corpus.txt\" "
       "}]"},
      {"",
       {{"data.sources", "[{ path = \"a\", weight = 1 }, { path = \"b\" }]"}},
       "command line  error  data.sources[1] has no weight, but 1 of the 2 sources have one: give every "
       "source a "
       "weight above 0, or none"},
      {"",
       {{"data.sources", "[{ path = \"a\", format = \"jsonl\" }]"}},
       "command line  error  data.sources[0] is JSONL without a tokenizer: give one, like tokenizer = "
       "\"tokenizer.json\""},
      {"",
       {{"data.sources", "[{ path = \"a\", append_eos = true }]"}},
       "command line  error  data.sources[0] has append_eos without a tokenizer: give tokenizer, or leave it "
       "out"},
      {"",
       {{"data.sources", "[{ path = \"a\", format = \"llmc\", tokenizer = \"t.json\" }]"}},
       "command line  error  data.sources[0] has a tokenizer, but format = \"llmc\" has tokens already: "
       "leave the "
       "tokenizer out, or give the text with format = \"text\" or \"jsonl\""},
      {"",
       {{"data.sources", "[{ path = \"a\", tokenizer = \"t.json\", column = \"b\" }]"}},
       "command line  error  data.sources[0] has a column, but format = \"text\": only jsonl has columns; "
       "leave it "
       "out"},
      {"",
       {{"run.directory", ""}},
       "command line  error  run.directory is empty: name the directory where the run keeps its files"},
      {"",
       {{"evaluation.sources", "[{ path = \"a\", weight = 0 }, { path = \"b\", weight = 1 }]"}},
       "command line  error  evaluation.sources[0] has no weight, but 1 of the 2 sources have one: give "
       "every source a "
       "weight above 0, or none"},
  };
}

std::vector<BadPair> verdict_table() {
  return {
      {"verdict = { preset = \"watch\", on_spike = \"skip\" }\n",
       {},
       "run.toml:5:42  error  verdict.on_spike = \"skip\" (run.toml:5:42) contradicts verdict.preset = "
       "\"watch\" (run.toml:5:22): only the preset guard does more than tell; set verdict.preset = "
       "\"guard\", or leave verdict.on_spike out"},
      {"verdict = { preset = \"watch\", on_drift = \"stop\" }\n",
       {},
       "run.toml:5:42  error  verdict.on_drift = \"stop\" (run.toml:5:42) contradicts verdict.preset = "
       "\"watch\" (run.toml:5:22): only the preset guard does more than tell; set verdict.preset = "
       "\"guard\", or leave verdict.on_drift out"},
      {"verdict = { preset = \"off\" }\n",
       {{"verdict.on_spike", "clip"}},
       "command line  error  verdict.on_spike = \"clip\" (command line) contradicts verdict.preset = \"off\" "
       "(run.toml:5:22): only the preset guard does more than tell; set verdict.preset = \"guard\", or leave "
       "verdict.on_spike out"},
      {"verdict = { window_steps = 63 }\n",
       {},
       "run.toml:5:28  error  verdict.window_steps = 63 (run.toml:5:28) is less than twice "
       "verdict.drift_steps = 32 (default): a drift is the difference of two medians of so many steps; give "
       "a larger window, fewer verdict.drift_steps, or verdict.drift_steps = 0"},
      {"verdict = { window_steps = 16, drift_steps = 0, skips_max = 17 }\n",
       {},
       "run.toml:5:61  error  verdict.skips_max = 17 (run.toml:5:61) is more than verdict.window_steps = 16 "
       "(run.toml:5:28): a run that skips every step learns nothing; lower verdict.skips_max"},
  };
}

void expect_problems(const std::vector<BadPair>& table, const std::string& before) {
  for (const BadPair& bad : table) {
    EXPECT_EQ(failure(load(before + bad.text, bad.overrides)), std::string(bad.expected) + "\n1 error")
        << bad.text;
  }
}

TEST(CheckConfig, ShapesNameBothKeys) {
  expect_problems(shape_table(), kRest);
}

TEST(CheckConfig, FreezeListsAreOfTheModel) {
  expect_problems(freeze_table(), kRest);
}

TEST(CheckConfig, AdaptersAreOfTheModel) {
  expect_problems(lora_table(), kRest);
}

TEST(CheckConfig, RunRulesNameBothKeys) {
  expect_problems(run_table(), std::string(kRest) + "model = { layers = 2, heads = 4, width = 64 }\n");
}

TEST(CheckConfig, VerdictRulesNameBothKeys) {
  const std::string before = std::string(kRest) + "model = { layers = 2, heads = 4, width = 64 }\n";
  expect_problems(verdict_table(), before);
  for (const char* good : {"preset = \"watch\"", "preset = \"off\"", "on_spike = \"skip\", skips_max = 128",
                           "preset = \"off\", on_nonfinite = \"save_and_stop\"", "window_steps = 64",
                           "window_steps = 8, drift_steps = 0"}) {
    const auto result = load(before + "verdict = { " + good + " }\n", {});
    EXPECT_TRUE(result.ok()) << result.error().message;
  }
}

TEST(CheckConfig, SeveralRulesAreReportedTogether) {
  EXPECT_EQ(
      failure(load(std::string(kRest) + "model = { layers = 2, heads = 5, width = 64 }\n",
                   {{"optimizer.warmup_steps", "101"}})),
      "run.toml:4:31  error  model.heads = 5 (run.toml:4:31) does not divide model.width = 64 "
      "(run.toml:4:42): "
      "every head needs the same number of channels\n"
      "command line   error  optimizer.warmup_steps = 101 (command line) is more than training.steps = 100 "
      "(run.toml:3:22): the learning rate would never reach its peak\n"
      "2 errors");
}

// Of a run that was begun when they were not refused, state can be read all the same.
TEST(CheckConfig, StoredIntervalsMayContradictEachOther) {
  const std::string text = std::string(kRest) +
                           "model = { layers = 2, heads = 4, width = 64 }\n"
                           "checkpoint = { ram_every_steps = 0, replicas = \"on\" }\n";
  EXPECT_FALSE(load_config_text(posix_env(), text, "run.toml", {}).ok());
  EXPECT_TRUE(load_stored_config(posix_env(), text, "run.toml").ok());
}

TEST(CheckConfig, GoodConfigsPass) {
  for (const char* model : {"preset = \"gpt2-124m\"", "preset = \"gpt2-124m\", layers = 12, head = \"auto\"",
                            "preset = \"llama-3b\", vocabulary = 128256",
                            "preset = \"gpt2-124m\", freeze = [\"embedding\", \"layers 0-10\", \"layer 11\"]",
                            "layers = 2, heads = 4, width = 64, freeze = [\"all but biases and norms\"]",
                            "layers = 2, heads = 2, width = 6, style = "
                            "\"gpt2\""}) {
    const auto result = load(std::string(kRest) + "model = { " + model + " }\n", {});
    EXPECT_TRUE(result.ok()) << result.error().message;
  }
}

TEST(CheckConfig, WithoutOriginsKeysAreNamedAlone) {
  Config config;
  config.run.directory = "r";
  config.data.sources = {{"a", "text", 0.0}};
  config.training.steps = 10;
  config.model.layers = 1;
  config.model.heads = 3;
  config.model.width = 8;
  const auto problems = check_config(config, {});
  ASSERT_EQ(problems.size(), 1u);
  EXPECT_EQ(problems[0].place, "");
  EXPECT_EQ(problems[0].message,
            "model.heads = 3 does not divide model.width = 8: every head needs the same number of channels");
}

}  // namespace
}  // namespace holdfast::test
