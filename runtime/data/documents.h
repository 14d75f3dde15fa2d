// Documents knows where documents begin in a source of tokens, for attention that stays inside documents.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/core/result.h"
#include "runtime/data/token_file.h"

namespace holdfast::data {

// Tokens that mark the beginning or the end of a document; -1 = none.
struct DocumentRule {
  bool mask = false;              // attention stays inside documents; else nothing here is used
  bool needed = true;             // a file that does not say where its documents begin is refused
  std::int64_t begin_token = -1;  // a document begins with each such token,
  std::int64_t end_token = -1;    // and after each such token
};

class Documents {
 public:
  // Finds the documents by the index of the file if it has one, else by the tokens of the rule, else by the
  // token that the format's tools write. With none of them: returns nothing, or ExitCode::data when the rule
  // is needed.
  static Result<std::optional<Documents>> of(TokenFile& file, const DocumentRule& rule);

  // Fails with ExitCode::config if a token that marks documents is not one of the vocabulary: the mask would
  // find no document. `path` is for the message.
  Result<void> check_tokens(std::int64_t vocabulary, const std::string& path) const;

  // Returns the tokens that mark documents, as in "3 or 7"; empty where the index of the file says where they
  // begin. is_marked() returns whether one of them is among `tokens`.
  std::string marks() const;
  bool is_marked(std::span<const std::int32_t> tokens) const;

  // Computes first_key[t] for the window that starts at `first_token`: the index in the window where the
  // document of tokens[t] begins, or 0 if that is before the window (first_key in kernels/attention.h). Both
  // spans have the same length.
  void first_keys(std::uint64_t first_token, std::span<const std::int32_t> tokens,
                  std::span<std::int32_t> first_key) const;

 private:
  Documents() = default;
  std::optional<std::vector<std::uint64_t>> starts_;  // ascending token positions
  std::int64_t begin_token_ = -1, end_token_ = -1;
  bool by_rule_ = false;
};

}  // namespace holdfast::data
