#include "runtime/run/event_log.h"

#include <memory>
#include <utility>

#include "runtime/run/event_parts.h"

namespace holdfast::run {
namespace {

// Limit of the lines that wait: some two hundred thousand steps.
constexpr std::uint64_t memory_bytes = std::uint64_t{64} << 20;

}  // namespace

EventLog::EventLog(Env& env, const std::string& path, std::uint64_t rotate_bytes,
                   std::function<void()> before_line, std::function<bool()> may_write)
    : env_(&env),
      path_(path),
      rotate_bytes_(rotate_bytes),
      before_line_(std::move(before_line)),
      may_write_(std::move(may_write)),
      lines_(env, path, {.bytes = memory_bytes, .drops_oldest = true}) {}

void EventLog::others_have_written() {
  bytes_.reset();
  lines_.others_have_written();
}

bool EventLog::is_closed() {
  if (!may_write_ || may_write_()) return false;
  lines_.forget();
  return true;
}

Result<void> EventLog::insist(std::string_view line) {
  if (is_closed()) return fail(ExitCode::communication, "another start writes {} by now", path_);
  return lines_.insist(line);
}

Result<void> EventLog::append(std::string_view line) {
  if (before_line_) before_line_();
  if (is_closed()) return {};
  static_cast<void>(lines_.append(line).ok());  // there is always room for one more
  note_gap();
  if (bytes_.has_value()) *bytes_ += line.size() + 1;
  if (rotate_bytes_ > 0 && lines_.waiting() == 0) rotate();
  return {};
}

// Begins another part after a whole line. A log that cannot be rotated grows on; rotation is tried again when
// it has grown by some more.
void EventLog::rotate() {
  if (!bytes_.has_value()) {
    const Result<FileStatus> status = env_->status(path_);
    if (!status.ok()) return;
    bytes_ = status->bytes;
  }
  if (*bytes_ < rotate_bytes_) return;
  const bool rotated = rotate_events(*env_, path_).ok();
  bytes_ = rotated ? 0 : rotate_bytes_ - rotate_bytes_ / 8;
}

void EventLog::lost(std::uint64_t lines) {
  EventLine gap;  // line_ may hold the line that is being written
  write(put_event(GapEvent{.time_us = env_->wall_time_us(), .lines = lines}, gap));
}

Result<void> EventLog::flush() {
  if (is_closed()) return {};
  HF_TRY_VOID(lines_.flush());
  note_gap();
  return lines_.flush();
}

void EventLog::retry() {
  if (is_closed()) return;
  lines_.retry();
  note_gap();
}

void EventLog::note_gap() {
  if (lines_.waiting() > 0) return;
  const std::uint64_t dropped = lines_.take_dropped();
  if (dropped > 0) lost(dropped);
}

EventQueue::EventQueue(Env& env, const std::string& path, std::uint64_t rotate_bytes,
                       std::function<void()> before_line, std::function<bool()> may_write)
    : lines_(
          env,
          std::make_unique<EventLog>(env, path, rotate_bytes, std::move(before_line), std::move(may_write)),
          path, {.bytes = memory_bytes, .drops_oldest = true}) {}

}  // namespace holdfast::run
