// holdfast tokenize: text files become files of tokens that a run reads, and a tokenizer for them.
#include <fmt/core.h>

#include <algorithm>
#include <array>

#include "runtime/cli/commands.h"
#include "runtime/cli/common/arguments.h"
#include "runtime/core/text.h"
#include "runtime/core/units.h"
#include "runtime/data/token_file.h"
#include "runtime/os/console.h"
#include "runtime/text/source_tokens.h"
#include "runtime/text/tokenize.h"
#include "runtime/text/tokenizer_file.h"

namespace holdfast::cli {
namespace {

constexpr const char* tokenize_usage =
    "usage: holdfast tokenize encode TOKENIZER INPUT... --out PREFIX [--format text|jsonl] [--field NAME]\n"
    "                [--append-eos] [--eos TOKEN] [--held-out SHARE] [--pattern P] [--dedupe] [--threads N]\n"
    "       holdfast tokenize train INPUT... --vocabulary N --out FILE [--special TOKENS] [--format "
    "text|jsonl]\n"
    "                [--field NAME] [--pattern P] [--threads N]\n"
    "\n"
    "encode writes the documents of text files as the tokens of PREFIX.bin and PREFIX.idx, a dataset that "
    "data.sources takes "
    "with\n"
    "format = \"megatron\", and prints the lines of a config. TOKENIZER is a tokenizer.json of Hugging Face "
    "(byte-level BPE, as "
    "of\n"
    "GPT-2, Llama 3 and Qwen 2.5) or a rank file of tiktoken. train makes a tokenizer.json of text files.\n"
    "  --out NAME         what is written; it must not exist yet\n"
    "  --format F         text: a file is one document; jsonl: a line is one (text)\n"
    "  --field NAME       of jsonl, the field that holds the text (text)\n"
    "  --append-eos       end each document with the token for that: <|endoftext|>, <|end_of_text|> or </s>\n"
    "  --eos TOKEN        another one; implies --append-eos\n"
    "  --held-out SHARE   write this share of the documents to PREFIX-held-out instead, for evaluation (0)\n"
    "  --dedupe           leave out documents whose text was there before, byte for byte\n"
    "  --vocabulary N     tokens to make, the 256 bytes and the special ones among them\n"
    "  --special TOKENS   tokens that no text is made of, with commas between them (<|endoftext|>)\n"
    "  --pattern P        how text is cut into pieces: gpt2, llama3, qwen2 or a regular expression (train: "
    "llama3; encode needs\n"
    "                     it for a rank file alone)\n"
    "  --threads N        threads that work (one for each processor); the result is the same\n";

Result<CorpusInput> read_input(const Arguments& arguments, std::vector<std::string> paths) {
  HF_TRY(const std::string format, arguments.choice("format", {"text", "jsonl"}));
  if (format == "text" && arguments.has("field"))
    return fail(ExitCode::config, "--field is for --format jsonl; a text file has no fields");
  return CorpusInput{
      .paths = std::move(paths), .is_jsonl = format == "jsonl", .field = arguments.text("field", "text")};
}

Result<int> read_threads(const Arguments& arguments, Env& env) {
  constexpr std::int64_t threads_most = 1024;
  HF_TRY(const std::int64_t threads, arguments.integer("threads", env.processor_count(), 1));
  return static_cast<int>(std::min(threads, threads_most));
}

// Prints how far the reading has come, at most every two seconds.
CorpusProgress progress_lines(Env& env, std::string what) {
  constexpr std::int64_t pause_ns = 2'000'000'000;
  const std::int64_t begin = env.monotonic_ns();
  return [&env, what = std::move(what), begin, next = begin + pause_ns](std::uint64_t done,
                                                                        std::uint64_t all) mutable {
    const std::int64_t now = env.monotonic_ns();
    if (now < next) return;
    next = now + pause_ns;
    const double seconds = static_cast<double>(now - begin) * 1e-9;
    print_message("{} {} of {} ({:.0f} %), {}/s", what, format_bytes(done), format_bytes(all),
                  all == 0 ? 100.0 : 100.0 * static_cast<double>(done) / static_cast<double>(all),
                  format_bytes(static_cast<std::uint64_t>(static_cast<double>(done) / seconds)));
  };
}

Result<std::optional<TokenId>> read_eos(const Arguments& arguments, const Tokenizer& tokenizer) {
  if (!arguments.has("eos") && !arguments.has("append-eos")) return std::optional<TokenId>();
  HF_TRY(const TokenId id, end_of_documents(tokenizer, arguments.text("eos", ""),
                                            "say which one ends a document by --eos TOKEN"));
  return std::optional(id);
}

void print_totals(const TokenizeTotals& totals, const Tokenizer& tokenizer, const TokenizeOptions& options) {
  fmt::print("documents        {}", totals.documents);
  if (totals.empty_documents > 0) fmt::print(", {} empty ones left out", totals.empty_documents);
  fmt::print("\ntokens           {}\nbytes per token  {:.3f}\nlargest token    {} of {}\n", totals.tokens,
             static_cast<double>(totals.text_bytes) / static_cast<double>(totals.tokens),
             totals.largest_token, tokenizer.vocabulary() - 1);
  if (options.dedupe)
    fmt::print("duplicates       {} documents, {} bytes, left out\n", totals.duplicate_documents,
               totals.duplicate_bytes);
  if (totals.broken_bytes > 0)
    fmt::print("not UTF-8        {} bytes, each broken character replaced by U+FFFD\n", totals.broken_bytes);
  if (options.held_out > 0.0)
    fmt::print("held out         {} documents, {} tokens\n", totals.held_out_documents,
               totals.held_out_tokens);
  fmt::print(
      "\n[model]\nvocabulary = {}\n\n[data]\nsources = [{{ path = \"{}.bin\", format = \"megatron\" }}]\n",
      tokenizer.vocabulary(), options.prefix);
  if (options.held_out > 0.0)
    fmt::print("\n[evaluation]\nsources = [{{ path = \"{}.bin\", format = \"megatron\" }}]\n",
               held_out_name(options.prefix));
}

Result<void> encode_files(const std::vector<std::string>& words) {
  Env& env = posix_env();
  HF_TRY(const Arguments arguments,
         Arguments::parse("tokenize encode", words, {"TOKENIZER", "INPUT..."},
                          {"out", "format", "field", "eos", "held-out", "pattern", "threads"},
                          {"append-eos", "dedupe"}));
  TokenizeOptions options;
  HF_TRY(options.input, read_input(arguments, arguments.positional_from(1)));
  options.prefix = arguments.text("out", "");
  if (options.prefix.empty())
    return fail(ExitCode::config, "tokenize encode needs --out PREFIX: it writes PREFIX.bin and PREFIX.idx");
  if (options.prefix.ends_with('/'))
    return fail(ExitCode::config, "--out {} is a directory, expected PREFIX, as in {}tokens", options.prefix,
                options.prefix);
  HF_TRY(options.held_out, arguments.real("held-out", 0.0, 0.0));
  if (options.held_out >= 1.0)
    return fail(ExitCode::config, "--held-out must be a share below 1, got {}; 0.01 is one document in 100",
                options.held_out);
  HF_TRY(options.threads, read_threads(arguments, env));
  HF_TRY(const Tokenizer tokenizer,
         read_tokenizer(env, arguments.positional(0), arguments.text("pattern", "")));
  HF_TRY(options.append, read_eos(arguments, tokenizer));
  options.dedupe = arguments.has("dedupe");
  options.progress = progress_lines(env, "tokenized");
  HF_TRY(const TokenizeTotals totals, tokenize_files(env, tokenizer, options));
  print_totals(totals, tokenizer, options);
  return finish_output();
}

Result<BpeTraining> read_training(const Arguments& arguments) {
  BpeTraining training;
  if (!arguments.has("vocabulary"))
    return fail(ExitCode::config,
                "tokenize train needs --vocabulary N, how many tokens to make; 32000 is usual");
  training.special = split_list(arguments.text("special", "<|endoftext|>"));
  const auto least = static_cast<std::int64_t>(256 + training.special.size());
  HF_TRY(training.vocabulary, arguments.integer("vocabulary", 0, least));
  constexpr std::int64_t most = std::int64_t{1} << 24;
  if (training.vocabulary > most)
    return fail(ExitCode::config, "--vocabulary must be {} at most, got {}", most, training.vocabulary);
  for (std::size_t i = 0; i < training.special.size(); ++i) {
    if (std::ranges::count(training.special, training.special[i]) > 1)
      return fail(ExitCode::config, "--special names {} twice; name it once", training.special[i]);
  }
  training.pattern = pattern_of(arguments.text("pattern", "llama3"));
  return training;
}

Result<void> train_tokenizer(const std::vector<std::string>& words) {
  Env& env = posix_env();
  HF_TRY(const Arguments arguments,
         Arguments::parse("tokenize train", words, {"INPUT..."},
                          {"out", "vocabulary", "special", "format", "field", "pattern", "threads"}));
  HF_TRY(const CorpusInput input, read_input(arguments, arguments.positional_from(0)));
  const std::string out = arguments.text("out", "");
  if (out.empty())
    return fail(ExitCode::config, "tokenize train needs --out FILE, the tokenizer.json to write");
  HF_TRY(const FileStatus status, env.status(out));
  if (status.exists) return fail(ExitCode::config, "{} exists already; remove it, or give another name", out);
  HF_TRY(BpeTraining training, read_training(arguments));
  HF_TRY(const SplitPattern pattern, SplitPattern::compile(training.pattern));
  HF_TRY(const int threads, read_threads(arguments, env));
  HF_TRY(const auto pieces, count_pieces(env, input, pattern, threads, progress_lines(env, "read")));
  if (pieces.empty()) return fail(ExitCode::data, "there is no text: every document is empty");
  training.progress = [&](std::size_t tokens) {
    if (tokens % 4096 == 0) print_message("made {} of {} tokens", tokens, training.vocabulary);
  };
  const TokenizerParts parts = train_bpe(pieces, training);
  const Result<void> written = env.replace_text(out, tokenizer_json(parts));
  if (!written.ok()) return with_code(ExitCode::data, written.error());
  fmt::print("pieces           {}\ntokens           {}", pieces.size(), parts.tokens.size());
  if (static_cast<std::int64_t>(parts.tokens.size()) < training.vocabulary)
    fmt::print(", not {}: the text has no more pairs", training.vocabulary);
  fmt::print("\nwrote            {}\n", out);
  return finish_output();
}

Result<void> tokenize(const std::vector<std::string>& words) {
  const std::string what = words.empty() ? "" : words.front();
  if (what == "encode") return encode_files({words.begin() + 1, words.end()});
  if (what == "train") return train_tokenizer({words.begin() + 1, words.end()});
  constexpr std::array<std::string_view, 2> known = {"encode", "train"};
  const std::string near = closest(what, known);
  return fail(ExitCode::config, "tokenize needs encode or train, got {}{}\n{}",
              what.empty() ? "nothing" : what, near.empty() ? "" : fmt::format(", did you mean {}?", near),
              tokenize_usage);
}

}  // namespace

int run_tokenize_command(const std::vector<std::string>& arguments) {
  if (wants_help(arguments)) {
    fmt::print("{}", tokenize_usage);
    return 0;
  }
  const Result<void> outcome = tokenize(arguments);
  return outcome.ok() ? 0 : complain(outcome.error());
}

}  // namespace holdfast::cli
