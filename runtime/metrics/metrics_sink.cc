#include "runtime/metrics/metrics_sink.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "runtime/run/event_reading.h"

namespace holdfast::metrics {
namespace {

constexpr std::size_t own_lines_max = 4'096;  // those before are read as another's

// Returns the lowest step that these lines make or have made, or that a start among them goes on behind.
std::uint64_t lowest_step(const std::deque<std::string>& lines) {
  std::uint64_t lowest = std::numeric_limits<std::uint64_t>::max();
  for (const std::string& line : lines) {
    const Json event = Json::parse_any(line);
    if (const auto start = event_as<StartEvent>(event)) {
      lowest = std::min(lowest, start->resumed_from_step.value.value_or(0) + 1);
    } else if (event_kind(event) == StepEvent::kind) {
      lowest = std::min(lowest, event_step(event).value_or(lowest));
    }
  }
  return lowest;
}

// Returns the first step that was made in these lines; none: the highest number.
std::uint64_t first_step(std::string_view lines) {
  while (!lines.empty()) {
    const std::size_t end = std::min(lines.find('\n'), lines.size());
    const Json event = Json::parse_any(lines.substr(0, end));
    if (event_kind(event) == StepEvent::kind && event_step(event).has_value()) return *event_step(event);
    lines.remove_prefix(std::min(end + 1, lines.size()));
  }
  return std::numeric_limits<std::uint64_t>::max();
}

}  // namespace

MetricsSink::MetricsSink(Env& env, std::unique_ptr<LineSink> log, Settings settings)
    : env_(&env), log_(std::move(log)), settings_(std::move(settings)) {
  if (settings_.tensorboard) tensorboard_.emplace(*env_, settings_.paths.tensorboard());
}

MetricsSink::~MetricsSink() {
  write();
}

Result<void> MetricsSink::append(std::string_view line) {
  Result<void> written = log_->append(line);
  add_own(line);
  settle();
  show();
  const std::int64_t now_ns = env_->monotonic_ns();
  if (!written_ns_.has_value() || now_ns - *written_ns_ >= settings_.every_ms * 1'000'000) write();
  return written;
}

Result<void> MetricsSink::insist(std::string_view line) {
  Result<void> written = log_->insist(line);
  add_own(line);
  const bool is_cheap = settings_.page != nullptr && newest_bytes_.has_value();
  if (is_cheap) {
    settle();
    show();
  }
  return written;
}

Result<void> MetricsSink::flush() {
  Result<void> flushed = log_->flush();
  write();
  return flushed;
}

void MetricsSink::others_have_written() {
  newest_bytes_.reset();
  log_->others_have_written();
}

void MetricsSink::add_own(std::string_view line) {
  own_.emplace_back(line);
  own_bytes_ += line.size() + 1;
  if (own_.size() <= own_lines_max) return;
  own_bytes_ -= own_.front().size() + 1;
  own_.pop_front();
}

// Counts what the log has more than when all of it was counted: from memory where that is what this writer has given it.
void MetricsSink::settle() {
  const Result<FileStatus> newest = env_->status(settings_.paths.events());
  if (!newest.ok()) return;
  const std::uint64_t bytes = newest->exists ? newest->bytes : 0;
  if (newest_bytes_ == bytes) return;  // its lines wait for the disk
  if (!newest_bytes_.has_value() || *newest_bytes_ + own_bytes_ != bytes) return read_log();
  newest_bytes_ = bytes;
  counted_bytes_ += own_bytes_;
  for (const std::string& line : own_) count(line, true);
  own_.clear();
  own_bytes_ = 0;
}

void MetricsSink::read_log() {
  newest_bytes_.reset();
  if (!has_begun_ && !begin_book()) return;
  LogFollower log(*env_, settings_.paths, counted_bytes_);
  const Result<void> read = log.read_new([&](std::string_view lines) {
    for (std::size_t end = lines.find('\n'); end != std::string_view::npos; end = lines.find('\n')) {
      take_line(lines.substr(0, end));
      lines.remove_prefix(end + 1);
    }
  });
  counted_bytes_ = log.bytes();
  if (read.ok()) newest_bytes_ = log.newest_bytes();
}

// Takes the state that the writer before has left, and from where to count. Returns false where the log cannot be read. Of a log
// that is shorter by now parts were removed, which were counted.
bool MetricsSink::begin_book() {
  const Result<LogReader> log = LogReader::open(*env_, settings_.paths);
  if (!log.ok()) return false;
  has_begun_ = true;
  const std::uint64_t end = log->bytes() - std::min(own_bytes_, log->bytes());  // before this writer
  const Json state = Json::parse_any(env_->text_or_empty(settings_.paths.metrics_state()));
  counted_bytes_ = end > tail_bytes ? end - tail_bytes : 0;
  if (!state.is_object()) return true;
  book_.begin_from(state);
  counted_bytes_ = std::min(count_of(state, "counted_bytes", end), end);
  for_each_event(text_before(*log), [&](const Json& event) {
    book_.remind(event);
    if (tensorboard_.has_value()) tensorboard_->skip(event);
  });
  return true;
}

// Returns the end of what is counted of the log: tail_bytes, and more where this writer makes older steps again.
std::string MetricsSink::text_before(const LogReader& log) const {
  const std::uint64_t lowest = lowest_step(own_);
  for (std::uint64_t bytes = std::min(tail_bytes, counted_bytes_);;
       bytes = std::min(4 * bytes, counted_bytes_)) {
    const Result<std::string> text = log.read(counted_bytes_ - bytes, bytes);
    if (!text.ok()) return "";
    if (bytes == counted_bytes_ || first_step(*text) <= lowest) return *text;
  }
}

// Takes a line of the log. Those before an own one that is there never come: they were dropped, with a line that says so.
void MetricsSink::take_line(std::string_view line) {
  const auto own = std::ranges::find(own_, line);
  if (own == own_.end()) return count(line, false);
  for (auto passed = own_.begin(); passed <= own; ++passed) own_bytes_ -= passed->size() + 1;
  own_.erase(own_.begin(), own + 1);
  count(line, true);
}

void MetricsSink::count(std::string_view line, bool is_own) {
  const Json event = Json::parse_any(line);
  if (!event.is_object()) return;
  book_.take(event);
  is_new_ = true;
  is_urgent_ = is_urgent_ || event_kind(event) != StepEvent::kind;
  if (!tensorboard_.has_value()) return;
  if (!is_own) return tensorboard_->skip(event);
  tensorboard_->take(event);
  tensorboard_->flush();
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
  settle();
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

void renew_metrics(Env& env, const RunPaths& paths) {
  const MetricsSink sink(env, nullptr, {.paths = paths, .every_ms = 1});  // writes when it ends
}

}  // namespace holdfast::metrics
