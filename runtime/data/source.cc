#include "runtime/data/source.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "runtime/data/token_cache.h"

namespace holdfast::data {
namespace {

constexpr std::size_t piece_bytes = 16384;  // what is read at once, on the stack
using Piece = std::array<std::byte, piece_bytes>;

Result<TokenFile> open_format(Env& env, const SourceConfig& config, const DocumentRule& documents,
                              const std::string& token_cache) {
  if (is_tokenized(config)) return open_tokenized(env, config, token_cache, documents.mask);
  if (config.format == "text") return open_text(env, config.path);
  if (config.format == "llmc") return open_llmc(env, config.path);
  if (config.format == "megatron") return open_megatron(env, config.path, documents.mask);
  if (config.format == "llmq") return open_llmq(env, config.path);
  return fail(ExitCode::data,
              "{}: there is no data format \"{}\"; the formats are \"text\", \"jsonl\" (with a tokenizer), "
              "\"llmc\", \"megatron\" and \"llmq\"",
              config.path, config.format);
}

constexpr Pieces document_pieces = {
    .piece = std::uint64_t{1} << 14, .whole_max = std::uint64_t{1} << 20, .spread = 64};

Result<Digest> fingerprint_of(const TokenFile& file) {
  DigestStream stream;
  HF_TRY_VOID(digest_file(*file.file, stream));
  if (file.index != nullptr) HF_TRY_VOID(digest_file(*file.index, stream));
  return stream.finish();
}

// `path`: of the file that the user has named.
Result<void> check_length(const std::string& path, std::uint64_t tokens, std::int64_t sequence_length) {
  if (tokens > static_cast<std::uint64_t>(sequence_length)) return {};
  if (tokens < 2) {
    return fail(ExitCode::data, "{} holds {} token{}; even the shortest sample needs 2; use a larger file",
                path, tokens, tokens == 1 ? "" : "s");
  }
  return fail(ExitCode::data,
              "{} holds {} tokens, but one sample of training.sequence_length = {} needs {}; set "
              "training.sequence_length to {} or less, or use a larger file",
              path, tokens, sequence_length, sequence_length + 1, tokens - 1);
}

// Widens the stored tokens to int32, whatever their type, in loops that the compiler can vectorise. Returns
// the index of the first that is below 0 or not below `limit`, or target.size(); what is after it is
// undefined then.
template <typename Stored>
std::size_t widen(const std::byte* stored, std::uint64_t limit, std::span<std::int32_t> target) {
  const auto token_at = [stored](std::size_t i) {
    Stored token;
    std::memcpy(&token, stored + i * sizeof(Stored), sizeof(Stored));
    return token;
  };
  using Unsigned = std::conditional_t<(sizeof(Stored) > 4), std::uint64_t, std::uint32_t>;
  Unsigned largest = 0;  // a negative token is very large here
  for (std::size_t i = 0; i < target.size(); ++i) {
    const Stored token = token_at(i);
    largest = std::max(largest, static_cast<Unsigned>(token));
    target[i] = static_cast<std::int32_t>(token);
  }
  if (largest < limit) return target.size();
  std::size_t i = 0;
  while (static_cast<Unsigned>(token_at(i)) < limit) ++i;
  return i;
}

std::size_t widen(TokenType type, const std::byte* stored, std::uint64_t limit,
                  std::span<std::int32_t> target) {
  switch (type) {
    case TokenType::u8:
      return widen<std::uint8_t>(stored, limit, target);
    case TokenType::i8:
      return widen<std::int8_t>(stored, limit, target);
    case TokenType::u16:
      return widen<std::uint16_t>(stored, limit, target);
    case TokenType::i16:
      return widen<std::int16_t>(stored, limit, target);
    case TokenType::u32:
      return widen<std::uint32_t>(stored, limit, target);
    case TokenType::i32:
      return widen<std::int32_t>(stored, limit, target);
    case TokenType::i64:
      return widen<std::int64_t>(stored, limit, target);
  }
  return 0;
}

// One stored token, for a sentence.
std::int64_t token_value(TokenType type, const std::byte* stored) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, stored, bytes_of(type));
  if (type == TokenType::u8 || type == TokenType::u16 || type == TokenType::u32) {
    return static_cast<std::int64_t>(bits);
  }
  const auto unused = static_cast<int>(64 - 8 * bytes_of(type));
  return static_cast<std::int64_t>(bits << unused) >> unused;  // extends the sign
}

}  // namespace

Result<std::unique_ptr<TokenSource>> TokenSource::open(Env& env, const SourceConfig& config,
                                                       std::int64_t sequence_length, const DocumentRule& rule,
                                                       const std::string& token_cache) {
  HF_CHECK(sequence_length >= 1);
  HF_TRY(TokenFile file, open_format(env, config, rule, token_cache));
  HF_TRY_VOID(check_length(is_tokenized(config) ? config.path : file.file->path(), file.token_count,
                           sequence_length));
  std::optional<Documents> documents;
  if (rule.mask) {
    HF_TRY(documents, Documents::of(file, rule));
  }
  HF_TRY(const Digest fingerprint, fingerprint_of(file));
  return std::unique_ptr<TokenSource>(new TokenSource(std::move(file), std::move(documents), fingerprint));
}

Result<std::string> TokenSource::warning_of_documents() const {
  const std::string marks = documents_.has_value() ? documents_->marks() : "";
  if (marks.empty()) return marks;
  bool is_marked = false;
  std::vector<std::int32_t> tokens(std::min(token_count(), document_pieces.piece));
  HF_TRY_VOID(for_pieces(token_count(), document_pieces, [&](std::uint64_t first, std::uint64_t count) {
    const std::span<std::int32_t> piece = std::span(tokens).first(count);
    const Result<void> result = is_marked ? Result<void>() : read(first, piece, /*vocabulary=*/0);
    is_marked = is_marked || documents_->is_marked(piece);
    return result;
  }));
  if (is_marked) return std::string();
  const bool is_whole = token_count() <= document_pieces.whole_max;
  return fmt::format(
      "{} has no token {} {}, so data.document_mask = true masks {} there. If its documents are shorter than "
      "that, set data.document_begin or data.document_end to the token that stands between them",
      path(), marks,
      is_whole ? fmt::format("(all {} tokens were looked at)", token_count())
               : fmt::format("in {} pieces of {} tokens, evenly spaced in {}", document_pieces.spread,
                             document_pieces.piece, token_count()),
      is_whole ? "nothing" : "little or nothing");
}

Result<void> TokenSource::read(std::uint64_t first_token, std::span<std::int32_t> target,
                               std::int64_t vocabulary) const {
  HF_CHECK(first_token <= token_count() && target.size() <= token_count() - first_token,
           "tokens {} + {} of {} wanted, it has {}", first_token, target.size(), path(), token_count());
  const std::uint64_t limit =
      vocabulary > 0 ? static_cast<std::uint64_t>(vocabulary) : std::uint64_t{1} << 31;
  const std::uint64_t width = bytes_of(file_.type);
  Piece piece;
  while (!target.empty()) {
    const std::size_t count = std::min(target.size(), piece_bytes / width);
    HF_TRY_VOID(
        file_.file->read_at(file_.first_byte + first_token * width, std::span(piece).first(count * width)));
    const std::size_t good = widen(file_.type, piece.data(), limit, target.first(count));
    if (good < count) {
      return outside_vocabulary(first_token + good, token_value(file_.type, piece.data() + good * width),
                                limit);
    }
    first_token += count;
    target = target.subspan(count);
  }
  return {};
}

Error TokenSource::outside_vocabulary(std::uint64_t index, std::int64_t token,
                                      std::uint64_t vocabulary) const {
  if (token < 0) {
    return fail(ExitCode::data,
                "{}: token {} is {}, expected 0 or more; the file holds no tokens, or is damaged: write it "
                "again",
                path(), index, token);
  }
  return fail(
      ExitCode::data,
      "{}: token {} is {}, but the vocabulary has {} entries (largest token {}); set model.vocabulary to "
      "more than {}, or use data made with this model's tokenizer",
      path(), index, token, vocabulary, vocabulary - 1, token);
}

Result<std::uint64_t> TokenSource::mask_targets(std::uint64_t first_token,
                                                std::span<std::int32_t> targets) const {
  std::uint64_t counted = 0;
  Piece piece;
  while (!targets.empty()) {
    const std::size_t skipped = first_token % 8;  // bits in front of the first
    const std::size_t count = std::min(targets.size(), piece_bytes * 8 - skipped);
    const std::span<std::byte> bits = std::span(piece).first((skipped + count + 7) / 8);
    HF_TRY_VOID(file_.file->read_at(*file_.mask_byte + first_token / 8, bits));
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t bit = skipped + i;
      const bool counts = ((std::to_integer<unsigned>(bits[bit / 8]) >> (bit % 8)) & 1U) != 0;
      if (!counts) targets[i] = uncounted_target;
      counted += counts ? 1 : 0;
    }
    first_token += count;
    targets = targets.subspan(count);
  }
  return counted;
}

Result<std::uint64_t> TokenSource::fill_row(std::uint64_t first_token, std::span<const std::int32_t> tokens,
                                            const SequenceRow& row) const {
  const std::size_t length = row.inputs.size();
  HF_CHECK(tokens.size() == length + 1 && row.targets.size() == length);
  std::ranges::copy(tokens.first(length), row.inputs.begin());
  std::ranges::copy(tokens.last(length), row.targets.begin());
  if (documents_.has_value()) documents_->first_keys(first_token, row.inputs, row.first_key);
  if (file_.mask_byte.has_value()) return mask_targets(first_token + 1, row.targets);
  return std::uint64_t{length};
}

void TokenSource::will_need(std::uint64_t first_token, std::uint64_t count) const {
  const std::uint64_t width = bytes_of(file_.type);
  file_.file->will_need(file_.first_byte + first_token * width, count * width);
}

Result<std::optional<Documents>> Documents::of(TokenFile& file, const DocumentRule& rule) {
  const bool by_rule = rule.begin_token >= 0 || rule.end_token >= 0;
  if (!file.document_starts.has_value() && !by_rule && file.document_begin < 0) {
    if (!rule.needed) return std::optional<Documents>();
    return fail(ExitCode::data,
                "{} does not say where its documents begin, which data.document_mask = true needs; set "
                "data.document_begin or data.document_end to the token that stands there, or leave "
                "data.document_mask out",
                file.file->path());
  }
  Documents documents;
  if (file.document_starts.has_value()) {
    documents.starts_ = std::move(file.document_starts);
  } else if (by_rule) {
    documents.begin_token_ = rule.begin_token;
    documents.end_token_ = rule.end_token;
    documents.by_rule_ = true;
  } else {
    documents.begin_token_ = file.document_begin;
  }
  return std::optional(std::move(documents));
}

Result<void> Documents::check_tokens(std::int64_t vocabulary, const std::string& path) const {
  if (starts_.has_value()) return {};
  if (!by_rule_ && begin_token_ >= vocabulary) {
    return fail(ExitCode::config,
                "data.document_mask = true would mask nothing: the tools of the format of {} begin documents "
                "with token {}, and the vocabulary has {} entries; set data.document_begin or "
                "data.document_end to the token of your tokenizer",
                path, begin_token_, vocabulary);
  }
  for (const auto& [key, token] : {std::pair("begin", begin_token_), std::pair("end", end_token_)}) {
    if (token < vocabulary) continue;
    return fail(ExitCode::config,
                "data.document_{} = {} is no token: the vocabulary has {} entries (largest token {}); set it "
                "to the token that stands between documents",
                key, token, vocabulary, vocabulary - 1);
  }
  return {};
}

std::string Documents::marks() const {
  if (starts_.has_value()) return "";
  if (begin_token_ < 0 || end_token_ < 0) return fmt::format("{}", std::max(begin_token_, end_token_));
  return fmt::format("{} or {}", begin_token_, end_token_);
}

bool Documents::is_marked(std::span<const std::int32_t> tokens) const {
  return std::ranges::any_of(
      tokens, [this](std::int32_t token) { return token == begin_token_ || token == end_token_; });
}

void Documents::first_keys(std::uint64_t first_token, std::span<const std::int32_t> tokens,
                           std::span<std::int32_t> first_key) const {
  HF_CHECK(tokens.size() == first_key.size());
  std::int32_t begin = 0;
  if (starts_.has_value()) {
    auto next = std::ranges::upper_bound(*starts_, first_token);
    for (std::size_t t = 0; t < tokens.size(); ++t) {
      if (next != starts_->end() && *next == first_token + t) {
        begin = static_cast<std::int32_t>(t);
        ++next;
      }
      first_key[t] = begin;
    }
    return;
  }
  for (std::size_t t = 0; t < tokens.size(); ++t) {
    if (tokens[t] == begin_token_ || (t > 0 && tokens[t - 1] == end_token_)) {
      begin = static_cast<std::int32_t>(t);
    }
    first_key[t] = begin;
  }
}

}  // namespace holdfast::data
