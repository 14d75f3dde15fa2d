// Adapter is one adapter of LoRA on one slice of a linear layer: launches of matrix products (adapter_spec.h has its
// tensors). Nothing that it computes is kept for backward: x A^T is computed again there, with the same bits.
//
// Rounding, the same in every layout: of each slice, x A^T and dy B are rounded to the model's dtype, and once more after
// they are multiplied by the scale. What is added to the layer's own product is added to the slice's fp32 partial result
// before the tree sum of the slices; where a slice's output is rounded to bf16 itself, the adapter's part is rounded to bf16
// and added before that.
#pragma once

#include <cstdint>

#include "runtime/core/tensor.h"
#include "runtime/device/device.h"
#include "runtime/model/linear_products.h"

namespace holdfast::model {

// AdapterMemory is the memory that all adapters of a model use in turn.
struct AdapterMemory {
  void* low = nullptr;          // dtype; (rows, rank): a product of low rank
  void* scaled = nullptr;       // the same, multiplied by the scale
  void* delta = nullptr;        // dtype; (rows, the widest output of a slice); null where nothing needs it
  const void* scale = nullptr;  // dtype; (rank, rank): the scale on the diagonal; null where it is 1
};

struct Adapter {
  const void* a = nullptr;      // dtype; (rank, inputs)
  const void* b = nullptr;      // dtype; (outputs, rank)
  float* a_gradient = nullptr;  // null in a model that only runs forward
  float* b_gradient = nullptr;
  std::int64_t first_output = 0, outputs = 0;  // columns of the layer's y
  std::int64_t layer_outputs = 0;              // all of them
  std::int64_t inputs = 0, rank = 0;
  DType dtype = DType::fp32;
  AdapterMemory memory = {};

  // Target says where a product goes: to memory that has something already, to which it is added (fp32), or to memory that
  // it sets.
  struct Target {
    void* values = nullptr;
    DType dtype = DType::fp32;
    bool accumulate = false;
  };
  // Computes s (x A^T) B^T, into the adapter's columns of y_NO.
  void forward(Device& device, const void* x_NI, std::int64_t rows, const Target& y_NO) const;
  // Computes s (dy B) A; times the derivative of GELU at gelu_of_NI if it is given.
  void input_gradient(Device& device, const void* dy_NO, std::int64_t rows, const Target& dx_NI,
                      const void* gelu_of_NI = nullptr) const;
  // Computes the gradients of A and B. `accumulate`: add to them instead of setting them.
  void weight_gradients(Device& device, const void* x_NI, const void* dy_NO, std::int64_t rows,
                        bool accumulate) const;

 private:
  LinearShape shape_of_a(std::int64_t rows) const;
  LinearShape shape_of_b(std::int64_t rows) const;
  const void* own_columns(const void* dy_NO) const;
  const void* scaled_input(Device& device, const void* x_NI, std::int64_t rows) const;
  const void* scaled_gradient(Device& device, const void* dy_NO, std::int64_t rows) const;
  const void* scaled(Device& device, std::int64_t rows) const;
};

}  // namespace holdfast::model
