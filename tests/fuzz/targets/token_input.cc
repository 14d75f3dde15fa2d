#include "tests/fuzz/targets/token_input.h"

#include <algorithm>
#include <cstring>

#include "runtime/data/source.h"

namespace holdfast::fuzz {
namespace {

Result<TokenFile> open_tokens(Env& env, const std::string& path, const std::string& format) {
  if (format == "llmc") return open_llmc(env, path);
  if (format == "llmq") return open_llmq(env, path);
  if (format == "megatron") return open_megatron(env, path, true);
  return open_text(env, path);
}

// The tokens' bytes as the file has them.
std::vector<std::byte> stored_bytes(const std::vector<std::int32_t>& tokens, std::uint64_t width) {
  std::vector<std::byte> bytes(tokens.size() * width);
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const auto token = static_cast<std::uint64_t>(tokens[i]);
    std::memcpy(bytes.data() + i * width, &token, width);
  }
  return bytes;
}

void check_starts(const TokenFile& file) {
  if (!file.document_starts.has_value()) return;
  for (const std::uint64_t start : *file.document_starts)
    require(start < file.token_count, "a document begins behind the last token");
  require(
      std::ranges::adjacent_find(*file.document_starts, std::greater_equal()) == file.document_starts->end(),
      "documents begin in no order");
}

void check_rows(const TokenSource& source, std::span<const std::int32_t> tokens, bool masks) {
  constexpr std::size_t length = 3;
  std::array<std::int32_t, length> inputs{}, targets{}, first_key{};
  for (std::uint64_t first = 0; first + length < tokens.size(); first += length) {
    const SequenceRow row{.inputs = inputs, .targets = targets, .first_key = first_key};
    const Result<std::uint64_t> counted = source.fill_row(first, tokens.subspan(first, length + 1), row);
    require(counted.ok() && *counted <= length, "a row counts more targets than it has");
    for (std::size_t t = 0; t < length; ++t)
      require(!masks || (first_key[t] >= 0 && first_key[t] <= static_cast<std::int32_t>(t)),
              "a document begins behind its token");
  }
}

}  // namespace

bool read_tokens(FuzzEnv& env, const std::string& path, const std::string& format) {
  const Result<std::string> detected = detect_format(env, path);
  if (!detected.ok()) require_sentence(detected.error(), {ExitCode::data});
  const DocumentRule rule{.mask = true, .needed = false};
  const auto source = TokenSource::open(env, {.path = path, .format = format}, 1, rule);
  if (!source.ok()) {
    require_sentence(source.error(), {ExitCode::data});
    return false;
  }
  const TokenFile file = open_tokens(env, path, format).value();
  check_starts(file);
  const TokenSource& tokens_of = **source;
  std::vector<std::int32_t> tokens(tokens_of.token_count());
  if (const Result<void> read = tokens_of.read(0, tokens, 0); !read.ok()) {
    require_sentence(read.error(), {ExitCode::data});
    return false;
  }
  for (const std::int32_t token : tokens) require(token >= 0, "a token is below 0");
  const std::uint64_t width = bytes_of(file.type);
  std::vector<std::byte> stored(tokens.size() * width);
  require(file.file->read_at(file.first_byte, stored).ok(), "the tokens lie outside of the file");
  require(stored == stored_bytes(tokens, width), "the tokens are others than those of the file");
  check_rows(tokens_of, tokens, tokens_of.masks_documents());
  return true;
}

}  // namespace holdfast::fuzz
