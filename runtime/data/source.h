// A TokenSource is files of tokens read in place, as a sequence of tokens cut into samples: sample i is the
// window of sequence_length + 1 tokens that starts at i * sequence_length; the tail that fills no window is
// not used. The formats are those of token_file.h.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/config/config.h"
#include "runtime/core/digest.h"
#include "runtime/core/result.h"
#include "runtime/data/token_file.h"
#include "runtime/os/env.h"

namespace holdfast::data {

// Documents knows where documents begin in a source of tokens, for attention that stays inside documents.

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

// Target value that does not count in the loss.
inline constexpr std::int32_t uncounted_target = -100;

// One sequence of a batch in the form the model takes: each span has sequence_length elements, targets are
// the inputs shifted by one. first_key is empty when attention is not masked.
struct SequenceRow {
  std::span<std::int32_t> inputs;
  std::span<std::int32_t> targets;
  std::span<std::int32_t> first_key;
};

// The rows of a batch in contiguous memory; `first_key` may be empty.
class SequenceRows {
 public:
  SequenceRows(std::span<std::int32_t> inputs, std::span<std::int32_t> targets,
               std::span<std::int32_t> first_key, std::size_t sequence_length)
      : all_{inputs, targets, first_key}, length_(sequence_length) {}
  SequenceRow operator[](std::size_t row) const {
    return {.inputs = all_.inputs.subspan(row * length_, length_),
            .targets = all_.targets.subspan(row * length_, length_),
            .first_key = all_.first_key.empty() ? std::span<std::int32_t>()
                                                : all_.first_key.subspan(row * length_, length_)};
  }

 private:
  SequenceRow all_;
  std::size_t length_;
};

// Threads: const methods may be called from any thread; they allocate nothing.
class TokenSource {
 public:
  // Opens the file, or the tokens that a text file has become in `token_cache` (token_cache.h).
  // Checks the file as its format allows, and that at least one sample fits; errors (ExitCode::data) name the
  // file, what was found, what was expected and what to do.
  static Result<std::unique_ptr<TokenSource>> open(Env& env, const SourceConfig& config,
                                                   std::int64_t sequence_length,
                                                   const DocumentRule& documents = {},
                                                   const std::string& token_cache = "");

  // Returns tokens as one document, of a file that was not opened from a disk, without a fingerprint.
  static TokenSource of(TokenFile file) { return {std::move(file), std::nullopt, Digest{}}; }

  std::uint64_t token_count() const { return file_.token_count; }
  std::int64_t vocabulary_needed() const { return file_.vocabulary_needed; }
  std::int64_t vocabulary_of_format() const { return file_.vocabulary_of_format; }
  // Returns the digest of digest_file(), computed once by open(), that tells whether this is the same file as before: one
  // changed byte of a small file shows, and another file or a longer one, but not a change of a large one that lies wholly
  // between the pieces. For a Megatron dataset it covers both files, and for text the tokens that it has become.
  Digest fingerprint() const { return fingerprint_; }
  const std::string& path() const { return file_.file->path(); }
  bool masks_documents() const { return documents_.has_value(); }  // rows have first keys
  Result<void> check_document_tokens(std::int64_t vocabulary) const {
    return documents_.has_value() ? documents_->check_tokens(vocabulary, path()) : Result<void>();
  }

  // Looks for a token that marks documents: in all of a source of up to 1,048,576 tokens, else in 64 pieces of
  // 16,384 evenly spaced in it. Returns a warning that says how much was looked at if there is none; empty if
  // there is one, or if nothing is masked by tokens.
  Result<std::string> warning_of_documents() const;

  // Reads tokens [first, first + target.size()). A token below 0 or >= vocabulary is an error that names file
  // and position. vocabulary = 0: unknown, every token below 2^31 is accepted.
  Result<void> read(std::uint64_t first_token, std::span<std::int32_t> target, std::int64_t vocabulary) const;
  // Fills the row of the window that starts at `first_token` from its tokens as read() gave them (one more
  // than the row is long). Returns the number of targets that count.
  Result<std::uint64_t> fill_row(std::uint64_t first_token, std::span<const std::int32_t> tokens,
                                 const SequenceRow& row) const;
  // Hints that these tokens will be read soon, so that the operating system may begin to fetch them.
  void will_need(std::uint64_t first_token, std::uint64_t count) const;
  // Asks the operating system to drop the file from its cache, to measure a cold read.
  void drop_cached() const { file_.file->drop_cached(); }

 private:
  TokenSource(TokenFile file, std::optional<Documents> documents, Digest fingerprint)
      : file_(std::move(file)), documents_(std::move(documents)), fingerprint_(fingerprint) {}
  Result<std::uint64_t> mask_targets(std::uint64_t first_token, std::span<std::int32_t> targets) const;
  Error outside_vocabulary(std::uint64_t index, std::int64_t token, std::uint64_t vocabulary) const;

  TokenFile file_;
  std::optional<Documents> documents_;  // with DocumentRule::mask
  Digest fingerprint_;
};

}  // namespace holdfast::data
