// MetricsSink: stands between a run and its event log on the rank that writes it, on the log's thread, so that no step waits for it.
// What it passes on it also counts, and now and then it replaces RUN/metrics.prom (docs/metrics.md) and appends to the event file of
// TensorBoard. The numbers are of the whole run: before its first event it reads the log. What cannot be written is tried again at the next
// time; training and its log never fail for it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "runtime/metrics/metrics_book.h"
#include "runtime/metrics/tensorboard_file.h"
#include "runtime/os/env.h"
#include "runtime/os/line_thread.h"
#include "runtime/run/run_directory.h"

namespace holdfast::metrics {

class MetricsSink final : public LineSink {
 public:
  struct Settings {
    RunPaths paths = {};
    std::int64_t every_ms = 0;  // between two writes of metrics.prom; 0: none
    bool tensorboard = false;
    // Returns false when the run directory belongs to another writer by now; may be null.
    std::function<bool()> may_write = {};
  };
  // `log` takes the lines.
  MetricsSink(Env& env, std::unique_ptr<LineSink> log, Settings settings);
  ~MetricsSink() override;

  Result<void> append(std::string_view line) override;
  Result<void> insist(std::string_view line) override;
  Result<void> flush() override;
  void others_have_written() override;
  void lost(std::uint64_t lines) override { log_->lost(lines); }

 private:
  void take(std::string_view line);
  void write();

  Env* env_;
  std::unique_ptr<LineSink> log_;
  Settings settings_;
  std::optional<MetricsBook> book_ = {};  // none: the log has to be read
  std::optional<TensorboardFile> tensorboard_ = {};
  std::int64_t written_ns_ = 0;
  bool is_new_ = false;  // the book knows more than the file
};

}  // namespace holdfast::metrics
