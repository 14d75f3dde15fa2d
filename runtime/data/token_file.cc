#include "runtime/data/token_file.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <bit>
#include <memory>
#include <span>
#include <utility>

#include "runtime/core/check.h"

namespace holdfast::data {
namespace {

static_assert(std::endian::native == std::endian::little,
              "token files are little-endian, and so is this code");

constexpr std::int64_t byte_vocabulary = 256;

// File types that users commonly have, by their first four bytes. Files that have a format here can be used.
struct KnownMagic {
  std::int32_t magic;
  const char* name;
  const char* format;
};
constexpr std::array<KnownMagic, 9> known_magics = {{
    {20240520, "an llm.c token shard of GPT-2", "llmc"},
    {20240801, "an llm.c token shard of Llama 3", "llmc"},
    {0x2e4e4942, "an llmq token shard", "llmq"},                  // "BIN."
    {0x44494d4d, "the index of a Megatron dataset", "megatron"},  // "MMID"
    {20240522, "an llm.c evaluation file", nullptr},
    {20240326, "an llm.c model checkpoint", nullptr},
    {20240327, "an llm.c debug state", nullptr},
    {20240328, "an llm.c tokenizer", nullptr},
    {20240527, "an llm.c optimizer state", nullptr},
}};

const KnownMagic* find_magic(std::int32_t magic) {
  const auto* found = std::ranges::find(known_magics, magic, &KnownMagic::magic);
  return found == known_magics.end() ? nullptr : found;
}

Result<const KnownMagic*> read_magic(Env& env, const std::string& path) {
  HF_TRY(const std::unique_ptr<File> file, open_data_file(env, path));
  HF_TRY(const std::uint64_t file_bytes, file->size());
  std::int32_t magic = 0;
  if (file_bytes < sizeof(magic)) return static_cast<const KnownMagic*>(nullptr);
  HF_TRY_VOID(file->read_at(0, std::as_writable_bytes(std::span(&magic, 1))));
  return find_magic(magic);
}

}  // namespace

Result<std::unique_ptr<File>> open_data_file(Env& env, const std::string& path) {
  HF_TRY(const FileStatus status, env.status(path));
  if (!status.exists) {
    return with_reach(Reach::host, fail(ExitCode::data,
                                        "the data file {} does not exist; check the path (a relative path "
                                        "starts at the directory in which "
                                        "the program was started)",
                                        path));
  }
  if (status.directory) {
    return fail(ExitCode::data, "the data file {} is a directory; name a file in it, one source per file",
                path);
  }
  if (status.bytes == 0) {
    return fail(ExitCode::data, "the data file {} is empty; use a file with data, or leave this source out",
                path);
  }
  return env.open(path, OpenMode::read);
}

namespace {

// Head, tail and 256 pieces between them.
constexpr Pieces digest_pieces = {
    .piece = std::uint64_t{1} << 20, .whole_max = whole_digest_bytes, .spread = 258};

}  // namespace

Result<void> digest_file(File& file, DigestStream& stream) {
  HF_TRY(const std::uint64_t file_bytes, file.size());
  std::vector<std::byte> buffer(std::min(file_bytes, digest_pieces.piece));
  stream.add(file_bytes);
  return for_pieces(file_bytes, digest_pieces,
                    [&](std::uint64_t offset, std::uint64_t bytes) -> Result<void> {
                      const std::span<std::byte> sample = std::span(buffer).first(bytes);
                      HF_TRY_VOID(file.read_at(offset, sample));
                      stream.add(std::span<const std::byte>(sample));
                      return {};
                    });
}

std::string foreign_name(std::int32_t magic) {
  const KnownMagic* known = find_magic(magic);
  if (known == nullptr) return "";
  if (known->format == nullptr) return fmt::format(" (it looks like {})", known->name);
  return fmt::format(" (it looks like {}, format = \"{}\")", known->name, known->format);
}

Result<TokenFile> open_text(Env& env, const std::string& path) {
  TokenFile tokens;
  HF_TRY(tokens.file, open_data_file(env, path));
  HF_TRY(tokens.token_count, tokens.file->size());
  tokens.vocabulary_needed = byte_vocabulary;
  tokens.vocabulary_of_format = byte_vocabulary;
  return tokens;
}

namespace {

// Tokens that are read like a file. Nothing writes to it.
class MemoryFile final : public File {
 public:
  MemoryFile(std::vector<std::int32_t> tokens, std::string path)
      : tokens_(std::move(tokens)), path_(std::move(path)) {}
  Result<void> read_at(std::uint64_t offset, std::span<std::byte> target) override {
    const std::span<const std::byte> all = std::as_bytes(std::span(tokens_));
    HF_CHECK(offset <= all.size() && target.size() <= all.size() - offset);
    std::ranges::copy(all.subspan(offset, target.size()), target.begin());
    return {};
  }
  Result<void> write_at(std::uint64_t, std::span<const std::byte>) override { return read_only(); }
  Result<void> allocate(std::uint64_t) override { return read_only(); }
  Result<void> truncate(std::uint64_t) override { return read_only(); }
  Result<void> sync() override { return {}; }
  Result<std::uint64_t> size() override { return tokens_.size() * sizeof(std::int32_t); }
  void will_need(std::uint64_t, std::uint64_t) override {}
  void drop_cached() override {}
  std::string buffered_reason() const override { return "it is in memory"; }
  const std::string& path() const override { return path_; }

 private:
  Error read_only() const { return fail(ExitCode::data, "the tokens of {} are only read", path_); }
  std::vector<std::int32_t> tokens_;
  std::string path_;
};

}  // namespace

TokenFile tokens_in_memory(std::vector<std::int32_t> tokens, std::string path) {
  TokenFile file;
  file.type = TokenType::i32;
  file.token_count = tokens.size();
  file.file = std::make_unique<MemoryFile>(std::move(tokens), std::move(path));
  return file;
}

Result<std::string> detect_format(Env& env, const std::string& path) {
  const MegatronPaths megatron = megatron_paths(path);
  HF_TRY(const FileStatus own, env.status(path));
  HF_TRY(const FileStatus index, env.status(megatron.index));
  const KnownMagic* known = nullptr;
  if (own.exists || !index.exists) {
    HF_TRY(known, read_magic(env, path));
  }
  if (known != nullptr && known->format != nullptr) return std::string(known->format);
  const bool half_of_a_pair = !own.exists || path == megatron.data || path == megatron.index;
  return std::string(index.exists && half_of_a_pair ? "megatron" : "text");
}

// The formats of one file with a header of 1,024 bytes in front of its tokens: llm.c's and llmq's.

namespace {

constexpr std::uint64_t shard_header_bytes = 1024;  // 256 int32; what follows the named fields is not read
using Header = std::array<std::int32_t, 7>;

Result<Header> read_header(File& file, const char* kind) {
  HF_TRY(const std::uint64_t file_bytes, file.size());
  if (file_bytes < shard_header_bytes) {
    return fail(ExitCode::data,
                "{} is {} bytes long, too short for the {}-byte header of an {} token shard; copy the file "
                "again, or use format = \"text\" if it is text",
                file.path(), file_bytes, shard_header_bytes, kind);
  }
  Header header{};
  HF_TRY_VOID(file.read_at(0, std::as_writable_bytes(std::span(header))));
  return header;
}

Error wrong_magic(const File& file, const Header& header, const char* kind, const std::string& expected) {
  return fail(
      ExitCode::data,
      "{} is not an {} token shard: it starts with {}{}, expected {}; the formats are \"text\" (every "
      "byte is a token), \"llmc\", \"megatron\" and \"llmq\"",
      file.path(), kind, header[0], foreign_name(header[0]), expected);
}

// `behind`: bytes that follow the tokens.
Result<void> check_bytes(File& file, std::int32_t count, TokenType type, std::uint64_t behind) {
  HF_TRY(const std::uint64_t file_bytes, file.size());
  const std::uint64_t expected =
      shard_header_bytes + static_cast<std::uint64_t>(count) * bytes_of(type) + behind;
  if (count >= 0 && file_bytes == expected) return {};
  const std::uint64_t held = (file_bytes - shard_header_bytes) / bytes_of(type);
  return fail(ExitCode::data,
              "{}: its header says {} tokens of {} bytes{}, but the file has {} bytes, room for {}; it is "
              "{}, copy or write it again",
              file.path(), count, bytes_of(type), behind > 0 ? " and a mask of one bit for each" : "",
              file_bytes, held, count >= 0 && file_bytes < expected ? "truncated" : "damaged");
}

struct LlmcKind {
  std::int32_t magic;
  std::int32_t version;
  TokenType type;
  std::int64_t vocabulary;      // of the tokenizer: GPT-2's, Llama 3's
  std::int64_t document_begin;  // what dev/data/*.py of llm.c put in front: <|endoftext|>, <|begin_of_text|>
};
constexpr std::array<LlmcKind, 2> llmc_kinds = {
    {{20240520, 1, TokenType::u16, 50257, 50256}, {20240801, 7, TokenType::u32, 128256, 128000}}};

constexpr std::array<std::int32_t, 2> llmq_magic = {0x2e4e4942, 0x0a4b4f54};  // "BIN.TOK\n"

}  // namespace

Result<TokenFile> open_llmc(Env& env, const std::string& path) {
  TokenFile tokens;
  HF_TRY(tokens.file, open_data_file(env, path));
  HF_TRY(const Header header, read_header(*tokens.file, "llm.c"));
  const auto* kind = std::ranges::find(llmc_kinds, header[0], &LlmcKind::magic);
  if (kind == llmc_kinds.end()) {
    return wrong_magic(
        *tokens.file, header, "llm.c",
        fmt::format("{} (uint16 tokens) or {} (uint32 tokens)", llmc_kinds[0].magic, llmc_kinds[1].magic));
  }
  if (header[1] != kind->version) {
    return fail(
        ExitCode::data,
        "{} is an llm.c token shard (magic {}) of version {}, expected version {}; write it again with a "
        "matching tool",
        path, header[0], header[1], kind->version);
  }
  HF_TRY_VOID(check_bytes(*tokens.file, header[2], kind->type, 0));
  tokens.type = kind->type;
  tokens.first_byte = shard_header_bytes;
  tokens.token_count = static_cast<std::uint64_t>(header[2]);
  tokens.vocabulary_of_format = kind->vocabulary;
  tokens.document_begin = kind->document_begin;
  return tokens;
}

Result<TokenFile> open_llmq(Env& env, const std::string& path) {
  TokenFile tokens;
  HF_TRY(tokens.file, open_data_file(env, path));
  HF_TRY(const Header header, read_header(*tokens.file, "llmq"));
  const auto [magic0, magic1, version, token_bytes, count, vocabulary, masks] = header;
  if (magic0 != llmq_magic[0] || magic1 != llmq_magic[1]) {
    return wrong_magic(*tokens.file, header, "llmq", "BIN.TOK");
  }
  if (version != 1 && version != 2) {
    return fail(ExitCode::data,
                "{} is an llmq token shard of version {}, expected version 1 or 2; write it again with a "
                "matching tool",
                path, version);
  }
  tokens.type = TokenType::i32;
  if (token_bytes != static_cast<std::int32_t>(bytes_of(tokens.type))) {
    return fail(ExitCode::data,
                "{} is an llmq token shard of {} bytes per token, expected {}; write it again", path,
                token_bytes, bytes_of(tokens.type));
  }
  // Version 1 has no fields for the vocabulary and the masks: what stands there means nothing.
  if (version == 2 && vocabulary < 1) {
    return fail(ExitCode::data, "{}: its header says a vocabulary of {}, expected 1 or more; write it again",
                path, vocabulary);
  }
  const bool has_masks = version == 2 && masks == 1;
  const std::uint64_t held = count > 0 ? static_cast<std::uint64_t>(count) : 0;
  HF_TRY_VOID(check_bytes(*tokens.file, count, tokens.type, has_masks ? (held + 7) / 8 : 0));
  tokens.first_byte = shard_header_bytes;
  tokens.token_count = held;
  if (version == 2) tokens.vocabulary_of_format = vocabulary;
  if (has_masks) tokens.mask_byte = shard_header_bytes + held * bytes_of(tokens.type);
  return tokens;
}

}  // namespace holdfast::data
