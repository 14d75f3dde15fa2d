#include "runtime/data/token_cache.h"

#include "runtime/core/digest.h"
#include "runtime/core/record.h"

namespace holdfast::data {
namespace {

// Goes up when other tokens are made of the same text, tokenizer and options, or are kept in another way.
constexpr std::uint64_t cache_version = 1;

Result<void> digest_path(Env& env, const std::string& path, DigestStream& stream) {
  HF_TRY(const std::unique_ptr<File> file, open_data_file(env, path));
  return digest_file(*file, stream);
}

}  // namespace

std::string token_cache_of(const Config& config) {
  if (!config.data.cache.empty()) return config.data.cache;
  std::string run = config.run.directory;
  while (run.size() > 1 && run.ends_with('/')) run.pop_back();
  const std::size_t slash = run.rfind('/');
  return slash == std::string::npos ? "token-cache" : run.substr(0, slash + 1) + "token-cache";
}

Result<std::string> token_directory(Env& env, const SourceConfig& source, const std::string& cache) {
  DigestStream stream;
  stream.add(cache_version);
  const bool is_jsonl = source.format == "jsonl";
  for (const std::string& option : {source.format, source.pattern, is_jsonl ? source.column : ""}) {
    stream.add(std::uint64_t{option.size()});
    stream.add(option);
  }
  stream.add(std::uint64_t{source.append_eos ? 1U : 0U});
  const Result<void> tokenizer = digest_path(env, source.tokenizer, stream);
  if (!tokenizer.ok()) {
    return with_cause(tokenizer.error(), fail(ExitCode::data, "the tokenizer of the source {}: {}",
                                              source.path, tokenizer.error().message));
  }
  HF_TRY_VOID(digest_path(env, source.path, stream));
  HF_TRY(const FileStatus text, env.status(source.path));
  if (text.bytes > whole_digest_bytes) stream.add(static_cast<std::uint64_t>(text.modified_ns));
  return cache + "/" + to_hex(stream.finish());
}

std::string tokens_prefix(const std::string& directory) {
  return directory + "/tokens";
}

std::string tokens_record(const std::string& directory) {
  return directory + "/tokens.json";
}

Result<std::optional<TextTokens>> find_tokens(Env& env, const std::string& directory) {
  HF_TRY(const FileStatus status, env.status(tokens_record(directory)));
  if (!status.exists) return std::optional<TextTokens>();
  HF_TRY(const std::string text, env.read_text(tokens_record(directory)));
  Result<TextTokens> tokens = record_from_text<TextTokens>(text);
  if (!tokens.ok() || tokens->vocabulary < 1) return std::optional<TextTokens>();
  return std::optional(std::move(tokens).value());
}

Result<TokenFile> open_tokenized(Env& env, const SourceConfig& source, const std::string& cache,
                                 bool with_documents) {
  HF_TRY(const std::string directory, token_directory(env, source, cache));
  HF_TRY(const std::optional<TextTokens> made, find_tokens(env, directory));
  if (!made.has_value()) {
    return fail(ExitCode::data,
                "{} has no tokens of {} yet, which the start of a run makes in {}; start the run, or name "
                "the cache that "
                "has them with data.cache",
                source.path, source.tokenizer, directory);
  }
  Result<TokenFile> tokens = open_megatron(env, tokens_prefix(directory), with_documents);
  if (!tokens.ok()) {
    return with_cause(tokens.error(),
                      fail(ExitCode::data, "{} (remove {}, and the next start makes the tokens again)",
                           tokens.error().message, directory));
  }
  tokens->vocabulary_of_format = made->vocabulary;
  tokens->vocabulary_needed = made->vocabulary;
  return tokens;
}

}  // namespace holdfast::data
