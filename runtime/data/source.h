// Token sources: files of tokens read in place. A source is a sequence of tokens cut into samples: sample i
// is the window of sequence_length + 1 tokens that starts at i * sequence_length; the tail that fills no
// window is not used.
//
// Formats: "text" (each byte is a token, vocabulary 256), "llmc" (llm.c shard: magic 20240520 version 1 with
// uint16 tokens, magic 20240801 version 7 with uint32 tokens).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "runtime/config/config.h"
#include "runtime/core/digest.h"
#include "runtime/core/env.h"
#include "runtime/core/result.h"

namespace holdfast {

class TokenSource {
 public:
  // Checks magic, version, length and that at least one sample fits; errors (ExitCode::data) name the file,
  // what was found, what was expected and what to do.
  static Result<std::unique_ptr<TokenSource>> open(Env& env, const SourceConfig& config,
                                                   std::int64_t sequence_length);
  virtual ~TokenSource() = default;

  virtual std::uint64_t token_count() const = 0;
  virtual std::int64_t vocabulary_needed() const = 0;  // 256 for text; 0 = unknown until read (token shards)
  // Of the tokenizer that the format was made for: 256 for text, GPT-2's 50,257 and Llama 3's 128,256 for
  // llm.c shards.
  virtual std::int64_t vocabulary_of_format() const = 0;
  // Tells whether this is the same file as last time: a digest of the length and of the content, read once,
  // by open(). A file of up to 256 MiB is digested whole, so that one changed byte shows. Of a larger one its
  // head, its tail and 256 pieces evenly between them are, 1 MiB each, at places that follow from the length
  // alone: another file or a longer one shows, a change that lies wholly between the pieces does not.
  virtual Digest fingerprint() const = 0;
  virtual const std::string& path() const = 0;
  // tokens [first, first + target.size()); a token >= vocabulary is an error that names file and position.
  // vocabulary = 0: unknown, every token below 2^31 is accepted. May be called from any thread; allocates
  // nothing.
  virtual Result<void> read(std::uint64_t first_token, std::span<std::int32_t> target,
                            std::int64_t vocabulary) = 0;
};

// The format that a file's magic says it has: "llmc", or "text" for everything without a known magic.
Result<std::string> detect_format(Env& env, const std::string& path);

}  // namespace holdfast
