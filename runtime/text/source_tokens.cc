#include "runtime/text/source_tokens.h"

#include <fmt/core.h>

#include <algorithm>

#include "runtime/config/presets.h"
#include "runtime/core/digest.h"
#include "runtime/core/record.h"
#include "runtime/os/errno_reason.h"
#include "runtime/text/tokenizer_file.h"

namespace holdfast::text {
namespace {

std::string lock_of(const SourceTokens& tokens) {
  return tokens.directory + ".lock";
}
std::string partial_of(const SourceTokens& tokens) {
  return tokens.directory + ".partial";
}

// Tokenizers of one run are the same file, or its model would take the tokens of one for those of another.
Result<void> check_same_tokenizer(Env& env, const std::vector<SourceTokens>& all) {
  if (all.empty()) return {};
  const auto digest_of_file = [&](const SourceTokens& one) -> Result<Digest> {
    HF_TRY(const std::string text, env.read_text(one.source.tokenizer));
    return digest_of(text);
  };
  HF_TRY(const Digest first, digest_of_file(all.front()));
  for (const SourceTokens& one : all) {
    if (one.source.pattern != all.front().source.pattern) {
      return fail(
          ExitCode::config,
          "{} has pattern = \"{}\" and {} has \"{}\": the tokenizer of a model cuts all text alike; give "
          "all sources the same",
          all.front().source.path, all.front().source.pattern, one.source.path, one.source.pattern);
    }
    if (one.source.tokenizer == all.front().source.tokenizer) continue;
    HF_TRY(const Digest other, digest_of_file(one));
    if (other == first) continue;
    return fail(
        ExitCode::config,
        "{} has the tokenizer {} and {} has {}, which are not the same: a model has one tokenizer; give all "
        "sources that one",
        all.front().source.path, all.front().source.tokenizer, one.source.path, one.source.tokenizer);
  }
  return {};
}

Result<void> check_vocabulary(const Config& config, const SourceTokens& tokens) {
  const ModelPreset* preset = config.model.vocabulary == 0 ? find_preset(config.model.preset) : nullptr;
  const std::int64_t vocabulary = preset == nullptr ? config.model.vocabulary : preset->model.vocabulary;
  if (vocabulary == 0 || tokens.vocabulary <= vocabulary) return {};
  return fail(ExitCode::config,
              "the tokenizer {} of {} has {} tokens, but {}model.vocabulary = {}; set model.vocabulary to {} "
              "or more, "
              "{}or give the tokenizer of this model",
              tokens.source.tokenizer, tokens.source.path, tokens.vocabulary,
              preset == nullptr ? "" : fmt::format("model.preset = \"{}\" has ", preset->name), vocabulary,
              tokens.vocabulary, preset == nullptr ? "leave it out, " : "");
}

std::vector<SourceConfig> tokenized_sources(const Config& config) {
  std::vector<SourceConfig> sources = config.data.sources;
  if (config.evaluation.every_steps > 0)
    sources.insert(sources.end(), config.evaluation.sources.begin(), config.evaluation.sources.end());
  std::erase_if(sources, [](const SourceConfig& source) { return !is_tokenized(source); });
  return sources;
}

Result<Tokenizer> tokenizer_of(Env& env, const SourceConfig& source) {
  Result<Tokenizer> tokenizer = read_tokenizer(env, source.tokenizer, source.pattern, "pattern = ");
  if (!tokenizer.ok()) {
    return with_cause(tokenizer.error(), fail(tokenizer.error().code, "the tokenizer of the source {}: {}",
                                              source.path, tokenizer.error().message));
  }
  return tokenizer;
}

std::string without_end(const SourceConfig& source) {
  return fmt::format("leave append_eos out of the source {}, or give a tokenizer that has one", source.path);
}

Result<SourceTokens> find_one(Env& env, const SourceConfig& source, const std::string& cache) {
  if (const Result<void> named = expect_no_name(env, source.tokenizer); !named.ok())
    return with_cause(named.error(), fail(named.error().code, "the tokenizer of the source {}: {}",
                                          source.path, named.error().message));
  SourceTokens tokens{.source = source, .directory = {}};
  HF_TRY(tokens.directory, token_directory(env, source, cache));
  HF_TRY(const FileStatus text, env.status(source.path));
  tokens.text_bytes = text.bytes;
  HF_TRY(tokens.made, find_tokens(env, tokens.directory));
  if (tokens.made.has_value()) {
    tokens.vocabulary = tokens.made->vocabulary;
    return tokens;
  }
  HF_TRY(const Tokenizer tokenizer, tokenizer_of(env, source));
  tokens.vocabulary = tokenizer.vocabulary();
  if (source.append_eos) HF_TRY_VOID(outcome_of(end_of_documents(tokenizer, "", without_end(source))));
  return tokens;
}

Result<std::unique_ptr<FileLock>> take_lock(Env& env, const SourceTokens& tokens, const MakeTerms& terms) {
  constexpr std::int64_t pause_us = 50'000;
  while (true) {
    Result<std::unique_ptr<FileLock>> lock = env.lock(lock_of(tokens), "", 0);
    if (lock.ok()) return lock;
    if (lock.error().code != ExitCode::communication) return with_code(ExitCode::data, lock.error());
    if (terms.stops()) return fail(ExitCode::communication, "it was stopped");
    terms.waits();
    env.sleep_us(pause_us);
  }
}

// Tokenizes into the partial directory and gives it its name.
Result<void> make_locked(Env& env, const SourceTokens& tokens, const std::string& cache,
                         const MakeTerms& terms) {
  const SourceConfig& source = tokens.source;
  const std::string partial = partial_of(tokens);
  HF_TRY_VOID(env.remove_tree(partial));           // of one that was killed
  HF_TRY_VOID(env.remove_tree(tokens.directory));  // one without a record
  HF_TRY_VOID(env.make_directories(partial));
  HF_TRY(const Tokenizer tokenizer, tokenizer_of(env, source));
  TokenizeOptions options;
  options.input = {.paths = {source.path},
                   .is_jsonl = source.format == "jsonl",
                   .field = source.column,
                   .field_option = "column"};
  options.prefix = tokens_prefix(partial);
  if (source.append_eos) {
    HF_TRY(options.append, end_of_documents(tokenizer, "", without_end(source)));
  }
  options.threads = terms.threads;
  options.progress = terms.progress;
  options.stops = terms.stops;
  terms.progress(0, tokens.text_bytes);
  HF_TRY(const TokenizeTotals totals, tokenize_files(env, tokenizer, options));
  HF_TRY(const std::string now, token_directory(env, source, cache));
  if (now != tokens.directory) {
    return fail(ExitCode::data,
                "{} or {} was written while it was tokenized; start again when nothing writes to it any more",
                source.path, source.tokenizer);
  }
  const TextTokens made{.text = source.path,
                        .tokenizer = source.tokenizer,
                        .text_bytes = tokens.text_bytes,
                        .vocabulary = tokenizer.vocabulary(),
                        .largest_token = totals.largest_token,
                        .documents = totals.documents,
                        .empty_documents = totals.empty_documents,
                        .tokens = totals.tokens,
                        .broken_bytes = totals.broken_bytes};
  HF_TRY_VOID(env.replace_text(tokens_record(partial), record_to_text(made)));
  HF_TRY_VOID(env.rename(partial, tokens.directory));
  return env.sync_directory(cache);
}

}  // namespace

std::string text_of(const TextTokens& tokens) {
  std::string text = fmt::format("{} document{}, {} tokens, the largest {} of 0 to {}", tokens.documents,
                                 tokens.documents == 1 ? "" : "s", tokens.tokens, tokens.largest_token,
                                 tokens.vocabulary - 1);
  if (tokens.empty_documents > 0)
    text += fmt::format("; {} empty documents left out", tokens.empty_documents);
  if (tokens.broken_bytes > 0)
    text += fmt::format("; {} bytes are not UTF-8, each broken character became U+FFFD", tokens.broken_bytes);
  return text;
}

bool has_text_to_tokenize(const Config& config) {
  return !tokenized_sources(config).empty();
}

Result<std::vector<SourceTokens>> find_source_tokens(Env& env, const Config& config) {
  std::vector<SourceTokens> all;
  for (const SourceConfig& source : tokenized_sources(config)) {
    HF_TRY(SourceTokens tokens, find_one(env, source, token_cache_of(config)));
    HF_TRY_VOID(check_vocabulary(config, tokens));
    if (std::ranges::find(all, tokens.directory, &SourceTokens::directory) == all.end())
      all.push_back(std::move(tokens));
  }
  HF_TRY_VOID(check_same_tokenizer(env, all));
  return all;
}

Result<void> make_source_tokens(Env& env, const SourceTokens& tokens, const MakeTerms& terms) {
  const std::string cache = tokens.directory.substr(0, tokens.directory.rfind('/'));
  const Result<void> there = env.make_directories(cache);
  if (!there.ok()) return with_code(ExitCode::data, there.error());
  HF_TRY(const std::unique_ptr<FileLock> lock, take_lock(env, tokens, terms));
  HF_TRY(const std::optional<TextTokens> made, find_tokens(env, tokens.directory));
  Result<void> outcome;
  if (!made.has_value()) {
    outcome = make_locked(env, tokens, cache, terms);
    if (!outcome.ok())
      static_cast<void>(env.remove_tree(partial_of(tokens)).ok());  // the first error is reported
    if (!outcome.ok() && outcome.error().code == ExitCode::checkpoint)
      outcome = with_code(ExitCode::data, outcome.error());
    // Another attempt would tokenize as much again before it meets the same.
    if (!outcome.ok() && is_full_disk(outcome.error().reason))
      outcome = with_reach(Reach::run, outcome.error());
  }
  static_cast<void>(env.remove(lock_of(tokens)).ok());  // one that stays is taken by the next
  return outcome;
}

Result<void> keep_tokenizer(Env& env, const Config& config, const std::string& run_directory) {
  const auto source = std::ranges::find_if(config.data.sources, is_tokenized);
  if (source == config.data.sources.end() || !source->pattern.empty()) return {};
  HF_TRY(const std::string text, env.read_text(source->tokenizer));
  if (env.text_or_empty(kept_tokenizer(run_directory)) == text) return {};
  return env.replace_text(kept_tokenizer(run_directory), text);
}

Result<TokenId> end_of_documents(const Tokenizer& tokenizer, const std::string& name,
                                 const std::string& advice) {
  const std::optional<TokenId> id = name.empty() ? tokenizer.end_of_text() : tokenizer.added(name);
  if (id) return *id;
  if (name.empty())
    return fail(ExitCode::config,
                "the tokenizer has none of the special tokens <|endoftext|>, <|end_of_text|> and </s>; {}",
                advice);
  std::string known;
  for (const AddedToken& token : tokenizer.added_tokens())
    known += (known.empty() ? "" : " ") + token.content;
  return fail(ExitCode::config, "the tokenizer has no special token {}; it has {}", name,
              known.empty() ? "none" : known.substr(0, 500));
}

}  // namespace holdfast::text
