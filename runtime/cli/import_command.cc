#include <fmt/core.h>

#include "checkpoint/find_checkpoint.h"
#include "runtime/cli/commands.h"
#include "runtime/cli/common/arguments.h"
#include "runtime/config/document.h"
#include "runtime/interop/model_import.h"
#include "runtime/os/fault_point.h"
#include "runtime/run/run_directory.h"
#include "runtime/save/run_state.h"

namespace holdfast::inline cli {
namespace {

constexpr const char* import_usage =
    "usage: holdfast import SOURCE CHECKPOINT [--rope-scaling refuse|drop]\n"
    "\n"
    "Makes a checkpoint of a model of another program: SOURCE is a Hugging Face folder (config.json and "
    "safetensors; GPT-2\n"
    "or Llama) or a model file of karpathy/llm.c. CHECKPOINT becomes a directory with one checkpoint of step "
    "0 "
    "that holds\n"
    "the weights in fp32. sample, evaluate, inspect, diff and export take it, and a new run starts from it "
    "with\n"
    "run.initialize_from = \"CHECKPOINT\" and the model keys that are printed here.\n"
    "  --rope-scaling drop    take a Llama whose rotary frequencies are scaled with plain ones; that is "
    "another model\n"
    "                         until it is trained on (refuse)\n";

// Returns the checkpoint's manifest, of weights only, at step 0 of a run of its own.
Manifest make_manifest(const ModelImport& model, const RunState& state, const std::string& source) {
  Manifest manifest;
  put_state(state, manifest);
  manifest.identity = config_identity(model.config());
  manifest.config = record_config(model.config());
  manifest.values[imported_from_key] = source;
  return manifest;
}

// Returns the [model] section of the config that starts from it.
std::string model_section(const Config& config) {
  const std::string text = dump_config(config);
  const std::size_t begin = text.find("[model]\n");
  return text.substr(begin, text.find("\n\n", begin) + 1 - begin);
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
         Arguments::parse("import", words, {"SOURCE", "CHECKPOINT"}, {"rope-scaling"}));
  HF_TRY_VOID(outcome_of(arguments.choice("rope-scaling", {"refuse", "drop"})));
  const bool drop_scaling = arguments.text("rope-scaling", "refuse") == "drop";
  const std::string &source = arguments.positional(0), &directory = arguments.positional(1);
  HF_TRY(ModelImport model, ModelImport::open(env, source, {.drop_rope_scaling = drop_scaling}));
  HF_TRY_VOID(save(env, model, source, directory));
  fmt::print("{} -> {}\n\n{}", source, directory, model_section(model.config()));
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

}  // namespace holdfast::inline cli
