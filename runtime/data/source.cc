#include "runtime/data/source.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <vector>

namespace holdfast {
namespace {

static_assert(std::endian::native == std::endian::little,
              "token files are little-endian, and so is this code");

constexpr std::uint64_t llmc_header_bytes = 1024;  // 256 int32: magic, version, number of tokens, unused
constexpr std::int64_t byte_vocabulary = 256;

struct ShardFormat {
  std::int32_t magic;
  std::int32_t version;
  std::uint64_t token_bytes;
  std::int64_t vocabulary;  // of the tokenizer: GPT-2's, Llama 3's
};
constexpr std::array<ShardFormat, 2> llmc_formats = {{{20240520, 1, 2, 50257}, {20240801, 7, 4, 128256}}};

// What else people have lying around, so that the sentence can say what it is.
struct ForeignFormat {
  std::int32_t magic;
  const char* name;
};
constexpr std::array<ForeignFormat, 7> foreign_formats = {{
    {20240522, "an llm.c evaluation file"},
    {20240326, "an llm.c model checkpoint"},
    {20240327, "an llm.c debug state"},
    {20240328, "an llm.c tokenizer"},
    {20240527, "an llm.c optimizer state"},
    {0x2e4e4942, "an llmq token shard"},       // "BIN."
    {0x44494d4d, "a Megatron dataset index"},  // "MMID"
}};

// Where the tokens are in a file and how they are stored.
struct TokenLayout {
  std::uint64_t first_byte = 0;
  std::uint64_t token_bytes = 1;
  std::uint64_t token_count = 0;
  std::int64_t vocabulary_needed = 0;
  std::int64_t vocabulary_of_format = 0;
};

std::string foreign_name(std::int32_t magic) {
  for (const ForeignFormat& format : foreign_formats) {
    if (format.magic == magic) return fmt::format(" (it looks like {})", format.name);
  }
  return "";
}

Result<TokenLayout> llmc_layout(File& file, std::uint64_t file_bytes) {
  if (file_bytes < llmc_header_bytes) {
    return fail(
        ExitCode::data,
        "{} is {} bytes long, too short for the {}-byte header of an llm.c token shard; copy the file again, "
        "or use format = \"text\" if it is text",
        file.path(), file_bytes, llmc_header_bytes);
  }
  std::array<std::int32_t, 3> header{};
  HF_TRY_VOID(file.read_at(0, std::as_writable_bytes(std::span(header))));
  const auto [magic, version, count] = header;
  const auto* format = std::ranges::find(llmc_formats, magic, &ShardFormat::magic);
  if (format == llmc_formats.end()) {
    return fail(
        ExitCode::data,
        "{} is not an llm.c token shard: it starts with {}{}, expected {} (uint16 tokens) or {} (uint32 "
        "tokens); the formats are \"text\" (every byte is a token) and \"llmc\"",
        file.path(), magic, foreign_name(magic), llmc_formats[0].magic, llmc_formats[1].magic);
  }
  if (version != format->version) {
    return fail(
        ExitCode::data,
        "{} is an llm.c token shard (magic {}) of version {}, expected version {}; write it again with a "
        "matching tool",
        file.path(), magic, version, format->version);
  }
  const std::uint64_t held = (file_bytes - llmc_header_bytes) / format->token_bytes;
  const std::uint64_t expected_bytes =
      llmc_header_bytes + static_cast<std::uint64_t>(count) * format->token_bytes;
  if (count < 0 || file_bytes != expected_bytes) {
    return fail(ExitCode::data,
                "{}: its header says {} tokens of {} bytes, but the file has {} bytes, room for {}; it is "
                "{}, copy or "
                "write it again",
                file.path(), count, format->token_bytes, file_bytes, held,
                count >= 0 && file_bytes < expected_bytes ? "truncated" : "damaged");
  }
  return TokenLayout{.first_byte = llmc_header_bytes,
                     .token_bytes = format->token_bytes,
                     .token_count = held,
                     .vocabulary_needed = 0,
                     .vocabulary_of_format = format->vocabulary};
}

// The rule is in source.h.
Result<Digest> fingerprint_of(File& file, std::uint64_t file_bytes) {
  constexpr std::uint64_t piece_bytes = std::uint64_t{1} << 20;
  constexpr std::uint64_t whole_bytes_max = std::uint64_t{256} << 20;
  constexpr std::uint64_t spread_pieces = 258;  // head, tail and 256 between them
  std::vector<std::byte> buffer(std::min(file_bytes, piece_bytes));
  DigestStream stream;
  stream.add(file_bytes);
  const auto add = [&](std::uint64_t offset, std::uint64_t bytes) -> Result<void> {
    const std::span<std::byte> piece = std::span(buffer).first(bytes);
    HF_TRY_VOID(file.read_at(offset, piece));
    stream.add(std::span<const std::byte>(piece));
    return {};
  };
  if (file_bytes <= whole_bytes_max) {
    for (std::uint64_t offset = 0; offset < file_bytes; offset += piece_bytes) {
      HF_TRY_VOID(add(offset, std::min(piece_bytes, file_bytes - offset)));
    }
    return stream.finish();
  }
  const std::uint64_t last = file_bytes - piece_bytes;
  for (std::uint64_t i = 0; i < spread_pieces; ++i) {
    // last * i could pass 2^64 only for files beyond 2^55 bytes
    HF_TRY_VOID(add(last * i / (spread_pieces - 1), piece_bytes));
  }
  return stream.finish();
}

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

// Reads straight from the file at 64-bit offsets: no state, so any number of threads may read.
class FileTokenSource final : public TokenSource {
 public:
  FileTokenSource(std::unique_ptr<File> file, TokenLayout layout, Digest fingerprint)
      : file_(std::move(file)), layout_(layout), fingerprint_(fingerprint) {}

  std::uint64_t token_count() const override { return layout_.token_count; }
  std::int64_t vocabulary_needed() const override { return layout_.vocabulary_needed; }
  std::int64_t vocabulary_of_format() const override { return layout_.vocabulary_of_format; }
  Digest fingerprint() const override { return fingerprint_; }
  const std::string& path() const override { return file_->path(); }

  Result<void> read(std::uint64_t first_token, std::span<std::int32_t> target,
                    std::int64_t vocabulary) override {
    HF_CHECK(first_token <= layout_.token_count && target.size() <= layout_.token_count - first_token,
             "tokens {} + {} of {} wanted, it has {}", first_token, target.size(), path(),
             layout_.token_count);
    // The stored tokens go to the end of the target and are widened in place from the front: a token is read
    // before anything is written over it, and nothing is allocated.
    const std::span<std::byte> bytes = std::as_writable_bytes(target);
    const std::span<std::byte> stored = bytes.last(target.size() * layout_.token_bytes);
    HF_TRY_VOID(file_->read_at(layout_.first_byte + first_token * layout_.token_bytes, stored));
    const std::uint64_t limit =
        vocabulary > 0 ? static_cast<std::uint64_t>(vocabulary) : std::uint64_t{1} << 31;
    for (std::size_t i = 0; i < target.size(); ++i) {
      std::uint32_t token = 0;
      std::memcpy(&token, stored.data() + i * layout_.token_bytes, layout_.token_bytes);
      if (token >= limit) return too_large(first_token + i, token, limit);
      target[i] = static_cast<std::int32_t>(token);
    }
    return {};
  }

 private:
  Error too_large(std::uint64_t index, std::uint32_t token, std::uint64_t vocabulary) const {
    return fail(
        ExitCode::data,
        "{}: token {} is {}, but the vocabulary has {} entries (largest token {}); set model.vocabulary to "
        "more than {}, or use data made with this model's tokenizer",
        path(), index, token, vocabulary, vocabulary - 1, token);
  }

  std::unique_ptr<File> file_;
  TokenLayout layout_;
  Digest fingerprint_;
};

// A regular file that can be opened and holds something.
Result<std::unique_ptr<File>> open_data_file(Env& env, const std::string& path) {
  HF_TRY(const FileStatus status, env.status(path));
  if (!status.exists) {
    return fail(
        ExitCode::data,
        "the data file {} does not exist; check the path (a relative path starts at the directory in which "
        "the program was started)",
        path);
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

}  // namespace

Result<std::unique_ptr<TokenSource>> TokenSource::open(Env& env, const SourceConfig& config,
                                                       std::int64_t sequence_length) {
  HF_CHECK(sequence_length >= 1);
  HF_TRY(std::unique_ptr<File> file, open_data_file(env, config.path));
  HF_TRY(const std::uint64_t file_bytes, file->size());
  TokenLayout layout = {.token_count = file_bytes,
                        .vocabulary_needed = byte_vocabulary,
                        .vocabulary_of_format = byte_vocabulary};
  if (config.format == "llmc") {
    HF_TRY(layout, llmc_layout(*file, file_bytes));
  } else if (config.format != "text") {
    return fail(ExitCode::data, "{}: there is no data format \"{}\"; the formats are \"text\" and \"llmc\"",
                config.path, config.format);
  }
  HF_TRY_VOID(check_length(config.path, layout.token_count, sequence_length));
  HF_TRY(const Digest fingerprint, fingerprint_of(*file, file_bytes));
  return std::unique_ptr<TokenSource>(
      std::make_unique<FileTokenSource>(std::move(file), layout, fingerprint));
}

Result<std::string> detect_format(Env& env, const std::string& path) {
  HF_TRY(const std::unique_ptr<File> file, open_data_file(env, path));
  HF_TRY(const std::uint64_t file_bytes, file->size());
  std::int32_t magic = 0;
  if (file_bytes < llmc_header_bytes) return std::string("text");
  HF_TRY_VOID(file->read_at(0, std::as_writable_bytes(std::span(&magic, 1))));
  const bool known = std::ranges::find(llmc_formats, magic, &ShardFormat::magic) != llmc_formats.end();
  return std::string(known ? "llmc" : "text");
}

}  // namespace holdfast
