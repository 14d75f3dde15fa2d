#include "runtime/metrics/metrics_sink.h"

#include <algorithm>
#include <utility>

#include "runtime/run/event_reading.h"

namespace holdfast::metrics {
namespace {

constexpr std::uint64_t chunk_bytes = std::uint64_t{4} << 20;  // of the log that are read at once

}  // namespace

MetricsSink::MetricsSink(Env& env, std::unique_ptr<LineSink> log, Settings settings)
    : env_(&env), log_(std::move(log)), settings_(std::move(settings)) {
  if (settings_.tensorboard) tensorboard_.emplace(*env_, settings_.paths.tensorboard());
}

MetricsSink::~MetricsSink() {
  write();
}

Result<void> MetricsSink::append(std::string_view line) {
  note_others();
  Result<void> written = log_->append(line);
  count_insisted();
  if (catch_up()) count(line);
  show();
  const std::int64_t now_ns = env_->monotonic_ns();
  if (!written_ns_.has_value() || now_ns - *written_ns_ >= settings_.every_ms * 1'000'000) write();
  return written;
}

Result<void> MetricsSink::insist(std::string_view line) {
  note_others();
  Result<void> written = log_->insist(line);
  insisted_.emplace_back(line);
  const bool is_cheap = settings_.page != nullptr && !is_behind_;
  if (is_cheap) {
    count_insisted();
    show();
  }
  return written;
}

Result<void> MetricsSink::flush() {
  Result<void> flushed = log_->flush();
  write();
  return flushed;
}

// Notes that other ranks may have made steps since, and the launcher starts.
void MetricsSink::others_have_written() {
  count_insisted();  // by the view of the log that was taken before them
  is_behind_ = true;
  log_->others_have_written();
}

// Takes a view of the log as it is before the next line of this writer.
void MetricsSink::note_others() {
  if (is_behind_ && !others_.has_value()) others_.emplace(LogReader::open(*env_, settings_.paths));
}

// Reads what others have written; their steps are curves of their own files. Returns false where the log cannot be read: then
// the lines of this writer, which are in it, are read with the others' next time.
bool MetricsSink::catch_up() {
  if (!is_behind_) return true;
  const std::optional<Result<LogReader>> others = std::exchange(others_, std::nullopt);
  if (!others.has_value()) return false;
  const bool is_none = !others->ok() && others->error().code == ExitCode::config;
  if (!others->ok() && !is_none) return false;
  if (!is_none) {
    const LogReader& log = **others;
    if (!has_begun_) begin_book(log);
    read_lines(log, counted_bytes_, log.bytes(), [&](const Json& event) {
      book_.take(event);
      if (tensorboard_.has_value()) tensorboard_->skip(event);
    });
    counted_bytes_ = std::max(counted_bytes_, log.bytes());
  }
  has_begun_ = true;
  is_behind_ = false;
  return true;
}

// Takes the state that the writer before has left, and from where to count. Of a log that is shorter by now parts were removed,
// which were counted.
void MetricsSink::begin_book(const LogReader& log) {
  const std::uint64_t end = log.bytes();
  const Json state = Json::parse_any(env_->text_or_empty(settings_.paths.metrics_state()));
  counted_bytes_ = end > tail_bytes ? end - tail_bytes : 0;
  if (!state.is_object()) return;
  book_.begin_from(state);
  counted_bytes_ = std::min(count_of(state, "counted_bytes", end), end);
  const std::uint64_t begin = counted_bytes_ > tail_bytes ? counted_bytes_ - tail_bytes : 0;
  read_lines(log, begin, counted_bytes_, [&](const Json& event) {
    book_.remind(event);
    if (tensorboard_.has_value()) tensorboard_->skip(event);
  });
}

// Calls back for each event of this part of the log; lines that are not whole are skipped.
void MetricsSink::read_lines(const LogReader& log, std::uint64_t begin, std::uint64_t end,
                             const std::function<void(const Json&)>& take) {
  std::string lines;
  while (begin < end) {
    const std::uint64_t bytes = std::min<std::uint64_t>(end - begin, chunk_bytes);
    Result<std::string> read = log.read(begin, bytes);
    begin += bytes;
    if (!read.ok()) continue;
    lines += *read;
    const std::size_t whole = lines.rfind('\n') + 1;  // npos + 1 is 0
    for_each_event(std::string_view(lines).substr(0, whole), take);
    lines.erase(0, whole);
  }
}

void MetricsSink::count(std::string_view line) {
  const Json event = Json::parse_any(line);
  book_.take(event);
  counted_bytes_ += line.size() + 1;
  is_new_ = true;
  is_urgent_ = is_urgent_ || event_kind(event) != StepEvent::kind;
  if (!tensorboard_.has_value()) return;
  tensorboard_->take(event);
  tensorboard_->flush();
}

void MetricsSink::count_insisted() {
  if (insisted_.empty()) return;
  const bool is_read = catch_up();
  for (const std::string& line : std::exchange(insisted_, {})) {
    if (is_read) count(line);
  }
}

// Puts the metrics on the page where what is there is old, or more than another step has happened.
void MetricsSink::show() {
  constexpr std::int64_t oldest_ns = 1'000'000'000;
  if (settings_.page == nullptr) return;
  const std::int64_t now_ns = env_->monotonic_ns();
  if (!std::exchange(is_urgent_, false) && shown_ns_.has_value() && now_ns - *shown_ns_ < oldest_ns) return;
  shown_ns_ = now_ns;
  settings_.page->set(book_.text());
}

void MetricsSink::write() {
  count_insisted();
  show();
  if (!std::exchange(is_new_, false)) return;
  written_ns_ = env_->monotonic_ns();
  if (settings_.may_write && !settings_.may_write()) return;
  if (settings_.every_ms == 0) return;
  Json state = book_.state();
  state["counted_bytes"] = counted_bytes_;
  is_new_ = !env_->replace_text(settings_.paths.metrics_state(), state.dump_any() + "\n").ok() ||
            !env_->replace_text(settings_.paths.metrics(), book_.text()).ok();
}

}  // namespace holdfast::metrics
