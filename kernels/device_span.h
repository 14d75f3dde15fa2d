// DeviceSpan: when the device begins and ends what is launched in a block.
#pragma once

#include "kernels/device.h"
#include "runtime/core/span_recorder.h"

namespace holdfast {

class DeviceSpan {
 public:
  DeviceSpan(SpanRecorder& recorder, Device& device, const Span& about)
      : device_(&device), span_(recorder.on() ? recorder.open(about) : nullptr) {
    if (span_ != nullptr) device_->stamp(span_->begin);
  }
  ~DeviceSpan() {
    if (span_ != nullptr) device_->stamp(span_->end);
  }
  DeviceSpan(const DeviceSpan&) = delete;
  DeviceSpan& operator=(const DeviceSpan&) = delete;

 private:
  Device* device_;
  Span* span_;
};

}  // namespace holdfast
