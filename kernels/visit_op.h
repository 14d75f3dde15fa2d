// visit_op: converts (OpId, pointer to arguments) to the op's struct, for code that treats all ops alike:
//
//   visit_op(id, arguments, [&](const auto& op) { device.launch(op); });
//
// A new op needs its contract header here.
#pragma once

#include "kernels/activation.h"
#include "kernels/attention.h"
#include "kernels/cross_entropy.h"
#include "kernels/digest.h"
#include "kernels/elementwise.h"
#include "kernels/embedding.h"
#include "kernels/matmul.h"
#include "kernels/norm.h"
#include "kernels/op.h"
#include "kernels/optimizer.h"
#include "kernels/residual_norm.h"
#include "kernels/rotary.h"
#include "kernels/tree_sum.h"
#include "runtime/core/check.h"

namespace holdfast::kernels {

// Calls the visitor with the op, and returns its result. The visitor returns the same type for every op.
// `arguments` is the struct of `id`.
template <typename Visitor>
auto visit_op(OpId id, const void* arguments, const Visitor& visitor) {
#define HF_VISIT(op, contract, op_class) \
  case OpId::op:                         \
    return visitor(*static_cast<const contract*>(arguments));
  switch (id) {
    HF_OPS(HF_VISIT)
    case OpId::count:
      break;
  }
#undef HF_VISIT
  HF_CHECK(false, "there is no op {}", static_cast<int>(id));
  __builtin_unreachable();
}

}  // namespace holdfast::kernels
