#include <fmt/core.h>

#include "runtime/cli/commands.h"
#include "runtime/cli/common/arguments.h"
#include "runtime/cli/open_checkpoint.h"
#include "runtime/inference/inference.h"
#include "runtime/interop/checkpoint_contents.h"
#include "runtime/interop/model_export.h"

namespace holdfast::cli {
namespace {

constexpr const char* export_usage =
    "usage: holdfast export CHECKPOINT TARGET [--format F] [--precision P] [--file-mib N]\n"
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
    "The folder has no tokenizer: copy tokenizer.json and tokenizer_config.json of the one that the data was "
    "made with.\n";

Result<void> export_model(const std::vector<std::string>& words) {
  Env& env = posix_env();
  HF_TRY(const Arguments arguments,
         Arguments::parse("export", words, {"CHECKPOINT", "TARGET"}, {"format", "precision", "file-mib"}));
  HF_TRY(const std::string format, arguments.choice("format", {"safetensors", "llmc"}));
  HF_TRY(const std::string precision, arguments.choice("precision", {"fp32", "bf16"}));
  constexpr std::int64_t usual_mib = 5000, largest_mib = std::int64_t{1} << 40;
  HF_TRY(const std::int64_t file_mib, arguments.integer("file-mib", usual_mib, 1));
  const ExportOptions options{.precision = precision == "fp32" ? WeightType::fp32 : WeightType::bf16,
                              .file_bytes_max = static_cast<std::uint64_t>(std::min(file_mib, largest_mib))
                                                << 20};
  const std::string& target = arguments.positional(1);
  std::string exported;
  HF_TRY_VOID(
      use_newest_checkpoint(env, arguments.positional(0), [&](Checkpoint& checkpoint) -> Result<void> {
        HF_TRY(const Config config, config_of_checkpoint(env, checkpoint));
        TensorReader weights(checkpoint, parameter_specs(make_model_spec(config)), env.processor_count());
        exported = fmt::format("{} (step {})", checkpoint.directory(), checkpoint.manifest().step);
        return format == "llmc" ? export_llmc(env, weights, config, target, options)
                                : export_hugging_face(env, weights, config, target, options);
      }));
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
