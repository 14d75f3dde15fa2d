#include "runtime/metrics/tensorboard_file.h"

#include <fmt/core.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <span>

#include "runtime/core/crc32c.h"
#include "runtime/run/event_reading.h"

namespace holdfast::metrics {
namespace {

constexpr std::size_t waiting_max = std::size_t{16} << 20;
// Wire types of protocol buffers.
constexpr unsigned varint_type = 0, fixed64_type = 1, text_type = 2, fixed32_type = 5;

static_assert(std::endian::native == std::endian::little);
template <typename T>
void put_fixed(std::string& bytes, T value) {
  std::array<char, sizeof(T)> raw{};
  std::memcpy(raw.data(), &value, sizeof(T));
  bytes.append(raw.data(), raw.size());
}

void put_varint(std::string& bytes, std::uint64_t value) {
  for (; value >= 128; value >>= 7U) bytes += static_cast<char>(value | 128U);
  bytes += static_cast<char>(value);
}

void put_key(std::string& bytes, unsigned field, unsigned type) {
  put_varint(bytes, field << 3U | type);
}

void put_text(std::string& bytes, unsigned field, std::string_view text) {
  put_key(bytes, field, text_type);
  put_varint(bytes, text.size());
  bytes += text;
}

std::uint32_t masked_crc(std::string_view bytes) {
  const std::uint32_t crc = crc32c(std::as_bytes(std::span(bytes)));
  return (crc >> 15U | crc << 17U) + 0xa282ead8U;
}

// Returns a message between its lengths and checksums.
std::string record_of(std::string_view message) {
  std::string record;
  put_fixed(record, static_cast<std::uint64_t>(message.size()));
  put_fixed(record, masked_crc(record));
  record += message;
  put_fixed(record, masked_crc(message));
  return record;
}

// Returns the begin of an Event: wall_time = 1, step = 2.
std::string event_of(std::int64_t time_us, std::uint64_t step) {
  std::string event;
  put_key(event, 1, fixed64_type);
  put_fixed(event, static_cast<double>(time_us) / 1e6);
  put_key(event, 2, varint_type);
  put_varint(event, step);
  return event;
}

// Adds a Summary.Value: tag = 1, simple_value = 2.
void put_scalar(std::string& summary, std::string_view tag, double number) {
  std::string value;
  put_text(value, 1, tag);
  put_key(value, 2, fixed32_type);
  put_fixed(value, static_cast<float>(number));
  put_text(summary, 1, value);
}

struct Curve {
  std::string_view kind, field, tag;
};
constexpr std::array curves = std::to_array<Curve>({
    {"step", "loss", "train/loss"},
    {"step", "grad_norm", "train/grad_norm"},
    {"step", "learning_rate", "train/learning_rate"},
    {"step", "tokens", "train/tokens"},
    {"step", "tokens_per_sec", "rate/tokens_per_sec"},
    {"step", "step_duration_ms", "rate/step_duration_ms"},
    {"step", "mfu", "rate/mfu"},
    {"evaluation", "loss", "held_out/loss"},
    {"checkpoint", "stall_ms", "save/stall_ms"},
});

}  // namespace

std::string tensorboard_begin(std::int64_t time_us) {
  std::string event = event_of(time_us, 0);
  put_text(event, 3, "brain.Event:2");  // file_version
  return record_of(event);
}

std::string TensorboardRecords::take(const Json& event) {
  const std::string_view kind = event_kind(event);
  const std::int64_t time_us = event_time(event);
  const std::uint64_t step = event_step(event).value_or(0);
  std::string summary, records;
  for (const Curve& curve : curves) {
    if (curve.kind != kind) continue;
    const auto found = event.find(curve.field);
    if (found == event.end() || (!found->is_number() && !found->is_null())) continue;
    put_scalar(summary, curve.tag, found->is_null() ? std::nan("") : found->get<double>());
  }
  if (kind == StepEvent::kind) {
    const auto again = event.find(field_name(&StepEvent::recomputed));
    const bool is_again = again != event.end() && again->is_boolean() && again->get<bool>();
    if (is_again && (!last_step_.has_value() || step <= *last_step_)) {
      std::string mark = event_of(time_us, step), log;
      put_key(log, 1, varint_type);  // SessionLog: status = START
      put_varint(log, 1);
      put_text(mark, 7, log);
      records += record_of(mark);
      if (last_evaluation_.has_value() && *last_evaluation_ >= step) last_evaluation_ = step - 1;
    }
    last_step_ = step;
  }
  if (kind == EvaluationEvent::kind) {
    // A run that goes on from a step may evaluate it once more, before it makes the next step again.
    if (last_evaluation_.has_value() && step <= *last_evaluation_) return "";
    last_evaluation_ = step;
  }
  if (summary.empty()) return records;
  std::string message = event_of(time_us, step);
  put_text(message, 5, summary);
  return records + record_of(message);
}

void TensorboardFile::flush() {
  if (waiting_.empty()) return;
  if (file_ == nullptr) {
    const std::int64_t now_us = env_->wall_time_us();
    const std::string path = fmt::format("{}/events.out.tfevents.{}.{}.{}", directory_, now_us / 1'000'000,
                                         env_->host_name(), now_us % 1'000'000);
    if (!env_->make_directories(directory_).ok()) return;
    Result<std::unique_ptr<File>> file = env_->open(path, OpenMode::create);
    if (!file.ok()) return;
    file_ = std::move(file).value();
    waiting_.insert(0, tensorboard_begin(now_us));
  }
  if (file_->write_at(bytes_, std::as_bytes(std::span(waiting_))).ok()) {
    bytes_ += waiting_.size();
    waiting_.clear();
  } else if (waiting_.size() > waiting_max) {
    waiting_.clear();
  }
}

}  // namespace holdfast::metrics
