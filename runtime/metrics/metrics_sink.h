// MetricsSink: stands between a run and its event log on the rank that writes it, on the log's thread, so that no step
// waits for it. What it passes on it also counts, and now and then it replaces RUN/metrics.prom (docs/metrics.md); the
// curves of TensorBoard it appends at once.
//
// The numbers are of the whole run and of all that write its log, other ranks and the launcher: a line is written before it is
// counted, and where the log has grown by anything but the lines of this writer, what it has more is read. So the file says at
// each moment what `holdfast metrics` makes of the log. A writer goes on from RUN/metrics_state.json, so that its work does not
// grow with the run; without that file it counts from the newest tail_bytes of the log on. Of the log before it reads as much as
// it needs to know the steps that are made again.
// A line that somebody waits for is counted with the next one, and one that waits for the disk when it is in the log. What cannot
// be written or read is tried again later; training and its log never fail for it.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "runtime/metrics/metrics_book.h"
#include "runtime/metrics/metrics_server.h"
#include "runtime/metrics/tensorboard_file.h"
#include "runtime/os/env.h"
#include "runtime/os/line_thread.h"
#include "runtime/run/log_reader.h"
#include "runtime/run/run_directory.h"

namespace holdfast::metrics {

class MetricsSink final : public LineSink {
 public:
  static constexpr std::uint64_t tail_bytes = std::uint64_t{256} << 10;
  struct Settings {
    RunPaths paths = {};
    std::int64_t every_ms = 0;  // between two writes of metrics.prom; 0: none
    bool tensorboard = false;
    std::shared_ptr<MetricsPage> page =
        {};  // shows the metrics, too: a step's for a second at most not yet; null: there is none
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
  void add_own(std::string_view line);
  void settle();
  void read_log();
  bool begin_book();
  void remind(const LogReader& log);
  std::uint64_t lowest_step(const LogReader& log) const;
  void take_line(std::string_view line);
  void count(std::string_view line, bool is_own);
  void show();
  void write();

  Env* env_;
  std::unique_ptr<LineSink> log_;
  Settings settings_;
  MetricsBook book_;
  std::optional<TensorboardFile> tensorboard_ = {};
  bool has_begun_ = false;           // the book
  std::uint64_t counted_bytes_ = 0;  // of the log
  // Length of the part of the log that grows when all of it was counted; none: not known.
  std::optional<std::uint64_t> newest_bytes_ = {};
  std::deque<std::string> own_ = {};  // lines of this writer that are not counted, the oldest first
  std::uint64_t own_bytes_ = 0;       // of them in the log
  std::optional<std::int64_t> written_ns_ = {}, shown_ns_ = {};
  bool is_new_ = false;     // the book knows more than the file
  bool is_urgent_ = false;  // and than the page, of what is no step: no other line may follow it soon
};

// Brings RUN/metrics.prom up to what the log says by now, for who writes the last lines while no rank does. What cannot be read or
// written stays as it is.
void renew_metrics(Env& env, const RunPaths& paths);

}  // namespace holdfast::metrics
