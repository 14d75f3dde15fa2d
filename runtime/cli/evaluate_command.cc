#include <fmt/core.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "runtime/cli/commands.h"
#include "runtime/cli/common/arguments.h"
#include "runtime/cli/open_checkpoint.h"
#include "runtime/data/source.h"
#include "runtime/data/token_cache.h"
#include "runtime/data/token_file.h"
#include "runtime/inference/file_evaluation.h"
#include "runtime/interop/checkpoint_contents.h"
#include "runtime/text/corpus.h"
#include "runtime/text/tokenizer.h"

namespace holdfast::cli {
namespace {

constexpr const char* evaluate_usage =
    "usage: holdfast evaluate PATH --data FILE [--sequence-length N] [--tokenizer FILE] [--ema] "
    "[--device D] [--kernels.KEY=VALUE ...]\n"
    "\n"
    "PATH is a run directory (its newest whole checkpoint) or one checkpoint. Prints the mean loss per token "
    "(nats) in fp32\n"
    "over the consecutive windows of N tokens of FILE: an llm.c or llmq token shard or a Megatron\n"
    "dataset, known by its magic, or text: the bytes of it, or the tokens where the model has a tokenizer.\n"
    "  --data FILE             the data\n"
    "  --tokenizer FILE        the tokenizer.json, or rank file of tiktoken, that the model was trained "
    "with\n"
    "                          (the one that a run on text sources has kept)\n"
    "  --pattern P             how a rank file cuts text into pieces: gpt2, llama3, qwen2 or a regular "
    "expression\n"
    "  --sequence-length N     tokens in a window (the run's training.sequence_length)\n"
    "  --ema                   the average of the weights in their place, where the run keeps one "
    "(optimizer.ema)\n"
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

// Returns whether a model was trained on the bytes of text. Of an imported one, which has no sources, that can only be
// guessed: special tokens beside the bytes are few, and a tokenizer has thousands.
bool has_bytes(const Config& config, const ModelSpec& spec) {
  constexpr std::int64_t byte_vocabulary = 256, guessed_max = 512;
  if (config.data.sources.empty()) return spec.vocabulary <= guessed_max;
  const bool is_trained_on_bytes = std::ranges::any_of(config.data.sources, [](const SourceConfig& source) {
    return source.format == "text" && !is_tokenized(source);
  });
  return is_trained_on_bytes || spec.vocabulary == byte_vocabulary;
}

// Returns the tokens of a text file, which is one document, as `holdfast tokenize encode` makes them.
Result<std::vector<std::int32_t>> tokens_of_text(Env& env, const Tokenizer& tokenizer,
                                                 const std::string& path) {
  HF_TRY(CorpusReader reader, CorpusReader::open(env, {.paths = {path}}));
  DocumentBatch batch;
  Encoder encoder(tokenizer);
  std::vector<TokenId> ids;
  while (true) {
    HF_TRY(const bool is_there, reader.next(batch));
    if (!is_there) break;
    for (const DocumentBatch::Document& document : batch.documents)
      HF_TRY_VOID(reader.placed(document, encoder.encode(batch.raw(document), ids)));
  }
  return std::vector<std::int32_t>(ids.begin(), ids.end());
}

Result<double> loss_of(Env& env, InferenceModel& model, const std::optional<Tokenizer>& tokenizer,
                       const std::string& path) {
  HF_TRY(const std::string format, detect_format(env, path));
  if (format != "text") return evaluate_file(env, model, path);
  if (!tokenizer.has_value()) {
    if (has_bytes(model.config(), model.spec())) return evaluate_file(env, model, path);
    return fail(ExitCode::config,
                "{} is text, and the model has {} tokens, none of which is known to be a byte: give the "
                "tokenizer that it was trained with by --tokenizer FILE, or a file of its tokens",
                path, model.spec().vocabulary);
  }
  if (path.ends_with(".jsonl"))
    return fail(ExitCode::config,
                "{} is JSONL, which evaluate does not take apart: give the tokens that holdfast tokenize "
                "encode --format jsonl makes of it",
                path);
  HF_TRY_VOID(check_fits(*tokenizer, model.spec().vocabulary));
  HF_TRY(std::vector<std::int32_t> tokens, tokens_of_text(env, *tokenizer, path));
  if (tokens.size() < 2)
    return fail(ExitCode::data, "{} holds {} token{}; even the shortest window needs 2; use a larger file",
                path, tokens.size(), tokens.size() == 1 ? "" : "s");
  return evaluate_tokens(model, TokenSource::of(tokens_in_memory(std::move(tokens), path)));
}

Result<void> evaluate(std::vector<std::string> words) {
  Env& env = posix_env();
  HF_TRY(const std::vector<Override> kernels, take_kernel_keys(words));
  HF_TRY(const Arguments arguments,
         Arguments::parse("evaluate", words, {"PATH"},
                          {"data", "sequence-length", "device", "tokenizer", "pattern"}, {"ema"}));
  if (!arguments.has("data")) {
    return fail(ExitCode::config, "evaluate needs --data FILE, the data to compute the loss of\n{}",
                evaluate_usage);
  }
  HF_TRY(const std::string device, device_option(arguments, env));
  HF_TRY(Checkpoint checkpoint, open_newest_checkpoint(env, arguments.positional(0)));
  HF_TRY(const std::int64_t length, sequence_length_of(arguments, env, checkpoint));
  HF_TRY(const std::optional<Tokenizer> tokenizer, tokenizer_option(env, arguments, checkpoint));
  HF_TRY(const std::unique_ptr<InferenceModel> model,
         InferenceModel::load(env, checkpoint,
                              {.device = device,
                               .threads = env.processor_count(),
                               .sequence_length = length,
                               .batch = std::max<std::int64_t>(1, tokens_at_once / length),
                               .averaged = arguments.has("ema"),
                               .kernels = kernels}));
  HF_TRY(const double loss, loss_of(env, *model, tokenizer, arguments.text("data", "")));
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
