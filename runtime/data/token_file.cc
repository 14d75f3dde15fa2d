#include "runtime/data/token_file.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <bit>

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

}  // namespace holdfast::data
