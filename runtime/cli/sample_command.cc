#include <fmt/core.h>

#include <cstdio>
#include <optional>

#include "runtime/cli/commands.h"
#include "runtime/cli/common/arguments.h"
#include "runtime/cli/open_checkpoint.h"
#include "runtime/inference/sampler.h"
#include "runtime/os/console.h"

namespace holdfast::cli {
namespace {

constexpr const char* sample_usage =
    "usage: holdfast sample RUN --prompt TEXT [--tokenizer FILE] [--tokens N] [--temperature X] [--top-k K] "
    "[--seed S] [--device D] [--kernels.KEY=VALUE ...]\n"
    "\n"
    "RUN is a run directory (its newest whole checkpoint) or one checkpoint. Prints the prompt and what the "
    "model goes on\n"
    "with. A model of bytes takes text, and so does one with a tokenizer; any other takes and prints token "
    "ids.\n"
    "  --prompt TEXT      how the text starts; empty = a new line, or the tokenizer's token between "
    "documents\n"
    "  --tokenizer FILE   the tokenizer.json, or rank file of tiktoken, that the model was trained with (the "
    "one that a run on\n"
    "                     text sources has kept)\n"
    "  --pattern P        how a rank file cuts text into pieces: gpt2, llama3, qwen2 or a regular "
    "expression\n"
    "  --tokens N         tokens to make (400)\n"
    "  --temperature X    0 = always the likeliest token, 1 = as likely as the model says (0.8)\n"
    "  --top-k K          choose among the K likeliest tokens, 0 = all (40)\n"
    "  --seed S           another seed, another text; the same seed and kind of device, the same text (1)\n"
    "  --device D         auto, cpu or cuda; auto takes a GPU that can be used (auto)\n"
    "  --kernels.KEY=V    in place of the run's [kernels]; its plug-ins are loaded where --kernels.plugins "
    "names them\n";

Result<SampleOptions> read_options(const Arguments& arguments) {
  SampleOptions options{.prompt = arguments.text("prompt", "")};
  HF_TRY(options.tokens, arguments.integer("tokens", options.tokens, 0));
  HF_TRY(options.temperature, arguments.real("temperature", options.temperature, 0.0));
  HF_TRY(options.top_k, arguments.integer("top-k", options.top_k, 0));
  HF_TRY(const std::int64_t seed, arguments.integer("seed", static_cast<std::int64_t>(options.seed), 0));
  options.seed = static_cast<std::uint64_t>(seed);
  return options;
}

// Lets the sampler take and show text.
Result<void> translate(const Tokenizer& tokenizer, std::int64_t vocabulary, SampleOptions& options) {
  HF_TRY_VOID(check_fits(tokenizer, vocabulary));
  options.encode = [&tokenizer](const std::string& prompt) -> Result<std::vector<std::int32_t>> {
    const std::optional<TokenId> between = tokenizer.end_of_text();
    if (prompt.empty() && between) return std::vector{static_cast<std::int32_t>(*between)};
    std::vector<TokenId> ids;
    HF_TRY_VOID(Encoder(tokenizer).encode(prompt.empty() ? "\n" : prompt, ids));
    return std::vector<std::int32_t>(ids.begin(), ids.end());
  };
  options.decode = [&tokenizer](std::int32_t token) {
    return std::string(tokenizer.bytes_of(static_cast<TokenId>(token)));
  };
  return {};
}

Result<void> sample_text(std::vector<std::string> words) {
  Env& env = posix_env();
  HF_TRY(const std::vector<Override> kernels, take_kernel_keys(words));
  HF_TRY(const Arguments arguments, Arguments::parse("sample", words, {"RUN"},
                                                     {"prompt", "tokenizer", "pattern", "tokens",
                                                      "temperature", "top-k", "seed", "device"}));
  HF_TRY(SampleOptions options, read_options(arguments));
  HF_TRY(const std::string device, device_option(arguments, env));
  HF_TRY(Checkpoint checkpoint, open_newest_checkpoint(env, arguments.positional(0)));
  HF_TRY(const std::optional<Tokenizer> tokenizer, tokenizer_option(env, arguments, checkpoint));
  HF_TRY(const std::unique_ptr<InferenceModel> model,
         InferenceModel::load(env, checkpoint,
                              {.device = device, .threads = env.processor_count(), .kernels = kernels}));
  if (tokenizer) HF_TRY_VOID(translate(*tokenizer, model->spec().vocabulary, options));
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
