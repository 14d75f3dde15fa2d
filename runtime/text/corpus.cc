#include "runtime/text/corpus.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>

#include "runtime/core/json.h"
#include "runtime/core/json_problem.h"
#include "runtime/os/fifo.h"
#include "runtime/os/foreign_text.h"
#include "runtime/os/retry.h"
#include "runtime/text/unicode.h"

namespace holdfast::text {
namespace {

constexpr std::uint64_t batch_bytes = std::uint64_t{1} << 20;

bool is_blank(std::string_view line) {
  return line.find_first_not_of(" \t\r") == std::string_view::npos;
}

struct OtherFormat {
  std::string_view begin, name;
};
constexpr std::array<OtherFormat, 9> other_formats = {{{"\x1F\x8B", "gzip"},
                                                       {"\x28\xB5\x2F\xFD", "zstd"},
                                                       {"\xFD"
                                                        "7zXZ",
                                                        "xz"},
                                                       {"BZh9", "bzip2"},
                                                       {"PK\x03\x04", "zip"},
                                                       {"PAR1", "Parquet"},
                                                       {"ARROW1", "Arrow"},
                                                       {"\xFF\xFE", "UTF-16"},
                                                       {"\xFE\xFF", "UTF-16"}}};

Result<void> expect_text(const std::string& path, std::string_view content) {
  for (const OtherFormat& format : other_formats) {
    if (!content.starts_with(format.begin)) continue;
    return fail(ExitCode::data, "{} begins as {} does, expected text in UTF-8; make a text file of it first",
                path, format.name);
  }
  return {};
}

}  // namespace

Result<CorpusReader> CorpusReader::open(Env& env, CorpusInput input) {
  CorpusReader reader(env, std::move(input));
  for (const std::string& path : reader.input_.paths) {
    HF_TRY(const FileStatus status, env.status(path));
    if (!status.exists) return fail(ExitCode::data, "the text file {} does not exist; check the path", path);
    if (status.directory)
      return fail(ExitCode::data,
                  "{} is a directory, expected a text file; name the files in it, as in {}/*.txt", path,
                  path);
    if (os::is_stream(path))
      return fail(
          ExitCode::data,
          "{} is a pipe or a device, expected a text file; write what comes out of it to a file first", path);
    reader.sizes_.push_back(status.bytes);
    reader.bytes_ += status.bytes;
  }
  return reader;
}

// Appends the next bytes of the file that is being read, at most as many.
Result<void> CorpusReader::read_more(std::string& target, std::uint64_t most) {
  const std::uint64_t count = std::min(most, sizes_[path_] - offset_);
  const std::size_t before = target.size();
  target.resize(before + count);
  HF_TRY_VOID(retry_storage(*env_, [&] {
    return file_->read_at(offset_, std::as_writable_bytes(std::span(target).subspan(before)));
  }));
  if (offset_ == 0) HF_TRY_VOID(expect_text(input_.paths[path_], std::string_view(target).substr(before)));
  offset_ += count;
  bytes_read_ += count;
  return {};
}

Result<bool> CorpusReader::next(DocumentBatch& batch) {
  batch.bytes.clear();
  batch.documents.clear();
  while (batch.documents.empty() && path_ < input_.paths.size()) {
    HF_TRY_VOID(input_.is_jsonl ? next_lines(batch) : next_files(batch));
  }
  return !batch.documents.empty();
}

Result<void> CorpusReader::next_files(DocumentBatch& batch) {
  while (path_ < input_.paths.size() && batch.bytes.size() < batch_bytes) {
    if (!batch.documents.empty() && sizes_[path_] > batch_bytes) return {};  // a large file is alone
    HF_TRY(file_, env_->open(input_.paths[path_], OpenMode::read));
    offset_ = 0;
    const std::size_t begin = batch.bytes.size();
    HF_TRY_VOID(read_more(batch.bytes, sizes_[path_]));
    batch.documents.push_back({.begin = begin, .bytes = batch.bytes.size() - begin, .path = path_});
    ++path_;
  }
  return {};
}

// Takes whole lines; the last one of a file may have no end.
Result<void> CorpusReader::next_lines(DocumentBatch& batch) {
  if (file_ == nullptr) {
    HF_TRY(file_, env_->open(input_.paths[path_], OpenMode::read));
    offset_ = line_ = 0;
  }
  batch.bytes = std::move(rest_);
  rest_.clear();
  std::size_t end = std::string::npos;
  while (end == std::string::npos && offset_ < sizes_[path_]) {
    const std::size_t before = batch.bytes.size();
    HF_TRY_VOID(read_more(batch.bytes, batch_bytes));
    const std::size_t found = std::string_view(batch.bytes).substr(before).rfind('\n');
    if (found != std::string_view::npos) end = before + found;
  }
  const std::size_t path = path_;
  if (offset_ == sizes_[path_]) {
    end = batch.bytes.size();
    file_.reset();
    ++path_;
  } else {
    rest_ = batch.bytes.substr(end + 1);
    batch.bytes.resize(end);
  }
  for (std::size_t begin = 0; begin < batch.bytes.size();) {
    const std::size_t line_end = std::min(batch.bytes.find('\n', begin), batch.bytes.size());
    ++line_;
    if (!is_blank(std::string_view(batch.bytes).substr(begin, line_end - begin)))
      batch.documents.push_back({.begin = begin, .bytes = line_end - begin, .path = path, .line = line_});
    begin = line_end + 1;
  }
  return {};
}

std::string CorpusReader::place_of(const DocumentBatch::Document& document) const {
  const std::string& path = input_.paths[document.path];
  return document.line == 0 ? path : fmt::format("{}, line {}", path, document.line);
}

Result<void> CorpusReader::placed(const DocumentBatch::Document& document,
                                  const Result<void>& outcome) const {
  if (outcome.ok()) return {};
  return fail(outcome.error().code, "{}: {}", place_of(document), outcome.error().message);
}

Result<std::string_view> CorpusReader::text_of(const DocumentBatch& batch,
                                               const DocumentBatch::Document& document,
                                               std::string& storage) const {
  const std::string_view raw = batch.raw(document);
  if (!input_.is_jsonl) return raw;
  const auto refuse = [&](std::string_view what, std::string_view advice) {
    return fail(ExitCode::data, "{}: {}; {}", place_of(document), what, advice);
  };
  std::string repaired;
  const std::string_view text = repaired_utf8(raw, repaired);
  const Json line = Json::parse_any(text);
  if (const std::string problem = line.is_null() ? core::json_problem(text) : ""; !problem.empty())
    return refuse(fmt::format("it is not JSON: {}", printable(problem.substr(0, 300))), "repair the line");
  if (!line.is_object())
    return refuse(fmt::format("\"{}\" is not an object of JSON", printable(raw.substr(0, 60))),
                  "a JSONL file has one in each line, as in {\"text\": \"...\"}");
  const JsonIterator found = line.find(input_.field);
  if (found == line.end()) {
    std::string names;
    for (const JsonMember& member : line.items()) names += (names.empty() ? "" : ", ") + member.key;
    return refuse(fmt::format("it has no field \"{}\", but {}", printable(input_.field),
                              names.empty() ? "none at all" : printable(names.substr(0, 200))),
                  "name the field with the text by " + input_.field_option);
  }
  if (!found->is_string())
    return refuse(fmt::format("the field \"{}\" is of type {}, expected a string", printable(input_.field),
                              found->type_name()),
                  "name the field with the text by " + input_.field_option);
  storage = found->text();
  return std::string_view(storage);
}

}  // namespace holdfast::text
