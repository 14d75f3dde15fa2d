#include "runtime/data/documents.h"

#include <fmt/core.h>

#include <algorithm>

namespace holdfast::data {

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
