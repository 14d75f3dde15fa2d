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
  take(line);
  return written;
}

Result<void> MetricsSink::insist(std::string_view line) {
  note_others();
  Result<void> written = log_->insist(line);
  insisted_.emplace_back(line);
  return written;
}

Result<void> MetricsSink::flush() {
  Result<void> flushed = log_->flush();
  write();
  return flushed;
}

// Other ranks may have made steps since, and the launcher starts.
void MetricsSink::others_have_written() {
  is_behind_ = true;
  log_->others_have_written();
}

// Notes how long the log is before the next line of this writer.
void MetricsSink::note_others() {
  if (is_behind_ && !others_bytes_.has_value()) others_bytes_ = log_bytes(*env_, settings_.paths);
}

// Reads what others have written. Their steps are curves of their own files.
void MetricsSink::catch_up() {
  if (!std::exchange(is_behind_, false)) return;
  const std::uint64_t end = std::exchange(others_bytes_, std::nullopt).value_or(0);
  const Result<LogReader> log = LogReader::open(*env_, settings_.paths);
  if (!log.ok()) return;
  if (!std::exchange(has_begun_, true) || end < counted_bytes_) begin_book(*log, end);
  read_lines(*log, counted_bytes_, end, [&](const Json& event) {
    book_.take(event);
    if (tensorboard_.has_value()) tensorboard_->skip(event);
  });
  counted_bytes_ = std::max(counted_bytes_, end);
}

// Takes the state that the writer before has left. Where there is none of this log, counted_bytes_ is from where to count.
void MetricsSink::begin_book(const LogReader& log, std::uint64_t end) {
  const Json state = Json::parse_any(env_->text_or_empty(settings_.paths.metrics_state()));
  std::uint64_t counted = end + 1;
  if (state.is_object()) counted = count_of(state, "counted_bytes", end + 1);
  if (counted > end) {  // of another log, or of one of which parts were removed
    book_.begin_anew();
    counted_bytes_ = end > tail_bytes ? end - tail_bytes : 0;
    return;
  }
  book_.begin_from(state);
  counted_bytes_ = counted;
  read_lines(log, counted > tail_bytes ? counted - tail_bytes : 0, counted, [&](const Json& event) {
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
  if (!tensorboard_.has_value()) return;
  tensorboard_->take(event);
  tensorboard_->flush();
}

void MetricsSink::take(std::string_view line) {
  catch_up();
  for (const std::string& earlier : std::exchange(insisted_, {})) count(earlier);
  count(line);
  const std::int64_t now_ns = env_->monotonic_ns();
  if (!written_ns_.has_value() || now_ns - *written_ns_ >= settings_.every_ms * 1'000'000) write();
}

void MetricsSink::write() {
  if (!insisted_.empty()) catch_up();
  for (const std::string& earlier : std::exchange(insisted_, {})) count(earlier);
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
