// A tokenizer.json or a rank file of tiktoken: refused with a sentence, or a tokenizer by which every text comes back.
#include "runtime/text/tokenizer_file.h"
#include "tests/fuzz/fuzz_env.h"

namespace holdfast::fuzz {
namespace {

bool run_tokenizer(Input input) {
  FuzzEnv env;
  env.put("/tokenizer", input);
  const bool is_json = !input.empty() && (input.front() == std::byte{'{'} || input.front() == std::byte{'['});
  const Result<Tokenizer> tokenizer = read_tokenizer(env, "/tokenizer", is_json ? "" : "qwen2");
  if (!tokenizer.ok()) {
    require_sentence(tokenizer.error(), {ExitCode::data});
    return false;
  }
  const std::string bytes = text_of(input.first(std::min<std::size_t>(input.size(), 2000)));
  std::string storage, composed_storage;
  const std::string_view text = repaired_utf8(bytes, storage);
  Encoder encoder(*tokenizer);
  std::vector<TokenId> ids, again;
  if (const Result<void> outcome = encoder.encode(bytes, ids); !outcome.ok()) {
    require_sentence(outcome.error(), {ExitCode::data});
    return true;
  }
  require(encoder.encode(bytes, again).ok() && ids == again, "the same text has other tokens a second time");
  const std::string decoded = tokenizer->decode(ids);
  require(decoded == text || composed(decoded, storage) == composed(text, composed_storage),
          "a text does not come back");
  return true;
}

TokenizerParts seed_parts() {
  TokenizerParts parts;
  parts.pattern = pattern_of("llama3");
  for (const std::uint8_t byte : bytes_by_character()) parts.tokens.emplace_back(1, static_cast<char>(byte));
  parts.tokens.insert(parts.tokens.end(), {"<e>", "in", "\"t"});
  parts.merges = {{'i' - '!', 'n' - '!', 0, 257}, {'"' - '!', 't' - '!', 1, 258}};
  parts.added = {{.content = "<e>", .id = 256}};
  return parts;
}

std::vector<Seed> tokenizer_seeds() {
  TokenizerParts composing = seed_parts();
  composing.pattern = pattern_of("gpt2");
  composing.composes = true;
  constexpr std::string_view digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string ranks;
  for (std::size_t byte = 0; byte < 256; ++byte)
    ranks += fmt::format("{}{}== {}\n", digits[byte / 4], digits[byte % 4 * 16], byte);
  return {{"split", bytes_of_text(tokenizer_json(seed_parts()))},
          {"composing", bytes_of_text(tokenizer_json(composing))},
          {"ranks", bytes_of_text(ranks + "YWI= 256\n")}};
}

constexpr std::string_view tokenizer_words[] = {
    "null",     "true", "[",   "{",        "\"NFC\"", "\"normalizer\":{\"type\":\"NFC\"},",
    "16777215", "-1",   "\\s", "\\p{Han}", "(?!",     "\u1100"};

}  // namespace

extern const Target tokenizer_target;
const Target tokenizer_target{.name = "tokenizer",
                              .run = run_tokenizer,
                              .seeds = tokenizer_seeds,
                              .memory_per_byte = 512,
                              .memory_beside = 16 << 20,
                              .words = tokenizer_words};

}  // namespace holdfast::fuzz
