// TensorboardFile: the curves of a run as an event file of TensorBoard, RUN/tensorboard/events.out.tfevents.*, one for each start. Before
// steps that are made again there is a mark, at which TensorBoard drops what it had of them.
//
// Source of the format: TensorFlow's event.proto, summary.proto and record_writer.cc (TFRecord: lengths and masked CRC-32C around each message).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "runtime/core/json.h"
#include "runtime/os/env.h"

namespace holdfast::metrics {

// Returns the record that a file begins with.
std::string tensorboard_begin(std::int64_t time_us);

// Turns events of the log into records, in their order. Pure.
class TensorboardRecords {
 public:
  // Returns what the event becomes; empty: it is no curve.
  std::string take(const Json& event);

 private:
  std::optional<std::uint64_t> last_step_ = {}, last_evaluation_ = {};
};

class TensorboardFile {
 public:
  TensorboardFile(Env& env, std::string directory) : env_(&env), directory_(std::move(directory)) {}
  // Takes an event of the log that an earlier file has.
  void skip(const Json& event) { static_cast<void>(records_.take(event)); }
  void take(const Json& event) { waiting_ += records_.take(event); }
  // Appends what waits. What cannot be written waits for the next call, and is dropped beyond 16 MiB.
  void flush();

 private:
  Env* env_;
  std::string directory_;
  TensorboardRecords records_;
  std::unique_ptr<File> file_;
  std::uint64_t bytes_ = 0;
  std::string waiting_;
};

}  // namespace holdfast::metrics
