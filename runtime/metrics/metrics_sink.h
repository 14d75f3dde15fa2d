// MetricsSink: stands between a run and its event log on the rank that writes it, on the log's thread, so that no step
// waits for it. What it passes on it also counts, and now and then it replaces RUN/metrics.prom (docs/metrics.md); the
// curves of TensorBoard it appends at once.
//
// The numbers are of the whole run: a writer goes on from RUN/metrics_state.json and reads of the log what came after it,
// so that its work does not grow with the run. Without that file it counts from the newest tail_bytes of the log on.
// A line is written before it is counted, and one that somebody waits for is counted with the next. What cannot be written
// is tried again at the next time, and what cannot be read before the next line; training and its log never fail for it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

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
  void note_others();
  bool catch_up();
  void begin_book(const LogReader& log);
  static void read_lines(const LogReader& log, std::uint64_t begin, std::uint64_t end,
                         const std::function<void(const Json&)>& take);
  void count(std::string_view line);
  void count_insisted();
  void show();
  void write();

  Env* env_;
  std::unique_ptr<LineSink> log_;
  Settings settings_;
  MetricsBook book_;
  std::optional<TensorboardFile> tensorboard_ = {};
  std::uint64_t counted_bytes_ = 0;               // of the log
  bool has_begun_ = false;                        // the book
  bool is_behind_ = true;                         // others may have written
  std::optional<Result<LogReader>> others_ = {};  // the log when they had
  std::vector<std::string> insisted_ = {};        // lines that are not counted: somebody waited for each
  std::optional<std::int64_t> written_ns_ = {}, shown_ns_ = {};
  bool is_new_ = false;     // the book knows more than the file
  bool is_urgent_ = false;  // and than the page, of what is no step: no other line may follow it soon
};

}  // namespace holdfast::metrics
