#include <fmt/core.h>

#include <cstdio>

#include "runtime/cli/commands.h"
#include "runtime/cli/common/arguments.h"
#include "runtime/cli/open_checkpoint.h"
#include "runtime/inference/sampler.h"
#include "runtime/os/console.h"

namespace holdfast::cli {
namespace {

constexpr const char* sample_usage =
    "usage: holdfast sample RUN --prompt TEXT [--tokens N] [--temperature X] [--top-k K] [--seed S] "
    "[--device D]\n"
    "\n"
    "RUN is a run directory (its newest whole checkpoint) or one checkpoint. Prints the prompt and what the "
    "model goes on\n"
    "with. A model of bytes takes text; any other takes and prints token ids.\n"
    "  --prompt TEXT      how the text starts; empty = a new line\n"
    "  --tokens N         tokens to make (400)\n"
    "  --temperature X    0 = always the likeliest token, 1 = as likely as the model says (0.8)\n"
    "  --top-k K          choose among the K likeliest tokens, 0 = all (40)\n"
    "  --seed S           another seed, another text; the same seed and kind of device, the same text (1)\n"
    "  --device D         auto, cpu or cuda; auto takes a GPU that can be used (auto)\n";

Result<SampleOptions> read_options(const Arguments& arguments) {
  SampleOptions options{.prompt = arguments.text("prompt", "")};
  HF_TRY(options.tokens, arguments.integer("tokens", options.tokens, 0));
  HF_TRY(options.temperature, arguments.real("temperature", options.temperature, 0.0));
  HF_TRY(options.top_k, arguments.integer("top-k", options.top_k, 0));
  HF_TRY(const std::int64_t seed, arguments.integer("seed", static_cast<std::int64_t>(options.seed), 0));
  options.seed = static_cast<std::uint64_t>(seed);
  return options;
}

Result<void> sample_text(const std::vector<std::string>& words) {
  Env& env = posix_env();
  HF_TRY(const Arguments arguments,
         Arguments::parse("sample", words, {"RUN"},
                          {"prompt", "tokens", "temperature", "top-k", "seed", "device"}));
  HF_TRY(const SampleOptions options, read_options(arguments));
  HF_TRY(const std::string device, device_option(arguments, env));
  HF_TRY(Checkpoint checkpoint, open_newest_checkpoint(env, arguments.positional(0)));
  HF_TRY(const std::unique_ptr<InferenceModel> model,
         InferenceModel::load(env, checkpoint, {.device = device, .threads = env.processor_count()}));
  bool shown = false;
  const auto show = [&shown](std::string_view text) {
    shown = true;
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
  };
  const Result<void> outcome = sample(*model, options, show);
  if (shown || outcome.ok()) print_line("\n");
  return outcome;
}

}  // namespace

int run_sample_command(const std::vector<std::string>& arguments) {
  if (wants_help(arguments)) {
    fmt::print("{}", sample_usage);
    return 0;
  }
  const Result<void> outcome = sample_text(arguments);
  return outcome.ok() ? 0 : complain(outcome.error());
}

}  // namespace holdfast::cli
