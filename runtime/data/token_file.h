// A TokenFile is a file of tokens as its format describes it. Each format has one function that opens a file
// and checks all that the format lets a reader check; errors (ExitCode::data) name the file, what was found,
// what was expected and what to do.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/core/digest.h"
#include "runtime/core/result.h"
#include "runtime/os/env.h"

namespace holdfast::data {

enum class TokenType : std::uint8_t { u8, i8, u16, i16, u32, i32, i64 };
constexpr std::uint64_t bytes_of(TokenType type) {
  switch (type) {
    case TokenType::u8:
    case TokenType::i8:
      return 1;
    case TokenType::u16:
    case TokenType::i16:
      return 2;
    case TokenType::u32:
    case TokenType::i32:
      return 4;
    case TokenType::i64:
      return 8;
  }
  return 0;
}

struct TokenFile {
  std::unique_ptr<File> file;   // file with the tokens, little-endian and contiguous
  std::unique_ptr<File> index;  // megatron: the .idx file
  TokenType type = TokenType::u8;
  std::uint64_t first_byte = 0;
  std::uint64_t token_count = 0;
  std::int64_t vocabulary_needed = 0;     // for any token that the file can hold; 0 = known after reading
  std::int64_t vocabulary_of_format = 0;  // of the tokenizer; 0 = the format does not say
  std::int64_t document_begin = -1;       // token that the format's tools put in front of each document
  std::optional<std::vector<std::uint64_t>> document_starts;  // token positions, ascending; megatron
  std::optional<std::uint64_t> mask_byte;  // start of packed bits that say which tokens are targets
};

// Opens a text file, in which every byte is a token.
Result<TokenFile> open_text(Env& env, const std::string& path);

// Returns tokens that are in memory, as a file of the given path would hold them. None is negative.
TokenFile tokens_in_memory(std::vector<std::int32_t> tokens, std::string path);

// Opens an llm.c file: 256 int32 of header, then uint16 tokens (GPT-2) or uint32 tokens (Llama 3).
Result<TokenFile> open_llmc(Env& env, const std::string& path);

// Opens an llmq file (IST-DASLab/llmq scripts/tokenize_data.py): 1,024 bytes of header, int32 tokens, then,
// if version 2 says so, one bit for each token, lowest bit first: 0 = not a target (a prompt, padding).
Result<TokenFile> open_llmq(Env& env, const std::string& path);

// Opens a Megatron-LM dataset (core/datasets/indexed_dataset.py): NAME.bin holds the tokens, NAME.idx says
// their type and where sequences and documents are. `path` is either file or NAME. The index is read through
// once; document_starts takes 8 bytes of memory for each document and is kept when `with_documents`.
Result<TokenFile> open_megatron(Env& env, const std::string& path, bool with_documents);

struct MegatronPaths {
  std::string data;   // NAME.bin
  std::string index;  // NAME.idx
};
MegatronPaths megatron_paths(const std::string& path);  // accepts NAME.bin, NAME.idx or NAME

// Returns the format that a file's magic indicates, or "text" for everything without a known one. A Megatron
// dataset is recognised by its index, whether `path` is one of its files or the name without an ending.
Result<std::string> detect_format(Env& env, const std::string& path);

// Pieces say how much of something long is looked at: all of it, piece after piece, or pieces evenly spaced between
// its head and its tail.
struct Pieces {
  std::uint64_t piece;
  std::uint64_t whole_max;  // a greater length is not looked at as a whole
  std::uint64_t spread;     // how many pieces then
};

// Calls use(offset, count) for each of them.
template <typename Use>
Result<void> for_pieces(std::uint64_t length, const Pieces& of, const Use& use) {
  if (length <= of.whole_max) {
    for (std::uint64_t offset = 0; offset < length; offset += of.piece) {
      HF_TRY_VOID(use(offset, std::min(of.piece, length - offset)));
    }
    return {};
  }
  const std::uint64_t last = length - of.piece;
  for (std::uint64_t i = 0; i < of.spread; ++i) {
    // last * i could pass 2^64 only for lengths beyond 2^55
    HF_TRY_VOID(use(last * i / (of.spread - 1), of.piece));
  }
  return {};
}

// Adds the length and the content of a file to a digest: all of it up to whole_digest_bytes; of a larger one its head, its tail
// and 256 pieces evenly spaced between them, 1 MiB each, at offsets that follow from the length alone.
inline constexpr std::uint64_t whole_digest_bytes = std::uint64_t{256} << 20;
Result<void> digest_file(File& file, DigestStream& stream);

// Opens a regular file that is readable and not empty.
Result<std::unique_ptr<File>> open_data_file(Env& env, const std::string& path);
// Returns " (it looks like ...)" for a known `magic` (the first four bytes of a file), or an empty string.
std::string foreign_name(std::int32_t magic);

}  // namespace holdfast::data
