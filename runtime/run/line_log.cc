#include "runtime/run/line_log.h"

#include <fmt/core.h>

#include <algorithm>
#include <memory>

#include "runtime/core/units.h"
#include "runtime/os/console.h"

namespace holdfast::run {
namespace {

std::string count_of_lines(std::uint64_t count) {
  return fmt::format("{} line{}", count, count == 1 ? "" : "s");
}

}  // namespace

LineLog::~LineLog() {
  if (waiting_.empty()) return;
  const bool reported = owner_knows_;
  if (const Result<void> written = flush(); !written.ok() && !reported)
    print_message("{}, and never will be", written.error().message);
}

Result<void> LineLog::append(std::string_view line) {
  Result<void> written = write_waiting();
  if (written.ok()) written = write(line);
  if (!written.ok()) return hold(line, written.error());
  if (failing_) end_outage();
  return {};
}

Result<void> LineLog::insist(std::string_view line) {
  Result<void> written = write_waiting();
  if (written.ok()) written = write(line);
  if (!written.ok()) return with_code(ExitCode::checkpoint, written.error());
  if (failing_) end_outage();
  return {};
}

Result<void> LineLog::flush() {
  if (const Result<void> written = write_waiting(); !written.ok()) {
    owner_knows_ = true;
    const std::uint64_t missing = waiting_.size() + dropped_of_outage_;
    return fail_because(written.error(), ExitCode::checkpoint, "{}; {} {} not in it", written.error().message,
                        count_of_lines(missing), missing == 1 ? "is" : "are");
  }
  if (failing_) end_outage();
  return {};
}

void LineLog::retry() {
  if (write_waiting().ok() && failing_) end_outage();
}

void LineLog::forget() {
  waiting_.clear();
  waiting_bytes_ = 0;
  failing_ = false;
}

Result<void> LineLog::write_waiting() {
  while (!waiting_.empty()) {
    HF_TRY_VOID(write(waiting_.front()));
    waiting_bytes_ -= waiting_.front().size();
    waiting_.pop_front();
    ++waited_;
  }
  return {};
}

void LineLog::end_outage() {
  failing_ = owner_knows_ = false;
  const std::uint64_t dropped = std::exchange(dropped_of_outage_, 0);
  print_message("{} is written again, with {} that waited{}", path_,
                count_of_lines(std::exchange(waited_, 0)),
                dropped == 0 ? "" : fmt::format(", but without {} before them", count_of_lines(dropped)));
}

Result<void> LineLog::write(std::string_view line) {
  if (!ends_with_line_) {
    HF_TRY(const std::string torn, torn_end(line.size() + 1));
    if (line.starts_with(torn)) {
      line.remove_prefix(torn.size());
    } else {
      HF_TRY_VOID(env_->append_line(path_, ""));
    }
  }
  // One that failed only when the file was closed may be there all the same, and is then there twice: better
  // than not at all.
  const Result<void> written = env_->append_line(path_, line);
  ends_with_line_ = written.ok();
  return written;
}

// Returns the bytes after the last newline of the file, or the last `bytes_max` of them.
Result<std::string> LineLog::torn_end(std::size_t bytes_max) {
  HF_TRY(const FileStatus status, env_->status(path_));
  if (!status.exists || status.bytes == 0) return std::string();
  HF_TRY(const std::unique_ptr<File> file, env_->open(path_, OpenMode::read));
  std::string end(std::min<std::uint64_t>(status.bytes, bytes_max), '\0');
  HF_TRY_VOID(file->read_at(status.bytes - end.size(), std::as_writable_bytes(std::span(end))));
  return end.substr(end.rfind('\n') + 1);  // npos + 1 is 0
}

Result<void> LineLog::hold(std::string_view line, const Error& reason) {
  if (!std::exchange(failing_, true)) {
    print_message(
        "{}. The run goes on: lines wait in memory, up to {} of them, and each one that follows is another "
        "try",
        reason.message, format_bytes(memory_.bytes));
  }
  while (memory_.drops_oldest && !waiting_.empty() && waiting_bytes_ + line.size() > memory_.bytes) {
    waiting_bytes_ -= waiting_.front().size();
    waiting_.pop_front();
    ++dropped_, ++dropped_of_outage_;
  }
  if (!memory_.drops_oldest && waiting_bytes_ + line.size() > memory_.bytes) {
    return fail_because(reason, ExitCode::checkpoint, "{}; memory is full with {} that waited before",
                        reason.message, count_of_lines(waiting_.size()));
  }
  waiting_.emplace_back(line);
  waiting_bytes_ += line.size();
  return {};
}

}  // namespace holdfast::run
