// The parameterised layers of a block, linear layers (y = x W^T + b) and norms, are launches of ops. A layer
// holds pointers into the flat parameter and gradient buffers; it owns nothing.
//
// With tensor lanes a linear layer is several slices of equal shape, of which this rank has some. Data of
// slices is stored slice after slice: (slices here, rows, columns of a slice). Without tensor lanes there is
// one slice, and shapes are the usual ones.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/residual_norm.h"
#include "parallel/tensor/tensor_group.h"
#include "runtime/core/tensor.h"
#include "runtime/device/device.h"
#include "runtime/model/adapter.h"
#include "runtime/model/linear_products.h"
#include "runtime/model/spec.h"

namespace holdfast::model {

// Part of the gradients that a backward computes: all, or one of two parts, of which the second may come much
// later (zero_bubble, parallel/pipeline/schedule.h). Both parts together have the bits of the whole.
enum class BackwardPart { whole, inputs, weights };

struct BackwardPass {
  BackwardPart part = BackwardPart::whole;
  bool accumulate = false;  // add to the weight gradients instead of setting them
  bool of_inputs() const { return part != BackwardPart::weights; }
  bool of_weights() const { return part != BackwardPart::inputs; }
};

struct Linear {
  const void* weight = nullptr;      // dtype; (outputs, inputs)
  const void* bias = nullptr;        // dtype; (outputs), or null
  float* weight_gradient = nullptr;  // null where it is frozen, or in a model that only runs forward
  float* bias_gradient = nullptr;    // likewise
  std::int64_t outputs = 0, inputs = 0;
  DType dtype = DType::fp32;
  std::vector<Adapter> adapters = {};  // of some or all outputs, which they do not share

  void forward(Device& device, const void* x_NI, void* y_NO, std::int64_t rows) const;
  // Added is what is added to y before it is rounded; null: nothing. The residual has y's shape and is apart from it.
  struct Added {
    const void* bias = nullptr;
    const void* residual_NO = nullptr;
  };
  // Computes y in `dtype_y`: the model's, or fp32 where y is a partial result of a sum over slices. With adapters there is
  // a residual only where y is fp32.
  void forward(Device& device, const void* x_NI, void* y_NO, std::int64_t rows, DType dtype_y,
               const Added& added) const;
  // `gelu_of_NI`, if given, is what the layer's input is the GELU of: computes its gradient instead.
  void input_gradient(Device& device, const void* dy_NO, void* dx_NI, std::int64_t rows, DType dtype_dx,
                      const void* gelu_of_NI = nullptr) const;
  // Computes the gradients of the weight and of the bias, as far as they are trained. `accumulate`: add to the
  // gradients instead of setting them.
  void weight_gradient_of(Device& device, const void* x_NI, const void* dy_NO, std::int64_t rows,
                          bool accumulate) const;
  // Returns whether a result of all slices in the model's dtype has to be made as a sum over slices even where there is
  // one slice: so that it is rounded once, together with what adapters add to it.
  bool is_summed() const { return !adapters.empty() && dtype != DType::fp32; }

 private:
  LinearShape shape(std::int64_t rows) const {
    return {.rows = rows, .outputs = outputs, .inputs = inputs, .dtype = dtype};
  }
  const void* adapters_forward(Device& device, const void* x_NI, std::int64_t rows, DType dtype_y) const;
};

// SlicedGradient is the gradient of a tensor that belongs to no slice, of which each slice computes a part: (slices, rows,
// columns), kept until the lane is complete.
struct SlicedGradient {
  float* of_slices = nullptr;
  float* gradient = nullptr;
  std::int64_t rows = 0, columns = 0;
};
// Gathers the slices' parts of gradients, (slices, gradients, rows, columns), and sums them as the tree of the slices.
Result<void> sum_of_slices(Device& device, TensorGroup& group, float* of_slices,
                           std::span<float* const> gradients, std::int64_t rows, std::int64_t columns);

// A linear layer split by its outputs: every slice reads all of x and makes its own columns of y. The
// gradient of x is a sum over slices.
struct ColumnLinear {
  std::vector<Linear> slices;               // those of this rank
  std::vector<SlicedGradient> shared = {};  // of the adapters' A; none without tensor lanes

  void forward(Device& device, const void* x_NI, void* y, std::int64_t rows) const;
  // Computes the gradient of x in two calls, so that what is launched between them runs while rows are in
  // transit: dx (own rows, inputs).
  Result<TensorGroup::Scatter> begin_input_gradient(Device& device, TensorGroup& group, const SliceSums& sums,
                                                    const void* dy, void* dx_NI) const;
  Result<void> finish_input_gradient(Device& device, TensorGroup& group, const TensorGroup::Scatter& begun,
                                     const SliceSums& sums, void* dx_NI) const;
  void weight_gradients(Device& device, const void* x_NI, const void* dy, std::int64_t rows,
                        bool accumulate) const;
  // Sums the slices' parts of gradients; called after the last microbatch of a lane.
  Result<void> sum_slices(Device& device, TensorGroup& group) const;
};

// A linear layer split by its inputs: y is a sum over slices. Its bias is added once. The bias' gradient is
// the norm's to compute (Norm::branch_bias_gradient).
struct RowLinear {
  std::vector<Linear> slices;  // without the bias
  const void* bias = nullptr;
  std::vector<SlicedGradient> shared = {};  // of the adapters' B; none without tensor lanes

  // Computes the partial results of the slices, and begins to exchange them: the first half of forward() with
  // more than one slice, and of a forward whose sum is part of another op with any number.
  Result<TensorGroup::Scatter> begin_forward(Device& device, TensorGroup& group, const SliceSums& sums,
                                             const void* x) const;
  // Computes y = x W^T + bias + residual (own rows, outputs), rounded once for any number of slices.
  Result<void> forward(Device& device, TensorGroup& group, const SliceSums& sums, const void* x,
                       const void* residual_NO, void* y_NO) const;
  // `gelu_of`, if given, has the shape of dx: x is the GELU of it, and dx its gradient.
  void input_gradient(Device& device, const void* dy_NO, void* dx, std::int64_t rows,
                      const void* gelu_of = nullptr) const;
  void weight_gradients(Device& device, const void* x, const void* dy_NO, std::int64_t rows,
                        bool accumulate) const;
  Result<void> sum_slices(Device& device, TensorGroup& group) const;  // as ColumnLinear does
};

struct Norm {
  NormKind kind = NormKind::rms_norm;
  const void* weight = nullptr;
  const void* bias = nullptr;
  float* weight_gradient = nullptr;  // null where weight and bias are frozen
  float* bias_gradient = nullptr;
  // Gradient of the bias of the layer that ends the branch which starts with the norm: dresidual is that
  // layer's dy. Null where there is no such bias or it is frozen, as it is where the norm is.
  float* branch_bias_gradient = nullptr;
  // Memory for the gradients of a frozen norm, which its backward computes all the same: (vectors, width),
  // with vectors = gradient_vectors().
  float* unused_gradients = nullptr;
  // Gradients of each slice of rows, kept until the lane is complete: (slices, vectors, width). Null without
  // tensor lanes.
  float* slice_gradients = nullptr;
  std::int64_t width = 0;
  float epsilon = 1e-5F;
  DType dtype = DType::fp32;

  bool is_trained() const { return weight_gradient != nullptr; }
  // Returns how many gradients (width) the backward computes: of the weight, of the bias, of the branch's.
  int gradient_vectors() const {
    return kind != NormKind::layer_norm ? 1 : branch_bias_gradient == nullptr ? 2 : 3;
  }

  struct Statistics {
    float* mean = nullptr;  // layer norm only
    float* rstd = nullptr;
  };
  void forward(Device& device, const void* x_NC, void* y_NC, Statistics statistics, std::int64_t rows) const;
  // Calls visit(op) with the composed op that computes a sum and the norm of it.
  template <typename Visit>
  void visit_with_sum(const TreeSum& sum, void* y_NC, Statistics statistics, const Visit& visit) const {
    if (kind == NormKind::layer_norm) {
      visit(ResidualLayerNorm::of(sum, layer_norm(sum.y, y_NC, statistics, sum.rows)));
    } else {
      visit(ResidualRmsNorm::of(sum, rms_norm(sum.y, y_NC, statistics, sum.rows)));
    }
  }
  struct Gradients {
    const void* dy_NC = nullptr;
    const void* dresidual_NC = nullptr;  // or null; may be the same memory as dx
    void* dx_NC = nullptr;
    // Sums that a backward in parts passes from the first part to the second: (slices here, vectors, width).
    float* sums = nullptr;
  };
  // Computes the backward of this rank's rows: dx = gradient through the norm + dresidual. One op computes dx
  // together with the weight gradients; in a backward in parts, these are kept in `sums` and added later.
  void backward(Device& device, const TensorShare& share, const void* x_NC, Statistics statistics,
                const Gradients& gradients, std::int64_t rows, BackwardPass pass) const;
  // Sums the slices' gradients as a tree; called after the last microbatch of a lane.
  Result<void> sum_slices(Device& device, TensorGroup& group) const;

 private:
  LayerNormForward layer_norm(const void* x_NC, void* y_NC, Statistics statistics, std::int64_t rows) const;
  RmsNormForward rms_norm(const void* x_NC, void* y_NC, Statistics statistics, std::int64_t rows) const;
  static constexpr int vectors_max = 3;
  // Holds the gradients of weight, bias and the branch's bias; those from gradient_vectors() on are null.
  using WeightGradients = std::array<float*, vectors_max>;
  WeightGradients own_gradients() const { return {weight_gradient, bias_gradient, branch_bias_gradient}; }
  WeightGradients weight_gradients_of(int slice) const;
  WeightGradients sums_of(float* sums, int index) const;
  void add_sums(Device& device, const WeightGradients& sums, const WeightGradients& gradients,
                bool accumulate) const;
  void backward_rows(Device& device, const void* x_NC, Statistics statistics, const Gradients& gradients,
                     std::int64_t rows, const WeightGradients& weight_gradients, bool accumulate) const;
};

}  // namespace holdfast::model
