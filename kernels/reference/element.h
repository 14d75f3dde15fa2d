// Reads and writes elements of fp32 and bf16 tensors for the references: in double, rounded when stored.
#pragma once

#include <cstdint>

#include "runtime/core/tensor.h"

namespace holdfast::kernels {

inline double element(const void* data, std::int64_t index, DType dtype) {
  if (dtype == DType::bf16) return static_cast<double>(to_float(static_cast<const BFloat16*>(data)[index]));
  return static_cast<double>(static_cast<const float*>(data)[index]);
}

inline void set_element(void* data, std::int64_t index, DType dtype, double value) {
  if (dtype == DType::bf16) {
    static_cast<BFloat16*>(data)[index] = to_bfloat16(static_cast<float>(value));
  } else {
    static_cast<float*>(data)[index] = static_cast<float>(value);
  }
}

}  // namespace holdfast::kernels
