// The two parameterised layers a block is made of, as launches of ops: Linear (y = x W^T + b) and Norm. A
// layer holds pointers into the flat parameter and gradient buffers; it owns nothing.
#pragma once

#include <cstdint>

#include "kernels/device.h"
#include "runtime/core/tensor.h"
#include "runtime/model/spec.h"

namespace holdfast {

struct Linear {
  const void* weight = nullptr;      // dtype; (outputs, inputs)
  const void* bias = nullptr;        // dtype; (outputs), or null
  float* weight_gradient = nullptr;  // null in a model that only runs forward
  float* bias_gradient = nullptr;
  std::int64_t outputs = 0, inputs = 0;
  DType dtype = DType::fp32;

  void forward(Device& device, const void* x_NI, void* y_NO, std::int64_t rows) const;
  // dx may be null. `accumulate`: add to the gradients instead of setting them.
  void backward(Device& device, const void* x_NI, const void* dy_NO, void* dx_NI, std::int64_t rows,
                bool accumulate) const;
};

struct Norm {
  NormKind kind = NormKind::rms_norm;
  const void* weight = nullptr;
  const void* bias = nullptr;
  float* weight_gradient = nullptr;
  float* bias_gradient = nullptr;
  std::int64_t width = 0;
  float epsilon = 1e-5F;
  DType dtype = DType::fp32;

  struct Statistics {
    float* mean = nullptr;  // layer norm only
    float* rstd = nullptr;
  };
  void forward(Device& device, const void* x_NC, void* y_NC, Statistics statistics, std::int64_t rows) const;
  // dx = gradient through the norm + dresidual (when not null; may be the memory of dx).
  void backward(Device& device, const void* x_NC, const void* dy_NC, Statistics statistics,
                const void* dresidual_NC, void* dx_NC, std::int64_t rows, bool accumulate) const;
};

}  // namespace holdfast
