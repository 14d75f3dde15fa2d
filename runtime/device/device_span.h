// DeviceSpan: records when the device begins and ends the work that is launched in a block; in a flight ring
// without the device's stamps, when the host launched it.
#pragma once

#include "runtime/device/device.h"
#include "runtime/os/span_recorder.h"

namespace holdfast::device {

class DeviceSpan {
 public:
  DeviceSpan(SpanRecorder& recorder, Device& device, const Span& about)
      : recorder_(&recorder),
        device_(recorder.device_stamps() ? &device : nullptr),
        span_(recorder.on() ? recorder.open(about) : nullptr),
        clock_(recorder.sums() != nullptr ? &recorder.sums()->device() : nullptr) {
    if (clock_ != nullptr) clock_->count_as(about.kind);
    if (span_ != nullptr && device_ != nullptr) device_->stamp(span_->begin);
    if (span_ != nullptr && device_ == nullptr) span_->begin = recorder.now();
  }
  ~DeviceSpan() {
    if (clock_ != nullptr) clock_->count_as(SpanKind::count);
    if (span_ == nullptr) return;
    if (device_ != nullptr) {
      device_->stamp(span_->end);
    } else {
      recorder_->end(span_);
    }
  }
  DeviceSpan(const DeviceSpan&) = delete;
  DeviceSpan& operator=(const DeviceSpan&) = delete;

 private:
  SpanRecorder* recorder_;
  Device* device_;  // null: the host's time
  Span* span_;
  WorkClock* clock_;  // null: nobody adds up times
};

}  // namespace holdfast::device
