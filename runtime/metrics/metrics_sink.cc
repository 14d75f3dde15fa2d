#include "runtime/metrics/metrics_sink.h"

#include <utility>

#include "runtime/run/log_reader.h"

namespace holdfast::metrics {

MetricsSink::MetricsSink(Env& env, std::unique_ptr<LineSink> log, Settings settings)
    : env_(&env), log_(std::move(log)), settings_(std::move(settings)) {}

MetricsSink::~MetricsSink() {
  write();
}

Result<void> MetricsSink::append(std::string_view line) {
  take(line);
  return log_->append(line);
}

Result<void> MetricsSink::insist(std::string_view line) {
  take(line);
  return log_->insist(line);
}

Result<void> MetricsSink::flush() {
  write();
  return log_->flush();
}

// Other ranks may have made steps since, and the launcher starts.
void MetricsSink::others_have_written() {
  book_.reset();
  log_->others_have_written();
}

void MetricsSink::take(std::string_view line) {
  const Json event = Json::parse_any(line);
  if (!book_.has_value()) {
    book_.emplace();
    const bool begins = settings_.tensorboard && !tensorboard_.has_value();
    if (begins) tensorboard_.emplace(*env_, settings_.paths.tensorboard());
    // A log that is not there, or cannot be read, has nothing to count.
    if (const Result<LogReader> log = LogReader::open(*env_, settings_.paths); log.ok())
      static_cast<void>(log->for_each([&](const Json& earlier) {
                             book_->take(earlier);
                             if (begins) tensorboard_->skip(earlier);
                           })
                            .ok());
  }
  book_->take(event);
  is_new_ = true;
  if (tensorboard_.has_value()) tensorboard_->take(event);
  if (env_->monotonic_ns() - written_ns_ >= settings_.every_ms * 1'000'000) write();
}

void MetricsSink::write() {
  if (!std::exchange(is_new_, false)) return;
  written_ns_ = env_->monotonic_ns();
  if (settings_.may_write && !settings_.may_write()) return;
  if (settings_.every_ms > 0) is_new_ = !env_->replace_text(settings_.paths.metrics(), book_->text()).ok();
  if (tensorboard_.has_value()) tensorboard_->flush();
}

}  // namespace holdfast::metrics
