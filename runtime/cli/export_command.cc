#include <fmt/core.h>

#include "runtime/cli/commands.h"
#include "runtime/cli/common/arguments.h"
#include "runtime/cli/open_checkpoint.h"
#include "runtime/core/json.h"
#include "runtime/inference/inference.h"
#include "runtime/interop/checkpoint_contents.h"
#include "runtime/interop/model_export.h"
#include "runtime/text/tokenizer_file.h"

namespace holdfast::cli {
namespace {

constexpr const char* export_usage =
    "usage: holdfast export CHECKPOINT TARGET [--format F] [--precision P] [--file-mib N] [--tokenizer "
    "FILE] [--ema] [--merge]\n"
    "\n"
    "Writes the weights of a checkpoint (or of a run directory's newest whole one) for other programs. "
    "TARGET "
    "must not\n"
    "exist; it appears when all of it is on the disk.\n"
    "  --format F        safetensors: a folder for transformers (config.json and model.safetensors); llmc: a "
    "model\n"
    "                    file of karpathy/llm.c, GPT-2 only (safetensors)\n"
    "  --precision P     fp32, every bit of the weights, or bf16, rounded to nearest (fp32)\n"
    "  --file-mib N      the largest safetensors file in MiB; more weights are several files and an index "
    "(5000)\n"
    "  --ema             the average of the weights in their place, where the run keeps one (optimizer.ema)\n"
    "  --tokenizer FILE  the tokenizer.json that the data was made with, for the folder (the one that a run "
    "on "
    "text\n"
    "                    sources has kept; else the folder has none)\n"
    "  --merge           of a run with LoRA adapters: the whole model, with the adapters merged into its "
    "weights; without "
    "it\n"
    "                    the adapters alone, as a folder for PEFT\n";

// Checks what is asked for of a run with adapters, or without.
Result<void> check_adapters(const Config& config, const std::string& format, bool merges) {
  if (merges && !config.lora.is_on())
    return fail(ExitCode::config,
                "--merge is for runs with adapters (lora.rank), and this has none: leave it out");
  if (format == "llmc" && config.lora.is_on() && !merges)
    return fail(ExitCode::config,
                "a model file of llm.c holds no adapters: give --merge, or --format safetensors");
  return {};
}

// Adds the tokenizer to the folder, with the little that AutoTokenizer of transformers wants to know beside it.
Result<void> add_tokenizer(Env& env, const Config& config, const std::string& path, ExportOptions& options) {
  HF_TRY(const Tokenizer tokenizer, read_tokenizer(env, path, ""));
  if (tokenizer.vocabulary() > config.model.vocabulary) {
    return fail(
        ExitCode::config,
        "the tokenizer {} has {} tokens, the model {}: it was trained with another tokenizer; give that one",
        path, tokenizer.vocabulary(), config.model.vocabulary);
  }
  HF_TRY(options.tokenizer, env.read_text(path));
  Json about = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                {"model_max_length", config.training.sequence_length},
                {"clean_up_tokenization_spaces", false}};
  if (const std::optional<TokenId> end = tokenizer.end_of_text())
    about["eos_token"] = std::string(tokenizer.bytes_of(*end));
  options.tokenizer_config = about.dump(2);
  return {};
}

Result<void> export_model(const std::vector<std::string>& words) {
  Env& env = posix_env();
  HF_TRY(const Arguments arguments,
         Arguments::parse("export", words, {"CHECKPOINT", "TARGET"},
                          {"format", "precision", "file-mib", "tokenizer"}, {"ema", "merge"}));
  HF_TRY(const std::string format, arguments.choice("format", {"safetensors", "llmc"}));
  HF_TRY(const std::string precision, arguments.choice("precision", {"fp32", "bf16"}));
  constexpr std::int64_t usual_mib = 5000, largest_mib = std::int64_t{1} << 40;
  HF_TRY(const std::int64_t file_mib, arguments.integer("file-mib", usual_mib, 1));
  if (format == "llmc" && arguments.has("tokenizer"))
    return fail(ExitCode::config,
                "--tokenizer is for --format safetensors; a model file of llm.c holds no tokenizer");
  ExportOptions options{.precision = precision == "fp32" ? WeightType::fp32 : WeightType::bf16,
                        .file_bytes_max = static_cast<std::uint64_t>(std::min(file_mib, largest_mib)) << 20};
  const std::string& target = arguments.positional(1);
  std::string exported;
  const auto write = [&](Checkpoint& checkpoint) -> Result<void> {
    HF_TRY(const Config config, config_of_checkpoint(env, checkpoint));
    HF_TRY_VOID(check_adapters(config, format, arguments.has("merge")));
    const bool adapters_alone = config.lora.is_on() && !arguments.has("merge");
    std::string tokenizer = arguments.text("tokenizer", "");
    if (tokenizer.empty() && format != "llmc" && !adapters_alone) {
      HF_TRY(tokenizer, tokenizer_of_run(env, checkpoint));
    }
    if (!tokenizer.empty()) HF_TRY_VOID(add_tokenizer(env, config, tokenizer, options));
    if (arguments.has("ema")) {
      HF_TRY(options.averaged, averaged_tensors(checkpoint));
    }
    TensorReader weights(checkpoint, parameter_specs(make_model_spec(config)), env.processor_count());
    exported = fmt::format("{} (step {}{})", checkpoint.directory(), checkpoint.manifest().step,
                           adapters_alone ? ", the adapters alone; --merge writes the whole model" : "");
    if (adapters_alone) return export_adapters(env, weights, config, target, options);
    return format == "llmc" ? export_llmc(env, weights, config, target, options)
                            : export_hugging_face(env, weights, config, target, options);
  };
  HF_TRY_VOID(use_newest_checkpoint(env, arguments.positional(0), write));
  fmt::print("{} -> {}\n", exported, target);
  return {};
}

}  // namespace

int run_export_command(const std::vector<std::string>& arguments) {
  if (wants_help(arguments)) {
    fmt::print("{}", export_usage);
    return 0;
  }
  const Result<void> outcome = export_model(arguments);
  return outcome.ok() ? 0 : complain(outcome.error());
}

}  // namespace holdfast::cli
