#include "runtime/run/event_log.h"

#include <fmt/core.h>

#include <iterator>
#include <memory>

#include "runtime/run/log_reader.h"

namespace holdfast::run {
namespace {

// The length of the well-formed UTF-8 sequence at the front of `text`, or 0 (Unicode 15, table 3-7).
std::size_t utf8_length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u; };
  const auto tail = [&](std::size_t i) { return (byte(i) & 0xc0u) == 0x80u; };
  const unsigned lead = byte(0);
  if (lead < 0x80u) return 1;
  if (lead >= 0xc2u && lead <= 0xdfu) return tail(1) ? 2 : 0;
  if (lead >= 0xe0u && lead <= 0xefu) {
    const bool overlong = lead == 0xe0u && byte(1) < 0xa0u;
    const bool surrogate = lead == 0xedu && byte(1) > 0x9fu;
    return tail(1) && tail(2) && !overlong && !surrogate ? 3 : 0;
  }
  if (lead >= 0xf0u && lead <= 0xf4u) {
    const bool overlong = lead == 0xf0u && byte(1) < 0x90u;
    const bool too_large = lead == 0xf4u && byte(1) > 0x8fu;
    return tail(1) && tail(2) && tail(3) && !overlong && !too_large ? 4 : 0;
  }
  return 0;
}

void append_escaped(std::string& out, std::string_view text) {
  out += '"';
  while (!text.empty()) {
    const std::size_t length = utf8_length(text);
    const char c = text.front();
    if (length == 0) {
      out += "\\ufffd";
    } else if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (static_cast<unsigned char>(c) < 0x20u) {
      fmt::format_to(std::back_inserter(out), "\\u{:04x}", static_cast<unsigned>(c));
    } else {
      out += text.substr(0, length);
    }
    text.remove_prefix(length == 0 ? 1 : length);
  }
  out += '"';
}

void append_name(std::string& out, std::string_view name) {
  if (out.back() != '{') out += ',';
  append_escaped(out, name);
  out += ':';
}

// Limit of the lines that wait: some two hundred thousand steps.
constexpr std::uint64_t memory_bytes = std::uint64_t{64} << 20;

std::unique_ptr<LineSink> wrapped(
    std::unique_ptr<LineSink> log,
    const std::function<std::unique_ptr<LineSink>(std::unique_ptr<LineSink>)>& wrap) {
  return wrap ? wrap(std::move(log)) : std::move(log);
}

}  // namespace

EventLine::EventLine() {
  text_.reserve(4096);
}

EventLine& EventLine::begin(std::string_view event, std::int64_t time_us) {
  text_.clear();
  text_ += '{';
  field(event_kind_field, event);
  return field(event_time_field, time_us);
}

EventLine& EventLine::field(std::string_view name, double value) {
  if (!std::isfinite(value)) return null_field(name);
  append_name(text_, name);
  std::array<char, 40> buffer{};
  const auto result = fmt::format_to_n(buffer.data(), buffer.size(), "{:.17g}", value);
  const std::string_view digits(buffer.data(), result.size);
  text_ += digits;
  // Readers take a number without this mark for an integer, and -0 loses its sign.
  if (digits.find_first_of(".e") == std::string_view::npos) text_ += ".0";
  return *this;
}

EventLine& EventLine::field(std::string_view name, std::int64_t value) {
  append_name(text_, name);
  fmt::format_to(std::back_inserter(text_), "{}", value);
  return *this;
}

EventLine& EventLine::field(std::string_view name, std::uint64_t value) {
  append_name(text_, name);
  fmt::format_to(std::back_inserter(text_), "{}", value);
  return *this;
}

EventLine& EventLine::field(std::string_view name, std::string_view value) {
  append_name(text_, name);
  append_escaped(text_, value);
  return *this;
}

EventLine& EventLine::null_field(std::string_view name) {
  append_name(text_, name);
  text_ += "null";
  return *this;
}

EventLine& EventLine::truth_field(std::string_view name, bool value) {
  append_name(text_, name);
  text_ += value ? "true" : "false";
  return *this;
}

EventLine& EventLine::counts(std::string_view name, const std::map<std::string, int>& counts) {
  object(name);
  for (const auto& [each, count] : counts) field(each, count);
  return end_object();
}

EventLine& EventLine::object(std::string_view name) {
  append_name(text_, name);
  text_ += '{';
  return *this;
}

EventLine& EventLine::end_object() {
  text_ += '}';
  return *this;
}

EventLine& EventLine::list(std::string_view name) {
  append_name(text_, name);
  text_ += '[';
  return *this;
}

EventLine& EventLine::element() {
  if (text_.back() != '[') text_ += ',';
  text_ += '{';
  return *this;
}

EventLine& EventLine::element(std::uint64_t value) {
  fmt::format_to(std::back_inserter(text_), "{}{}", text_.back() == '[' ? "" : ",", value);
  return *this;
}

EventLine& EventLine::end_list() {
  text_ += ']';
  return *this;
}

std::string_view EventLine::end() {
  text_ += '}';
  return text_;
}

void put_event_field(std::string_view name, const std::vector<EventKernel>& value, EventLine& line) {
  line.object(name);
  for (const EventKernel& kernel : value)
    line.object(kernel.op).field("name", kernel.name).field("why", kernel.why).end_object();
  line.end_object();
}

void put_event_field(std::string_view name, const std::vector<std::uint64_t>& value, EventLine& line) {
  line.list(name);
  for (const std::uint64_t each : value) line.element(each);
  line.end_list();
}

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
                       std::function<void()> before_line, std::function<bool()> may_write,
                       const std::function<std::unique_ptr<LineSink>(std::unique_ptr<LineSink>)>& wrap)
    : lines_(env,
             wrapped(std::make_unique<EventLog>(env, path, rotate_bytes, std::move(before_line),
                                                std::move(may_write)),
                     wrap),
             path, {.bytes = memory_bytes, .drops_oldest = true}) {}

}  // namespace holdfast::run
