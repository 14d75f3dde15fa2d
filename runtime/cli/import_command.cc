#include <fmt/core.h>

#include "checkpoint/find_checkpoint.h"
#include "runtime/cli/commands.h"
#include "runtime/cli/common/arguments.h"
#include "runtime/config/document.h"
#include "runtime/config/option_value.h"
#include "runtime/interop/model_import.h"
#include "runtime/os/fault_point.h"
#include "runtime/os/foreign_text.h"
#include "runtime/run/run_directory.h"
#include "runtime/save/run_state.h"

namespace holdfast::cli {
namespace {

constexpr const char* import_usage =
    "usage: holdfast import SOURCE CHECKPOINT [--rope-scaling refuse|drop] [--adapter FOLDER]\n"
    "\n"
    "Makes a checkpoint of a model of another program: SOURCE is a Hugging Face folder (config.json and "
    "safetensors; GPT-2,\n"
    "Llama, Qwen2, Qwen3, Mistral without a sliding window) or a model file of karpathy/llm.c. CHECKPOINT "
    "becomes a "
    "directory\n"
    "with one checkpoint of step 0 that holds the weights in fp32. sample, evaluate, inspect, diff and "
    "export take "
    "it.\n"
    "Prints a config for a new run that starts from it; what the weights do not tell (run.directory, "
    "data.sources,\n"
    "training.steps) is for you to fill in there.\n"
    "  --rope-scaling drop    take a model whose rotary frequencies are scaled (llama3 and linear are known, "
    "others "
    "refused)\n"
    "                         with plain ones; that is another model until it is trained on (refuse)\n"
    "  --adapter FOLDER       take the LoRA adapters that PEFT has saved for this model as well, to go on "
    "with them, or to\n"
    "                         merge them (holdfast export --merge)\n";

// Returns the checkpoint's manifest, of weights only, at step 0 of a run of its own.
Manifest make_manifest(const ModelImport& model, const RunState& state, const std::string& source) {
  Manifest manifest;
  put_state(state, manifest);
  manifest.identity = config_identity(model.config());
  manifest.config = record_config(model.config());
  manifest.values[imported_from_key] = source;
  return manifest;
}

// Returns a config that starts from the weights in `directory`. Required keys stand in it as comments with
// an example, so that it is refused, key by key, until they are filled in.
std::string starting_config(Config config, const std::string& directory) {
  config.run.initialize_from = directory;
  std::string text;
  std::string_view section;
  for (const Option& option : option_registry()) {
    const std::string_view own = section_of(option.key);
    const bool is_known = own == "model" || (own == "lora" && config.lora.is_on()) ||
                          option.key == "run.initialize_from" || option.key == "training.sequence_length";
    if (!is_known && !option.required) continue;
    if (own != section) text += fmt::format("\n[{}]\n", own);
    section = own;
    const std::string_view name = option.key.substr(own.size() + 1);
    text += option.required ? fmt::format("# {} = {}\n", name, option.example)
                            : fmt::format("{} = {}\n", name, value_text(option, config));
  }
  return text;
}

Result<void> save(Env& env, ModelImport& model, const std::string& source, const std::string& directory) {
  HF_TRY(const std::optional<FoundCheckpoint> there, find_checkpoint(env, directory));
  if (there.has_value()) {
    return fail(ExitCode::config, "{} holds a checkpoint; nothing is overwritten: give another CHECKPOINT",
                directory);
  }
  HF_TRY(const std::unique_ptr<Claim> claim, claim_run_directory(env, {.directory = directory}));
  FaultPoints faults;
  CheckpointStore store(env, faults, directory);
  store.fence({.epoch = claim->epoch(), .check = claim->fence()});
  const RunState state{.run_id = fmt::format("{:016x}{:016x}", env.random_u64(), env.random_u64())};
  Manifest manifest = make_manifest(model, state, source);
  HF_TRY_VOID(store.begin_save(state.step));
  Result<std::vector<ShardFile>> shards =
      model.write_shards(env, store.pending_directory(state.step), state.run_id);
  if (!shards.ok()) {
    static_cast<void>(store.abandon_save(state.step).ok());  // the first error is the one to report
    return shards.error();
  }
  manifest.shards = std::move(shards).value();
  return store.publish(manifest);
}

Result<void> import_model(const std::vector<std::string>& words) {
  Env& env = posix_env();
  HF_TRY(const Arguments arguments,
         Arguments::parse("import", words, {"SOURCE", "CHECKPOINT"}, {"rope-scaling", "adapter"}));
  HF_TRY_VOID(outcome_of(arguments.choice("rope-scaling", {"refuse", "drop"})));
  const bool drop_scaling = arguments.text("rope-scaling", "refuse") == "drop";
  const std::string &source = arguments.positional(0), &directory = arguments.positional(1);
  HF_TRY(ModelImport model, ModelImport::open(env, source, {.drop_rope_scaling = drop_scaling}));
  if (arguments.has("adapter")) HF_TRY_VOID(model.add_adapters(env, arguments.text("adapter", "")));
  HF_TRY_VOID(save(env, model, source, directory));
  fmt::print(
      "# {} -> {}\n"
      "# A config for a run that starts from these weights. The keys in comments are not known from them: "
      "give each a value,\n"
      "# without its \"#\"; the run does not start before. The data has to be made with the model's own "
      "tokenizer.\n{}",
      printable(source), printable(directory), starting_config(model.config(), directory));
  return {};
}

}  // namespace

int run_import_command(const std::vector<std::string>& arguments) {
  if (wants_help(arguments)) {
    fmt::print("{}", import_usage);
    return 0;
  }
  const Result<void> outcome = import_model(arguments);
  return outcome.ok() ? 0 : complain(outcome.error());
}

}  // namespace holdfast::cli
