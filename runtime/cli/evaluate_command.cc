#include <fmt/core.h>

#include <algorithm>

#include "runtime/cli/commands.h"
#include "runtime/cli/common/arguments.h"
#include "runtime/cli/open_checkpoint.h"
#include "runtime/inference/file_evaluation.h"
#include "runtime/interop/checkpoint_contents.h"

namespace holdfast::cli {
namespace {

constexpr const char* evaluate_usage =
    "usage: holdfast evaluate PATH --data FILE [--sequence-length N] [--device D] [--kernels.KEY=VALUE ...]\n"
    "\n"
    "PATH is a run directory (its newest whole checkpoint) or one checkpoint. Prints the mean loss per token "
    "(nats) in fp32\n"
    "over the consecutive windows of N tokens of FILE: an llm.c or llmq token shard or a Megatron\n"
    "dataset, known by its magic, or text.\n"
    "  --data FILE             the data\n"
    "  --sequence-length N     tokens in a window (the run's training.sequence_length)\n"
    "  --device D              auto, cpu or cuda; auto takes a GPU that can be used (auto)\n"
    "  --kernels.KEY=V         in place of the run's [kernels]; its plug-ins are loaded where "
    "--kernels.plugins names them\n";

// Number of tokens computed at once: enough to keep the processor busy. Any number gives the loss of the same
// windows.
constexpr std::int64_t tokens_at_once = 2048;

Result<std::int64_t> sequence_length_of(const Arguments& arguments, Env& env, const Checkpoint& checkpoint) {
  HF_TRY(const std::int64_t given, arguments.integer("sequence-length", 0, 1));
  constexpr std::int64_t longest = std::int64_t{1} << 20;
  if (given > longest)
    return fail(ExitCode::config, "--sequence-length must be at most {}, got {}", longest, given);
  if (given > 0) return given;
  HF_TRY(const Config config, config_of_checkpoint(env, checkpoint));
  return config.training.sequence_length;
}

Result<void> evaluate(std::vector<std::string> words) {
  Env& env = posix_env();
  HF_TRY(const std::vector<Override> kernels, take_kernel_keys(words));
  HF_TRY(const Arguments arguments,
         Arguments::parse("evaluate", words, {"PATH"}, {"data", "sequence-length", "device"}));
  if (!arguments.has("data")) {
    return fail(ExitCode::config, "evaluate needs --data FILE, the data to compute the loss of\n{}",
                evaluate_usage);
  }
  HF_TRY(const std::string device, device_option(arguments, env));
  HF_TRY(Checkpoint checkpoint, open_newest_checkpoint(env, arguments.positional(0)));
  HF_TRY(const std::int64_t length, sequence_length_of(arguments, env, checkpoint));
  HF_TRY(const std::unique_ptr<InferenceModel> model,
         InferenceModel::load(env, checkpoint,
                              {.device = device,
                               .threads = env.processor_count(),
                               .sequence_length = length,
                               .batch = std::max<std::int64_t>(1, tokens_at_once / length),
                               .kernels = kernels}));
  HF_TRY(const double loss, evaluate_file(env, *model, arguments.text("data", "")));
  fmt::print("loss {:.9f}\n", loss);
  return {};
}

}  // namespace

int run_evaluate_command(const std::vector<std::string>& arguments) {
  if (wants_help(arguments)) {
    fmt::print("{}", evaluate_usage);
    return 0;
  }
  const Result<void> outcome = evaluate(arguments);
  return outcome.ok() ? 0 : complain(outcome.error());
}

}  // namespace holdfast::cli
