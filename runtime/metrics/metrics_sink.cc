#include "runtime/metrics/metrics_sink.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "runtime/run/event_reading.h"

namespace holdfast::metrics {
namespace {

constexpr std::size_t own_lines_max = 4'096;  // those before are read as another's

constexpr std::uint64_t reminder_bytes = std::uint64_t{64} << 20;  // some 150,000 steps

// Steps of which an event is looked for. Of very many only the highest count.
class StepsToFind {
 public:
  StepsToFind(std::uint64_t lowest, std::uint64_t highest) {
    constexpr std::uint64_t most = 200'000;
    if (lowest > highest) return;
    first_ = std::max(lowest, highest - std::min(highest, most));
    is_found_.resize(highest - first_ + 1);
    left_ = is_found_.size();
  }
  void find(const Json& event) {
    const std::uint64_t step = event_kind(event) == StepEvent::kind ? event_step(event).value_or(0) : 0;
    if (step < first_ || step - first_ >= is_found_.size() || is_found_[step - first_]) return;
    is_found_[step - first_] = true;
    --left_;
  }
  bool are_found() const { return left_ == 0; }

 private:
  std::uint64_t first_ = 0;
  std::size_t left_ = 0;
  std::vector<bool> is_found_;
};

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
  if (!MetricsBook::knows(state)) {  // of another version: all is counted again, once
    counted_bytes_ = 0;
    return true;
  }
  book_.begin_from(state);
  const std::uint64_t counted = count_of(state, "counted_bytes", end);
  counted_bytes_ = counted > log->bytes() ? end : counted;
  remind(*log);
  return true;
}

// Reminds the book of the steps before its state that are made again from here on, as far as it must and may go back: always of
// those in tail_bytes.
void MetricsSink::remind(const LogReader& log) {
  StepsToFind steps(lowest_step(log), book_.highest_step());
  std::vector<std::string> pieces;  // the newest first
  std::uint64_t end = counted_bytes_;
  while (end > 0 && counted_bytes_ - end < reminder_bytes && (pieces.empty() || !steps.are_found())) {
    const std::uint64_t begin = end > tail_bytes ? end - tail_bytes : 0;
    Result<std::string> piece = log.read(begin, end - begin);
    if (!piece.ok()) break;
    // The next piece ends with the line that this one begins in.
    const std::size_t newline = begin == 0 ? std::string::npos : piece->find('\n');
    const std::uint64_t skipped = newline == std::string::npos ? 0 : newline + 1;
    end = begin + (skipped < piece->size() ? skipped : 0);
    piece->erase(0, skipped < piece->size() ? skipped : 0);
    for_each_event(*piece, [&](const Json& event) { steps.find(event); });
    pieces.push_back(std::move(piece).value());
  }
  for (std::size_t i = pieces.size(); i-- > 0;) {
    for_each_event(pieces[i], [&](const Json& event) {
      book_.remind(event);
      if (tensorboard_.has_value()) tensorboard_->skip(event);
    });
  }
}

// Returns the lowest step that the lines which are not counted make, or that a start among them goes on behind.
std::uint64_t MetricsSink::lowest_step(const LogReader& log) const {
  std::uint64_t lowest = std::numeric_limits<std::uint64_t>::max();
  const auto look = [&](const Json& event) {
    if (const auto start = event_as<StartEvent>(event)) {
      lowest = std::min(lowest, start->resumed_from_step.value.value_or(0) + 1);
    } else if (event_kind(event) == StepEvent::kind) {
      lowest = std::min(lowest, event_step(event).value_or(lowest));
    }
  };
  for (const std::string& line : own_) look(Json::parse_any(line));
  const std::uint64_t bytes = std::min(log.bytes() - counted_bytes_, reminder_bytes);
  const Result<std::string> uncounted = log.read(counted_bytes_, bytes);
  if (uncounted.ok()) for_each_event(*uncounted, look);
  return lowest;
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
