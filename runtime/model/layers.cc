#include "runtime/model/layers.h"

#include "kernels/matmul.h"
#include "kernels/norm.h"

namespace holdfast {

void Linear::forward(Device& device, const void* x_NI, void* y_NO, std::int64_t rows) const {
  device.launch(Matmul{.a = x_NI,
                       .b = weight,
                       .c = y_NO,
                       .bias = bias,
                       .m = rows,
                       .n = outputs,
                       .k = inputs,
                       .lda = inputs,
                       .ldb = inputs,
                       .ldc = outputs,
                       .transpose_b = true,
                       .dtype = dtype,
                       .dtype_c = dtype});
}

void Linear::backward(Device& device, const void* x_NI, const void* dy_NO, void* dx_NI, std::int64_t rows,
                      bool accumulate) const {
  if (dx_NI != nullptr) {
    device.launch(Matmul{.a = dy_NO,
                         .b = weight,
                         .c = dx_NI,
                         .m = rows,
                         .n = inputs,
                         .k = outputs,
                         .lda = outputs,
                         .ldb = inputs,
                         .ldc = inputs,
                         .dtype = dtype,
                         .dtype_c = dtype});
  }
  device.launch(Matmul{.a = dy_NO,
                       .b = x_NI,
                       .c = weight_gradient,
                       .m = outputs,
                       .n = inputs,
                       .k = rows,
                       .lda = outputs,
                       .ldb = inputs,
                       .ldc = inputs,
                       .transpose_a = true,
                       .accumulate = accumulate,
                       .dtype = dtype,
                       .dtype_c = DType::fp32});
  if (bias != nullptr) {
    device.launch(BiasGradient{.dy = dy_NO,
                               .gradient = bias_gradient,
                               .rows = rows,
                               .columns = outputs,
                               .accumulate = accumulate,
                               .dtype = dtype});
  }
}

void Norm::forward(Device& device, const void* x_NC, void* y_NC, Statistics statistics,
                   std::int64_t rows) const {
  if (kind == NormKind::layer_norm) {
    device.launch(LayerNormForward{.x = x_NC,
                                   .weight = weight,
                                   .bias = bias,
                                   .y = y_NC,
                                   .mean = statistics.mean,
                                   .rstd = statistics.rstd,
                                   .rows = rows,
                                   .width = width,
                                   .epsilon = epsilon,
                                   .dtype = dtype});
  } else {
    device.launch(RmsNormForward{.x = x_NC,
                                 .weight = weight,
                                 .y = y_NC,
                                 .rstd = statistics.rstd,
                                 .rows = rows,
                                 .width = width,
                                 .epsilon = epsilon,
                                 .dtype = dtype});
  }
}

void Norm::backward(Device& device, const void* x_NC, const void* dy_NC, Statistics statistics,
                    const void* dresidual_NC, void* dx_NC, std::int64_t rows, bool accumulate) const {
  if (kind == NormKind::layer_norm) {
    device.launch(LayerNormBackward{.x = x_NC,
                                    .weight = weight,
                                    .dy = dy_NC,
                                    .mean = statistics.mean,
                                    .rstd = statistics.rstd,
                                    .dresidual = dresidual_NC,
                                    .dx = dx_NC,
                                    .weight_gradient = weight_gradient,
                                    .bias_gradient = bias_gradient,
                                    .rows = rows,
                                    .width = width,
                                    .accumulate = accumulate,
                                    .dtype = dtype});
  } else {
    device.launch(RmsNormBackward{.x = x_NC,
                                  .weight = weight,
                                  .dy = dy_NC,
                                  .rstd = statistics.rstd,
                                  .dresidual = dresidual_NC,
                                  .dx = dx_NC,
                                  .weight_gradient = weight_gradient,
                                  .rows = rows,
                                  .width = width,
                                  .accumulate = accumulate,
                                  .dtype = dtype});
  }
}

}  // namespace holdfast
