#include "runtime/run/log_reader.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <string_view>
#include <utility>

#include "runtime/os/foreign_text.h"
#include "runtime/run/event_reading.h"

namespace holdfast::run {
namespace {

constexpr std::string_view suffix = ".jsonl";

std::string stem_of(const std::string& path) {
  HF_CHECK(path.ends_with(suffix));
  return path.substr(0, path.size() - suffix.size()) + "-";
}

std::string warning_of(const RunPaths& paths, const std::vector<std::uint64_t>& numbers) {
  std::vector<std::string> missing;
  constexpr std::size_t named = 3;
  std::uint64_t count = 0, expected = 1;
  for (const std::uint64_t number : numbers) {
    for (; expected < number; ++expected, ++count)
      if (missing.size() < named) missing.push_back(event_part(paths.events(), expected));
    expected = number + 1;
  }
  if (count == 0) return "";
  return fmt::format("{}{} {} missing: what the log said there is not counted, the rest is",
                     fmt::join(missing, ", "),
                     count > named ? fmt::format(" and {} more parts of the log", count - named) : "",
                     count == 1 ? "is" : "are");
}

}  // namespace

std::string event_part(const std::string& path, std::uint64_t number) {
  return fmt::format("{}{:04d}{}", stem_of(path), number, suffix);
}

Result<std::vector<std::uint64_t>> event_parts(Env& env, const std::string& path) {
  const std::size_t slash = path.rfind('/');
  const std::string stem = stem_of(path).substr(slash + 1);  // npos + 1 is 0
  std::vector<std::uint64_t> numbers;
  HF_TRY(const std::vector<std::string> names,
         env.list(slash == std::string::npos ? "." : path.substr(0, slash)));
  for (const std::string& name : names) {
    if (!name.starts_with(stem) || !name.ends_with(suffix)) continue;
    const char* const begin = name.data() + stem.size();
    const char* const end = name.data() + name.size() - suffix.size();
    std::uint64_t number = 0;
    const auto [rest, error] = std::from_chars(begin, end, number);
    if (error == std::errc() && rest == end && event_part(path, number).ends_with("/" + name))
      numbers.push_back(number);
  }
  std::ranges::sort(numbers);
  return numbers;
}

Result<void> rotate_events(Env& env, const std::string& path) {
  HF_TRY(const std::vector<std::uint64_t> numbers, event_parts(env, path));
  return env.rename(path, event_part(path, numbers.empty() ? 1 : numbers.back() + 1));
}

Result<LogReader> LogReader::open(Env& env, const RunPaths& paths) {
  constexpr int tries = 5;
  const auto no_run = [&] {
    return fail(ExitCode::config,
                "{} is no run directory: it holds no events.jsonl. Give the run.directory of a run that has "
                "started",
                paths.directory);
  };
  HF_TRY(const FileStatus directory, env.status(paths.directory));
  if (!directory.exists || !directory.directory) return no_run();
  for (int i = 0;; ++i) {
    LogReader reader;
    HF_TRY(const std::vector<std::uint64_t> numbers, event_parts(env, paths.events()));
    HF_TRY(const FileStatus newest, env.status(paths.events()));
    const auto open_part = [&](const std::string& path) -> Result<void> {
      HF_TRY(std::unique_ptr<File> file, env.open(path, OpenMode::read));
      HF_TRY(const std::uint64_t bytes, file->size());
      reader.bytes_ += bytes;
      reader.parts_.push_back({.file = std::move(file), .bytes = bytes});
      return {};
    };
    Result<void> opened;
    for (const std::uint64_t number : numbers) {
      if (opened.ok()) opened = open_part(event_part(paths.events(), number));
    }
    if (opened.ok() && newest.exists) {
      opened = open_part(paths.events());
      if (opened.ok()) reader.newest_bytes_ = reader.parts_.back().bytes;
    }
    HF_TRY(const std::vector<std::uint64_t> numbers_now, event_parts(env, paths.events()));
    if (numbers_now != numbers && i < tries) continue;  // one was rotated meanwhile
    HF_TRY_VOID(opened);
    if (reader.parts_.empty()) return no_run();
    reader.warning_ = warning_of(paths, numbers);
    return reader;
  }
}

Result<std::string> LogReader::read(std::uint64_t begin, std::uint64_t bytes) const {
  std::string text(bytes, '\0');
  std::uint64_t part_begin = 0, done = 0;
  for (const Part& part : parts_) {
    const std::uint64_t from = begin + done;
    if (done < bytes && from < part_begin + part.bytes) {
      const std::uint64_t count = std::min(bytes - done, part_begin + part.bytes - from);
      HF_TRY_VOID(part.file->read_at(from - part_begin,
                                     std::as_writable_bytes(std::span(text).subspan(done, count))));
      done += count;
    }
    part_begin += part.bytes;
  }
  HF_CHECK(done == bytes);
  return text;
}

// A piece at a time: a log may be larger than memory. What has no end of a line for longer than any event is
// skipped.
Result<void> LogReader::for_each(const std::function<void(const Json&)>& take) const {
  constexpr std::uint64_t piece_bytes = 4 << 20;
  std::string text;  // begins with a line, or inside one that is skipped
  bool inside = false;
  for (std::uint64_t begin = 0; begin < bytes_;) {
    const std::uint64_t count = std::min(piece_bytes, bytes_ - begin);
    HF_TRY(const std::string piece, read(begin, count));
    text += piece;
    begin += count;
    if (inside) {
      const std::size_t end = text.find('\n');
      inside = end == std::string::npos;
      text.erase(0, inside ? text.size() : end + 1);
    }
    const std::size_t whole = begin == bytes_ ? text.size() : text.rfind('\n') + 1;  // npos + 1 is 0
    for_each_event(std::string_view(text).substr(0, whole), take);
    text.erase(0, whole);
    if (text.size() <= text_limits::event_line) continue;
    inside = true;
    text.clear();
  }
  return {};
}

// A log that is shorter by now has lost parts; what it has more than that will be read.
Result<void> LogFollower::read_new(const std::function<void(std::string_view)>& take) {
  constexpr std::uint64_t piece_bytes = 4 << 20;
  HF_TRY(const LogReader log, LogReader::open(*env_, paths_));
  bytes_ = std::min(bytes_, log.bytes());
  std::string text;  // from bytes_ on
  for (std::uint64_t read = bytes_; read < log.bytes();) {
    HF_TRY(const std::string piece, log.read(read, std::min(log.bytes() - read, piece_bytes)));
    read += piece.size();
    text += piece;
    std::size_t whole = text.rfind('\n') + 1;  // npos + 1 is 0; the last line may be half written
    take(std::string_view(text).substr(0, whole));
    if (text.size() - whole > text_limits::event_line) whole = text.size();  // no event is so long
    text.erase(0, whole);
    bytes_ += whole;
  }
  const std::uint64_t left = log.bytes() - bytes_;
  newest_bytes_ = log.newest_bytes() - std::min(left, log.newest_bytes());
  return {};
}

std::uint64_t log_bytes(Env& env, const RunPaths& paths) {
  const Result<LogReader> reader = LogReader::open(env, paths);
  return reader.ok() ? reader->bytes() : 0;
}

}  // namespace holdfast::run
