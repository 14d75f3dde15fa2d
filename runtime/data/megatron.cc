#include "runtime/data/megatron.h"

#include <fmt/core.h>

#include <array>
#include <cstring>
#include <limits>
#include <span>
#include <string_view>

namespace holdfast::data {
namespace {

// The index: magic, version u64, type u8, number of sequences u64, of document indices u64, then the arrays.
// Nothing in it is aligned.
constexpr std::string_view magic("MMIDIDX\0\0", 9);
constexpr std::uint64_t version_byte = 9, type_byte = 17, sequences_byte = 18, documents_byte = 26;
constexpr std::uint64_t index_header_bytes = 34;

template <typename T>
T load(std::span<const std::byte> bytes, std::uint64_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

// An array inside a file, read in order and in pieces.
template <typename T>
class FileArray {
 public:
  FileArray(File& file, std::uint64_t first_byte, std::uint64_t count)
      : file_(file), first_byte_(first_byte), count_(count) {}

  Result<T> at(std::uint64_t i) {
    HF_CHECK(i < count_);
    if (i < begin_ || i >= end_) {
      begin_ = i;
      end_ = std::min(count_, i + piece);
      buffer_.resize((end_ - begin_) * sizeof(T));
      HF_TRY_VOID(file_.read_at(first_byte_ + begin_ * sizeof(T), buffer_));
    }
    return load<T>(buffer_, (i - begin_) * sizeof(T));
  }

 private:
  static constexpr std::uint64_t piece = 65536;
  File& file_;
  std::uint64_t first_byte_, count_;
  std::uint64_t begin_ = 0, end_ = 0;
  std::vector<std::byte> buffer_;
};

class Index {
 public:
  Index(File& file, const File& data) : file_(file), data_(data) {}

  Result<void> read_header();
  // Fills in where the tokens are; `data_bytes` is the size of the data file.
  Result<void> check_sequences(std::uint64_t data_bytes, TokenFile& tokens);
  // The position of the first token of each document that has one, or nothing when not `keep`.
  Result<std::vector<std::uint64_t>> check_documents(bool keep);

 private:
  Error damaged(const std::string& what) const {
    return fail(ExitCode::data,
                "{}: {}; the index is damaged or belongs to another {}, copy both files or write them again",
                file_.path(), what, data_.path());
  }
  Result<void> read_type(std::uint8_t code);
  FileArray<std::int32_t> lengths() { return {file_, index_header_bytes, sequences_}; }
  FileArray<std::int64_t> offsets() { return {file_, index_header_bytes + 4 * sequences_, sequences_}; }
  FileArray<std::int64_t> documents() { return {file_, index_header_bytes + 12 * sequences_, documents_}; }

  File& file_;
  const File& data_;
  TokenType type_ = TokenType::u8;
  std::uint64_t sequences_ = 0, documents_ = 0, token_count_ = 0;
};

Result<void> Index::read_type(std::uint8_t code) {
  struct Code {
    std::uint8_t code;
    TokenType type;
  };
  static constexpr std::array<Code, 6> codes = {{{1, TokenType::u8},
                                                 {2, TokenType::i8},
                                                 {3, TokenType::i16},
                                                 {4, TokenType::i32},
                                                 {5, TokenType::i64},
                                                 {8, TokenType::u16}}};
  for (const Code& known : codes) {
    if (known.code != code) continue;
    type_ = known.type;
    return {};
  }
  if (code == 6 || code == 7) {
    return fail(ExitCode::data,
                "{} says that {} holds floating-point numbers (type {}), expected whole numbers: it is no "
                "dataset of tokens",
                file_.path(), data_.path(), code);
  }
  return damaged(
      fmt::format("it names the type {}, expected 1 (u8), 2 (i8), 3 (i16), 4 (i32), 5 (i64) or 8 "
                  "(u16)",
                  code));
}

Result<void> Index::read_header() {
  HF_TRY(const std::uint64_t bytes, file_.size());
  std::array<std::byte, index_header_bytes> header{};
  if (bytes >= magic.size()) {
    HF_TRY_VOID(file_.read_at(0, std::span(header).first(std::min(bytes, index_header_bytes))));
  }
  if (std::memcmp(header.data(), magic.data(), magic.size()) != 0) {
    return fail(ExitCode::data,
                "{} is not the index of a Megatron dataset: it does not start with MMIDIDX{}; name the .bin "
                "or .idx file that preprocess_data.py wrote",
                file_.path(), foreign_name(load<std::int32_t>(header, 0)));
  }
  if (bytes < index_header_bytes) {
    return damaged(
        fmt::format("it is {} bytes long, too short for its {}-byte header", bytes, index_header_bytes));
  }
  if (const auto version = load<std::uint64_t>(header, version_byte); version != 1) {
    return fail(ExitCode::data, "{} is a Megatron index of version {}, expected version 1; write it again",
                file_.path(), version);
  }
  HF_TRY_VOID(read_type(load<std::uint8_t>(header, type_byte)));
  sequences_ = load<std::uint64_t>(header, sequences_byte);
  documents_ = load<std::uint64_t>(header, documents_byte);
  const bool countable = sequences_ <= bytes / 12 && documents_ <= bytes / 8;
  const std::uint64_t expected = countable ? index_header_bytes + 12 * sequences_ + 8 * documents_ : 0;
  if (countable && (bytes == expected || bytes == expected + sequences_)) return {};
  return damaged(
      fmt::format("its header says {} sequences and {} document indices, which does not fit its {} "
                  "bytes",
                  sequences_, documents_, bytes));
}

Result<void> Index::check_sequences(std::uint64_t data_bytes, TokenFile& tokens) {
  FileArray<std::int32_t> length = lengths();
  FileArray<std::int64_t> offset = offsets();
  std::uint64_t end = 0;  // of the sequences so far, in bytes
  for (std::uint64_t i = 0; i < sequences_; ++i) {
    HF_TRY(const std::int32_t own_length, length.at(i));
    HF_TRY(const std::int64_t own_offset, offset.at(i));
    if (own_length < 0) return damaged(fmt::format("sequence {} has {} tokens", i, own_length));
    if (own_offset < 0 || static_cast<std::uint64_t>(own_offset) != end) {
      return damaged(
          fmt::format("sequence {} begins at byte {} of {}, expected {}, where the one before ends", i,
                      own_offset, data_.path(), end));
    }
    end += static_cast<std::uint64_t>(own_length) * bytes_of(type_);
    if (end > data_bytes) break;
  }
  if (end != data_bytes) {
    return damaged(fmt::format("its {} sequences take {}{} bytes, but {} has {}", sequences_,
                               end > data_bytes ? "at least " : "", end, data_.path(), data_bytes));
  }
  token_count_ = end / bytes_of(type_);
  tokens.type = type_;
  tokens.token_count = token_count_;
  return {};
}

Result<std::vector<std::uint64_t>> Index::check_documents(bool keep) {
  FileArray<std::int64_t> document = documents();
  FileArray<std::int64_t> offset = offsets();
  std::vector<std::uint64_t> starts;
  std::int64_t before = 0;
  for (std::uint64_t i = 0; i < documents_; ++i) {
    HF_TRY(const std::int64_t first, document.at(i));  // sequence
    const bool in_order = i == 0 ? first == 0 : first >= before;
    if (!in_order || first > static_cast<std::int64_t>(sequences_)) {
      return damaged(fmt::format("document {} begins with sequence {}, expected {} up to {}", i, first,
                                 i == 0 ? 0 : before, i == 0 ? 0 : sequences_));
    }
    before = first;
    if (!keep || first == static_cast<std::int64_t>(sequences_)) continue;
    HF_TRY(const std::int64_t byte, offset.at(static_cast<std::uint64_t>(first)));
    const std::uint64_t start = static_cast<std::uint64_t>(byte) / bytes_of(type_);
    if (start < token_count_ && (starts.empty() || starts.back() != start)) starts.push_back(start);
  }
  if (documents_ == 0 || before != static_cast<std::int64_t>(sequences_)) {
    return damaged(fmt::format("its documents end with sequence {}, expected {}", before, sequences_));
  }
  return starts;
}

Result<std::unique_ptr<File>> open_part(Env& env, const std::string& path, const MegatronPaths& paths) {
  HF_TRY(const FileStatus status, env.status(path));
  if (status.exists) return open_data_file(env, path);
  return fail(ExitCode::data,
              "the data file {} does not exist; a Megatron dataset is the two files {} and {}: check the "
              "path, or copy what is missing",
              path, paths.data, paths.index);
}

}  // namespace

MegatronPaths megatron_paths(const std::string& path) {
  std::string name = path;
  for (const std::string_view ending : {".bin", ".idx"}) {
    if (!path.ends_with(ending)) continue;
    name.resize(path.size() - ending.size());
    break;
  }
  return {.data = name + ".bin", .index = name + ".idx"};
}

Result<TokenFile> open_megatron(Env& env, const std::string& path, bool with_documents) {
  const MegatronPaths paths = megatron_paths(path);
  TokenFile tokens;
  HF_TRY(tokens.index, open_part(env, paths.index, paths));
  HF_TRY(tokens.file, open_part(env, paths.data, paths));
  HF_TRY(const std::uint64_t data_bytes, tokens.file->size());
  Index index(*tokens.index, *tokens.file);
  HF_TRY_VOID(index.read_header());
  HF_TRY_VOID(index.check_sequences(data_bytes, tokens));
  HF_TRY(std::vector<std::uint64_t> starts, index.check_documents(with_documents));
  if (with_documents) tokens.document_starts = std::move(starts);
  return tokens;
}

namespace {

Error already_there(const std::string& path) {
  return fail(ExitCode::config, "{} exists already; remove it, or give another name", path);
}

std::string directory_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, std::max<std::size_t>(slash, 1));
}

}  // namespace

MegatronWriter::MegatronWriter(Env& env, const std::string& name, std::int64_t vocabulary)
    : env_(env),
      paths_{.data = name + ".bin", .index = name + ".idx"},
      type_(vocabulary <= std::numeric_limits<std::uint16_t>::max() + 1 ? TokenType::u16 : TokenType::i32),
      documents_{0},
      lock_path_(name + ".partial") {}

Result<std::unique_ptr<MegatronWriter>> MegatronWriter::create(Env& env, const std::string& name,
                                                               std::int64_t vocabulary) {
  std::unique_ptr<MegatronWriter> writer(new MegatronWriter(env, name, vocabulary));
  HF_TRY_VOID(writer->take_lock());
  for (const std::string& path : {writer->paths_.data, writer->paths_.index}) {
    HF_TRY(const FileStatus status, env.status(path));
    if (status.exists) return already_there(path);
    HF_TRY_VOID(env.remove(writer->partial(path)));  // of a writer that was killed
  }
  const auto open = [&](const std::string& path) -> Result<std::unique_ptr<File>> {
    Result<std::unique_ptr<File>> file = env.open(writer->partial(path), OpenMode::create);
    if (!file.ok()) return with_code(ExitCode::data, file.error());
    return file;
  };
  HF_TRY(writer->data_, open(writer->paths_.data));
  HF_TRY(writer->index_, open(writer->paths_.index));
  return writer;
}

Result<void> MegatronWriter::take_lock() {
  Result<std::unique_ptr<FileLock>> lock = env_.lock(lock_path_, "", 0);
  if (!lock.ok() && lock.error().code == ExitCode::communication) {
    return fail(
        ExitCode::config,
        "{} and {} are being written by another process, which holds a lock on {}; wait for it, or give "
        "another name",
        paths_.data, paths_.index, lock_path_);
  }
  if (!lock.ok()) return with_code(ExitCode::data, lock.error());
  lock_ = std::move(lock).value();
  return {};
}

// Without the lock, the files are those of another one.
MegatronWriter::~MegatronWriter() {
  if (lock_ == nullptr) return;
  data_.reset();
  index_.reset();
  for (const std::string& path : {partial(paths_.data), partial(paths_.index), lock_path_})
    static_cast<void>(env_.remove(path).ok());  // the first error is reported
}

Result<void> MegatronWriter::append(std::span<const std::uint32_t> tokens) {
  constexpr std::size_t flush_bytes = std::size_t{4} << 20;
  const std::size_t width = bytes_of(type_);
  std::size_t at = buffer_.size();
  buffer_.resize(at + tokens.size() * width);
  for (const std::uint32_t token : tokens) {
    std::memcpy(buffer_.data() + at, &token, width);  // little-endian
    at += width;
  }
  token_count_ += tokens.size();
  document_tokens_ += tokens.size();
  return buffer_.size() < flush_bytes ? Result<void>() : flush();
}

Result<void> MegatronWriter::flush() {
  const Result<void> outcome = data_->write_at(written_, buffer_);
  if (!outcome.ok()) return with_code(ExitCode::data, outcome.error());
  written_ += buffer_.size();
  buffer_.clear();
  return {};
}

// A sequence has no more tokens than its length can say, so a long document has several.
Result<void> MegatronWriter::end_document() {
  constexpr std::uint64_t sequence_most = std::uint64_t{1} << 30;
  while (document_tokens_ > 0) {
    const std::uint64_t length = std::min(document_tokens_, sequence_most);
    lengths_.push_back(static_cast<std::int32_t>(length));
    document_tokens_ -= length;
  }
  documents_.push_back(static_cast<std::int64_t>(lengths_.size()));
  return {};
}

Result<void> MegatronWriter::write_index() {
  const auto add = [this](const auto& value) {
    const auto bytes = std::as_bytes(std::span(&value, 1));
    buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
  };
  for (const char c : magic) add(c);
  add(std::uint64_t{1});                                            // version
  add(static_cast<std::uint8_t>(type_ == TokenType::u16 ? 8 : 4));  // read_type() has the codes
  add(std::uint64_t{lengths_.size()});
  add(std::uint64_t{documents_.size()});
  for (const std::int32_t length : lengths_) add(length);
  std::int64_t offset = 0;
  for (const std::int32_t length : lengths_) {
    add(offset);
    offset += length * static_cast<std::int64_t>(bytes_of(type_));
  }
  for (const std::int64_t first : documents_) add(first);
  return index_->write_at(0, buffer_);
}

Result<void> MegatronWriter::store() {
  HF_TRY_VOID(flush());
  HF_TRY_VOID(write_index());
  HF_TRY_VOID(data_->sync());
  return index_->sync();
}

// A second name replaces nothing. Some file systems have none; there a file that comes at this moment is replaced.
Result<void> MegatronWriter::give_name(const std::string& path) {
  if (env_.link(partial(path), path).ok()) {
    named_.push_back(path);
    return env_.remove(partial(path));
  }
  HF_TRY(const FileStatus status, env_.status(path));
  if (status.exists || status.link) return already_there(path);
  HF_TRY_VOID(env_.rename(partial(path), path));
  named_.push_back(path);
  return {};
}

Result<void> MegatronWriter::finish(std::span<MegatronWriter* const> writers) {
  const auto finish_all = [&]() -> Result<void> {
    for (MegatronWriter* writer : writers) HF_TRY_VOID(writer->store());
    for (MegatronWriter* writer : writers) HF_TRY_VOID(writer->give_name(writer->paths_.data));
    for (MegatronWriter* writer : writers) HF_TRY_VOID(writer->give_name(writer->paths_.index));
    for (MegatronWriter* writer : writers)
      HF_TRY_VOID(writer->env_.sync_directory(directory_of(writer->paths_.data)));
    return {};
  };
  const Result<void> outcome = finish_all();
  if (outcome.ok()) return {};
  for (MegatronWriter* writer : writers) {
    for (const std::string& path : writer->named_) static_cast<void>(writer->env_.remove(path).ok());
  }
  return with_code(outcome.error().code == ExitCode::config ? ExitCode::config : ExitCode::data,
                   outcome.error());
}

}  // namespace holdfast::data
