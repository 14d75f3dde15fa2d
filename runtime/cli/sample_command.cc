#include <fmt/core.h>

#include <algorithm>
#include <cstdio>
#include <optional>
#include <string_view>

#include "runtime/cli/commands.h"
#include "runtime/cli/common/arguments.h"
#include "runtime/cli/open_checkpoint.h"
#include "runtime/inference/sampler.h"
#include "runtime/os/console.h"

namespace holdfast::cli {
namespace {

// Texts that are made at the same time: each takes memory for the keys and values of its tokens.
constexpr std::size_t side_by_side = 8;

constexpr const char* sample_usage =
    "usage: holdfast sample RUN [--prompt TEXT | --prompts FILE] [--tokenizer FILE] [--tokens N] "
    "[--stop TEXT ...]\n"
    "       [--temperature X] [--top-k K] [--top-p P] [--seed S] [--ema] [--device D]\n"
    "       [--kernels.KEY=VALUE ...]\n"
    "\n"
    "RUN is a run directory (its newest whole checkpoint) or one checkpoint. Prints the prompt and what the\n"
    "model goes on with while it is made, whole characters at a time, and then says on stderr how many "
    "tokens\n"
    "a second were made. A model of bytes takes text, and so does one with a tokenizer; any other takes and\n"
    "prints token ids. A text that has filled the model's training.sequence_length tokens goes on from the\n"
    "last three quarters of them.\n"
    "  --prompt TEXT      how the text starts; empty = a new line, or the tokenizer's token between "
    "documents\n"
    "  --prompts FILE     a prompt on each line but empty ones. They are continued side by side and printed "
    "in\n"
    "                     their order, each after a line ==> N <==; each has random numbers of its own\n"
    "  --tokenizer FILE   the tokenizer.json, or rank file of tiktoken, that the model was trained with "
    "(the\n"
    "                     one that a run on text sources has kept)\n"
    "  --pattern P        how a rank file cuts text into pieces: gpt2, llama3, qwen2 or a regular "
    "expression\n"
    "  --tokens N         tokens to make for each prompt, at most (400)\n"
    "  --stop TEXT        a text ends before TEXT; several are given by as many --stop. With a tokenizer,\n"
    "                     --stop '<|endoftext|>' ends it with its document\n"
    "  --temperature X    0 = always the likeliest token, 1 = as likely as the model says (0.8)\n"
    "  --top-k K          choose among the K likeliest tokens, 0 = all (40)\n"
    "  --top-p P          of these, choose among the likeliest that are together as likely as P, 1 = all "
    "(1)\n"
    "  --seed S           another seed, another text; the same seed and kind of device, the same text (1)\n"
    "  --ema              the average of the weights in their place, where the run keeps one "
    "(optimizer.ema)\n"
    "  --device D         auto, cpu or cuda; auto takes a GPU that can be used (auto)\n"
    "  --kernels.KEY=V    in place of the run's [kernels]; its plug-ins are loaded where --kernels.plugins\n"
    "                     names them\n";

// Returns the prompts of a file.
Result<std::vector<std::string>> read_prompts(Env& env, const std::string& path) {
  HF_TRY(const std::string text, env.read_text(path));
  std::vector<std::string> prompts;
  for (std::string_view rest = text; !rest.empty();) {
    const std::size_t end = std::min(rest.find('\n'), rest.size());
    std::string_view line = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (!line.empty()) prompts.emplace_back(line);
  }
  if (!prompts.empty()) return prompts;
  return fail(ExitCode::config, "{} holds no prompt: write one on each line, or give --prompt TEXT", path);
}

Result<SampleOptions> read_options(Env& env, const Arguments& arguments) {
  SampleOptions options{.prompts = {arguments.text("prompt", "")}, .stops = arguments.texts("stop")};
  if (arguments.has("prompts")) {
    if (arguments.has("prompt"))
      return fail(ExitCode::config, "--prompt and --prompts are both given: give one of them");
    HF_TRY(options.prompts, read_prompts(env, arguments.text("prompts", "")));
  }
  HF_TRY(options.tokens, arguments.integer("tokens", options.tokens, 1));
  HF_TRY(options.top_p, arguments.real("top-p", options.top_p, 0.0));
  HF_TRY(options.temperature, arguments.real("temperature", options.temperature, 0.0));
  HF_TRY(options.top_k, arguments.integer("top-k", options.top_k, 0));
  HF_TRY(const std::int64_t seed, arguments.integer("seed", static_cast<std::int64_t>(options.seed), 0));
  options.seed = static_cast<std::uint64_t>(seed);
  HF_TRY_VOID(check_sample_options(options));
  return options;
}

// Prints texts on stdout, each after a line with its number where there are several.
class TextPrinter {
 public:
  explicit TextPrinter(std::size_t prompts) : prompts_(prompts) {}
  void show(std::size_t prompt, std::string_view text) {
    if (prompt == begun_) {
      end_line();
      ++begun_;
      if (prompts_ > 1) write(fmt::format("==> {} <==\n", begun_));
    }
    write(text);
    std::fflush(stdout);
  }
  void end_line() const {
    if (begun_ > 0) write("\n");
  }

 private:
  // Output that is lost is told of at the end.
  static void write(std::string_view text) { std::fwrite(text.data(), 1, text.size(), stdout); }

  std::size_t prompts_, begun_ = 0;
};

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
                                                     {"prompt", "prompts", "tokenizer", "pattern", "tokens",
                                                      "temperature", "top-k", "top-p", "seed", "device"},
                                                     {"ema"}, {"stop"}));
  HF_TRY(SampleOptions options, read_options(env, arguments));
  HF_TRY(const std::string device, device_option(arguments, env));
  HF_TRY(Checkpoint checkpoint, open_newest_checkpoint(env, arguments.positional(0)));
  HF_TRY(const std::optional<Tokenizer> tokenizer, tokenizer_option(env, arguments, checkpoint));
  HF_TRY(const std::unique_ptr<InferenceModel> model,
         InferenceModel::load(
             env, checkpoint,
             {.device = device,
              .threads = env.processor_count(),
              .cached_sequences = static_cast<int>(std::min(options.prompts.size(), side_by_side)),
              .averaged = arguments.has("ema"),
              .kernels = kernels}));
  if (tokenizer) HF_TRY_VOID(translate(*tokenizer, model->spec().vocabulary, options));
  TextPrinter printer(options.prompts.size());
  const std::int64_t begin_ns = env.monotonic_ns();
  const Result<std::int64_t> made = sample(
      *model, options, [&printer](std::size_t prompt, std::string_view text) { printer.show(prompt, text); });
  const double seconds = static_cast<double>(env.monotonic_ns() - begin_ns) * 1e-9;
  printer.end_line();
  if (!made.ok()) return made.error();
  HF_TRY_VOID(finish_output());
  print_message("{} tokens in {:.2f} s, {:.1f} tokens/s", *made, seconds,
                static_cast<double>(*made) / std::max(seconds, 1e-9));
  return {};
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
