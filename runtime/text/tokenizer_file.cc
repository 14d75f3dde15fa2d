#include "runtime/text/tokenizer_file.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <unordered_map>

#include "runtime/core/json.h"
#include "runtime/os/foreign_text.h"

namespace holdfast::text {
namespace {

constexpr std::uint64_t file_bytes_most = std::uint64_t{256} << 20;

// Returns the largest id that a file may name: each token takes some of its bytes.
TokenId largest_token(std::size_t file_bytes) {
  constexpr std::size_t most = (std::size_t{1} << 24) - 1;
  return static_cast<TokenId>(std::min(file_bytes, most));
}

struct NamedPattern {
  std::string_view name, expression;
};
constexpr std::array<NamedPattern, 3> named_patterns = {
    {{"gpt2", R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)"},
     {"llama3",
      R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"},
     {"qwen2",
      R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"}}};

// The characters of byte_level(): a printable byte of Latin-1 is itself, the others follow from U+0100 on.
constexpr std::array<std::uint16_t, 256> make_characters() {
  std::array<std::uint16_t, 256> characters = {};
  std::uint16_t next = 256;
  for (std::uint16_t byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    characters[byte] = printable ? byte : next++;
  }
  return characters;
}
constexpr std::array<std::uint16_t, 256> byte_characters = make_characters();

constexpr std::array<std::int16_t, 384> make_character_bytes() {
  std::array<std::int16_t, 384> bytes = {};
  for (std::int16_t& byte : bytes) byte = -1;
  for (std::int16_t byte = 0; byte < 256; ++byte)
    bytes[byte_characters[static_cast<std::size_t>(byte)]] = byte;
  return bytes;
}
constexpr std::array<std::int16_t, 384> character_bytes = make_character_bytes();

template <typename... Values>
Error refuse(fmt::format_string<Values...> format, Values&&... values) {
  return fail(ExitCode::data, format, std::forward<Values>(values)...);
}

// Returns the member, or null where there is none.
const Json& member_of(const Json& object, std::string_view key) {
  static const Json null;
  const JsonIterator found = object.find(key);
  return object.is_object() && found != object.end() ? *found : null;
}

std::string text_of_member(const Json& object, std::string_view key) {
  const Json& value = member_of(object, key);
  return value.is_string() ? value.text() : std::string();
}

bool is_set(const Json& object, std::string_view key) {
  const Json& value = member_of(object, key);
  return value.is_boolean() && value.get<bool>();
}

// Reads a tokenizer.json into its parts.
class JsonReader {
 public:
  JsonReader(const Json& file, TokenId largest)
      : file_(file), model_(member_of(file, "model")), largest_token_(largest) {}

  Result<TokenizerParts> run() {
    HF_TRY_VOID(check_model());
    HF_TRY_VOID(read_vocabulary());
    HF_TRY_VOID(read_merges());
    HF_TRY_VOID(read_added());
    HF_TRY_VOID(read_normalizer());
    HF_TRY_VOID(read_pre_tokenizer());
    const std::string decoder = text_of_member(member_of(file_, "decoder"), "type");
    if (decoder != "ByteLevel")
      return refuse("its decoder is {}, expected ByteLevel: its tokens are not bytes", shown(decoder));
    parts_.whole_pieces_first = is_set(model_, "ignore_merges");
    return std::move(parts_);
  }

 private:
  static std::string shown(const std::string& type) { return type.empty() ? "missing" : printable(type); }

  // Files of old versions have no type: merges tell BPE from other models. What is done with characters that have no
  // token (unk_token, byte_fallback) does not matter, because every byte has one (Tokenizer::make).
  Result<void> check_model() const {
    const std::string type = text_of_member(model_, "type");
    if (type != "BPE" && !(type.empty() && member_of(model_, "merges").is_array())) {
      return refuse(
          "its model is {}, expected BPE: only byte-level BPE is supported, as of GPT-2, Llama 3 and Qwen "
          "2.5",
          shown(type));
    }
    for (const char* key : {"dropout", "continuing_subword_prefix", "end_of_word_suffix"}) {
      const Json& value = member_of(model_, key);
      const bool empty =
          value.is_null() || (value.is_string() && value.text().empty()) || (value.is_number() && value == 0);
      if (!empty)
        return refuse("its model has {} = {}, expected null: that is not supported", key, value.dump_any());
    }
    return {};
  }

  Result<void> read_vocabulary() {
    const Json& vocabulary = member_of(model_, "vocab");
    if (!vocabulary.is_object() || vocabulary.empty())
      return refuse("its model has no vocab, an object of tokens and their ids");
    std::vector<bool> is_used;
    for (const JsonMember& member : vocabulary.items()) {
      if (!member.value.is_number_unsigned() || member.value > largest_token_) {
        return refuse("the id of the token \"{}\" is {}, expected a number from 0 to {}",
                      printable(member.key), member.value.dump_any(), largest_token_);
      }
      const TokenId id = member.value.get<TokenId>();
      if (!ids_.emplace(member.key, id).second)
        return refuse("the token \"{}\" is twice in its vocab", printable(member.key));
      if (id >= parts_.tokens.size()) parts_.tokens.resize(id + 1);
      is_used.resize(parts_.tokens.size());
      if (is_used[id])
        return refuse("the token \"{}\" and another one both have the id {}", printable(member.key), id);
      is_used[id] = true;
      if (std::optional<std::string> bytes = from_byte_level(member.key)) {
        parts_.tokens[id] = std::move(*bytes);
      } else {
        parts_.others.emplace_back(id, member.key);
      }
    }
    return {};
  }

  // Returns the two halves of "a b" or ["a", "b"].
  static std::optional<std::pair<std::string_view, std::string_view>> halves_of(const Json& merge) {
    if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string())
      return std::pair<std::string_view, std::string_view>(merge[0].text(), merge[1].text());
    if (!merge.is_string()) return std::nullopt;
    const std::string_view line = merge.text();
    const std::size_t blank = line.find(' ');
    if (blank == std::string_view::npos || line.find(' ', blank + 1) != std::string_view::npos)
      return std::nullopt;
    return std::pair(line.substr(0, blank), line.substr(blank + 1));
  }

  Result<void> read_merges() {
    const Json& merges = member_of(model_, "merges");
    if (!merges.is_array()) return refuse("its model has no merges, a list of pairs of tokens");
    std::uint32_t rank = 0;
    for (const Json& merge : merges) {
      const auto halves = halves_of(merge);
      if (!halves)
        return refuse("merge {} is {}, expected two tokens with a blank between them", rank,
                      merge.dump_any());
      const auto left = ids_.find(std::string(halves->first)), right = ids_.find(std::string(halves->second));
      const auto result = ids_.find(fmt::format("{}{}", halves->first, halves->second));
      if (left == ids_.end() || right == ids_.end() || result == ids_.end()) {
        return refuse("merge {} makes \"{}\" and \"{}\" one token, but not all three are in its vocab", rank,
                      printable(halves->first), printable(halves->second));
      }
      parts_.merges.push_back({left->second, right->second, rank++, result->second});
    }
    return {};
  }

  // Python's tokenizers number an added token that is not in the vocabulary after all that are.
  TokenId expected_id(const std::string& content) const {
    if (const auto found = ids_.find(content); found != ids_.end()) return found->second;
    auto next = static_cast<TokenId>(ids_.size());
    for (const AddedToken& token : parts_.added) next = std::max(next, token.id + 1);
    return next;
  }

  Result<void> read_added() {
    const Json& added = member_of(file_, "added_tokens");
    if (added.is_null()) return {};
    if (!added.is_array()) return refuse("its added_tokens are no list");
    for (const Json& entry : added) {
      const Json& id = member_of(entry, "id");
      const std::string content = text_of_member(entry, "content");
      if (content.empty() || !id.is_number_unsigned() || id > largest_token_)
        return refuse("one of its added_tokens is {}, expected a content and an id up to {}",
                      entry.dump_any(), largest_token_);
      for (const char* key : {"single_word", "lstrip", "rstrip"}) {
        if (is_set(entry, key))
          return refuse("its added token \"{}\" has {} = true, which is not supported", printable(content),
                        key);
      }
      const TokenId expected = expected_id(content);
      if (id.get<TokenId>() != expected) {
        return refuse(
            "its added token \"{}\" has the id {}, but Python's tokenizers would give it {}: write the file "
            "again "
            "with them",
            printable(content), id.get<TokenId>(), expected);
      }
      parts_.added.push_back({.content = content,
                              .id = expected,
                              .special = is_set(entry, "special"),
                              .normalized = is_set(entry, "normalized")});
    }
    return {};
  }

  Result<void> read_normalizer() {
    const Json& normalizer = member_of(file_, "normalizer");
    if (normalizer.is_null()) return {};
    const std::string type = text_of_member(normalizer, "type");
    if (type != "NFC")
      return refuse("its normalizer is {}, expected none or NFC: others are not supported", shown(type));
    parts_.composes = true;
    return {};
  }

  static bool is_byte_level(const Json& step, bool with_regex) {
    const Json& use_regex = member_of(step, "use_regex");
    const bool uses = use_regex.is_boolean() ? use_regex.get<bool>() : true;
    return text_of_member(step, "type") == "ByteLevel" && uses == with_regex &&
           !is_set(step, "add_prefix_space");
  }

  Result<void> read_pre_tokenizer() {
    const Json& step = member_of(file_, "pre_tokenizer");
    const bool is_sequence = text_of_member(step, "type") == "Sequence";
    const Json& list = member_of(step, "pretokenizers");
    const std::vector<Json> steps = !is_sequence ? std::vector{step} : std::vector(list.begin(), list.end());
    if (steps.size() == 1 && is_byte_level(steps[0], true)) {
      parts_.pattern = pattern_of("gpt2");
      return {};
    }
    const Json split = steps.size() == 2 ? steps[0] : Json();
    parts_.pattern = text_of_member(member_of(split, "pattern"), "Regex");
    if (text_of_member(split, "type") == "Split" && text_of_member(split, "behavior") == "Isolated" &&
        !parts_.pattern.empty() && !is_set(split, "invert") && is_byte_level(steps[1], false))
      return {};
    return refuse(
        "its pre_tokenizer is {}, expected ByteLevel without add_prefix_space, or a Split by a Regex "
        "(Isolated) and "
        "ByteLevel after it: others are not supported",
        printable(member_of(file_, "pre_tokenizer").dump_any().substr(0, 300)));
  }

  const Json& file_;
  const Json& model_;
  TokenId largest_token_;
  std::unordered_map<std::string, TokenId> ids_;
  TokenizerParts parts_;
};

int base64_value(char c) {
  if (c >= 'A' && c <= 'Z') return c - 'A';
  if (c >= 'a' && c <= 'z') return c - 'a' + 26;
  if (c >= '0' && c <= '9') return c - '0' + 52;
  return c == '+' ? 62 : c == '/' ? 63 : -1;
}

std::optional<std::string> from_base64(std::string_view text) {
  if (text.empty() || text.size() % 4 != 0) return std::nullopt;
  const std::size_t padding = text.ends_with("==") ? 2 : text.ends_with('=') ? 1 : 0;
  text.remove_suffix(padding);
  std::string bytes;
  std::uint32_t bits = 0;
  int count = 0;
  for (const char c : text) {
    const int value = base64_value(c);
    if (value < 0) return std::nullopt;
    bits = bits << 6 | static_cast<std::uint32_t>(value);
    count += 6;
    if (count < 8) continue;
    count -= 8;
    bytes += static_cast<char>(bits >> count & 0xFFu);
  }
  return bytes;
}

// Returns every way in which two tokens make a third one; its rank is its id, and so tiktoken merges.
std::vector<Merge> merges_of_ranks(const std::vector<std::string>& tokens) {
  std::unordered_map<std::string_view, TokenId> ids;
  for (TokenId id = 0; id < tokens.size(); ++id) {
    if (!tokens[id].empty()) ids.emplace(tokens[id], id);
  }
  std::vector<Merge> merges;
  for (TokenId id = 0; id < tokens.size(); ++id) {
    const std::string_view token = tokens[id];
    for (std::size_t cut = 1; cut < token.size(); ++cut) {
      const auto left = ids.find(token.substr(0, cut)), right = ids.find(token.substr(cut));
      if (left != ids.end() && right != ids.end()) merges.push_back({left->second, right->second, id, id});
    }
  }
  return merges;
}

Json json_of_added(const AddedToken& token) {
  return {{"id", token.id},  {"content", token.content},       {"single_word", false},    {"lstrip", false},
          {"rstrip", false}, {"normalized", token.normalized}, {"special", token.special}};
}

Json json_of_pattern(const std::string& pattern) {
  const bool is_gpt2 = pattern == pattern_of("gpt2");
  const Json byte_level = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", is_gpt2}};
  if (is_gpt2) return byte_level;
  Json split = {{"type", "Split"}, {"pattern", Json::object()}, {"behavior", "Isolated"}, {"invert", false}};
  split["pattern"]["Regex"] = pattern;
  Json sequence = {{"type", "Sequence"}};
  sequence["pretokenizers"] = Json::array({split, byte_level});
  return sequence;
}

Json json_of_model(const TokenizerParts& parts) {
  Json model = {{"type", "BPE"},
                {"dropout", nullptr},
                {"unk_token", nullptr},
                {"continuing_subword_prefix", nullptr},
                {"end_of_word_suffix", nullptr},
                {"fuse_unk", false},
                {"byte_fallback", false},
                {"ignore_merges", parts.whole_pieces_first}};
  Json merges = Json::array();
  std::vector<std::string> names;
  names.reserve(parts.tokens.size());
  for (const std::string& token : parts.tokens) names.push_back(byte_level(token));
  for (const AddedToken& token : parts.added) names[token.id] = token.content;
  std::vector<JsonMember> members;
  for (TokenId id = 0; id < names.size(); ++id) members.push_back({names[id], Json(id)});
  model["vocab"] = Json::object(std::move(members));
  for (const Merge& merge : parts.merges)
    merges.push_back(Json::array({names[merge.left], names[merge.right]}));
  model["merges"] = std::move(merges);
  return model;
}

Result<std::string> read_file(Env& env, const std::string& path) {
  HF_TRY_VOID(expect_no_name(env, path));
  HF_TRY(const FileStatus status, env.status(path));
  if (!status.exists)
    return refuse(
        "the tokenizer {} does not exist; give the path of a tokenizer.json or of a rank file of tiktoken",
        path);
  if (status.directory)
    return refuse("the tokenizer {} is a directory; give the file tokenizer.json in it", path);
  return read_text_within(env, path, file_bytes_most);
}

}  // namespace

std::string pattern_of(const std::string& name) {
  const auto* found = std::ranges::find(named_patterns, name, &NamedPattern::name);
  return found == named_patterns.end() ? name : std::string(found->expression);
}

std::string byte_level(std::string_view bytes) {
  std::string text;
  for (const char byte : bytes) {
    const std::uint16_t character = byte_characters[static_cast<std::uint8_t>(byte)];
    if (character < 0x80) {
      text += static_cast<char>(character);
      continue;
    }
    text += static_cast<char>(0xC0 | character >> 6);
    text += static_cast<char>(0x80 | (character & 0x3F));
  }
  return text;
}

std::optional<std::string> from_byte_level(std::string_view text) {
  std::string bytes;
  for (std::size_t at = 0; at < text.size(); ++at) {
    std::size_t character = static_cast<std::uint8_t>(text[at]);
    if (character >= 0x80) {
      if ((character & 0xE0) != 0xC0 || at + 1 == text.size()) return std::nullopt;
      character = (character & 0x1F) << 6 | (static_cast<std::uint8_t>(text[++at]) & 0x3Fu);
    }
    if (character >= character_bytes.size() || character_bytes[character] < 0) return std::nullopt;
    bytes += static_cast<char>(character_bytes[character]);
  }
  return bytes;
}

std::array<std::uint8_t, 256> bytes_by_character() {
  std::array<std::uint8_t, 256> bytes = {};
  std::size_t next = 0;
  for (const std::int16_t byte : character_bytes) {
    if (byte >= 0) bytes[next++] = static_cast<std::uint8_t>(byte);
  }
  return bytes;
}

Result<TokenizerParts> parse_tokenizer_json(std::string_view text) {
  const Json file = Json::parse_any(text);
  if (!file.is_object()) return refuse("it is not JSON, or damaged; copy it again");
  return JsonReader(file, largest_token(text.size())).run();
}

Result<TokenizerParts> parse_tiktoken(std::string_view text, const std::string& pattern) {
  TokenizerParts parts;
  parts.pattern = pattern_of(pattern);
  parts.whole_pieces_first = true;
  const TokenId largest = largest_token(text.size());
  std::size_t number = 0;
  while (!text.empty()) {
    std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    ++number;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty()) continue;
    const std::size_t blank = std::min(line.find(' '), line.size());
    const std::optional<std::string> bytes = from_base64(line.substr(0, blank));
    TokenId id = 0;
    const char* end = line.data() + line.size();
    const auto [rest, error] = std::from_chars(line.data() + std::min(blank + 1, line.size()), end, id);
    if (!bytes || error != std::errc() || rest != end || id > largest) {
      return refuse(
          "line {} is \"{}\", expected a token in base64 and its rank, as in a file of tiktoken, or a "
          "tokenizer.json",
          number, printable(line.substr(0, 60)));
    }
    if (id >= parts.tokens.size()) parts.tokens.resize(id + 1);
    if (!parts.tokens[id].empty()) return refuse("line {} gives a second token the rank {}", number, id);
    parts.tokens[id] = *bytes;
  }
  parts.merges = merges_of_ranks(parts.tokens);
  return parts;
}

Result<void> expect_no_name(Env& env, const std::string& path) {
  if (path.empty() || path.find_first_of("./") != std::string::npos) return {};
  HF_TRY(const FileStatus status, env.status(path));
  if (status.exists) return {};
  return refuse(
      "there is no file {}: a tokenizer is given by the path of its tokenizer.json or rank file, and nothing "
      "is downloaded by a name; \"Published tokenizers\" in docs/data.md says where the files are",
      path);
}

Result<Tokenizer> read_tokenizer(Env& env, const std::string& path, const std::string& pattern,
                                 const std::string& option) {
  HF_TRY(const std::string text, read_file(env, path));
  const auto with_path = [&](const Error& error) {
    return fail(ExitCode::data, "the tokenizer {} cannot be used: {}", path, error.message);
  };
  const bool is_json = text.starts_with('{') || text.starts_with('[');
  if (!is_json && pattern.empty()) {
    return fail(ExitCode::config,
                "{} is no tokenizer.json; if it is a rank file of tiktoken, say how it cuts text into "
                "pieces: {}gpt2, llama3, qwen2 or a regular expression",
                path, option);
  }
  if (is_json && !pattern.empty())
    return fail(ExitCode::config, "{} says itself how it cuts text into pieces; leave {} out", path,
                option.substr(0, option.find_last_not_of(" =") + 1));
  Result<TokenizerParts> parts = is_json ? parse_tokenizer_json(text) : parse_tiktoken(text, pattern);
  if (!parts.ok()) return with_path(parts.error());
  Result<Tokenizer> tokenizer = Tokenizer::make(std::move(parts).value());
  if (!tokenizer.ok()) return with_path(tokenizer.error());
  return tokenizer;
}

std::string tokenizer_json(const TokenizerParts& parts) {
  Json file = {{"version", "1.0"}, {"truncation", nullptr}, {"padding", nullptr}};
  file["added_tokens"] = Json::array();
  for (const AddedToken& token : parts.added) file["added_tokens"].push_back(json_of_added(token));
  file["normalizer"] = parts.composes ? Json{{"type", "NFC"}} : Json();
  file["pre_tokenizer"] = json_of_pattern(parts.pattern);
  file["post_processor"] = Json();
  file["decoder"] = {
      {"type", "ByteLevel"}, {"add_prefix_space", true}, {"trim_offsets", true}, {"use_regex", true}};
  file["model"] = json_of_model(parts);
  return file.dump(2);
}

}  // namespace holdfast::text
