// visit_op: converts (OpId, pointer to arguments) to the op's struct, for code that treats all ops alike:
//
//   visit_op(id, arguments, [&](const auto& op) { device.launch(op); });
//
// A new op gets a line here; the compiler enforces it, because the switch has no default.
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
#include "kernels/rotary.h"
#include "kernels/tree_sum.h"
#include "runtime/core/check.h"

namespace holdfast::kernels {

// Calls the visitor with the op, and returns its result. The visitor returns the same type for every op.
// `arguments` is the struct of `id`.
template <typename Visitor>
auto visit_op(OpId id, const void* arguments, const Visitor& visitor) {
#define HF_VISIT(Op) \
  case Op::id:       \
    return visitor(*static_cast<const Op*>(arguments))
  switch (id) {
    HF_VISIT(Matmul);
    HF_VISIT(BiasGradient);
    HF_VISIT(EmbeddingForward);
    HF_VISIT(EmbeddingBackward);
    HF_VISIT(LayerNormForward);
    HF_VISIT(LayerNormBackward);
    HF_VISIT(RmsNormForward);
    HF_VISIT(RmsNormBackward);
    HF_VISIT(Rotary);
    HF_VISIT(AttentionForward);
    HF_VISIT(AttentionBackward);
    HF_VISIT(GeluForward);
    HF_VISIT(GeluBackward);
    HF_VISIT(SwigluForward);
    HF_VISIT(SwigluBackward);
    HF_VISIT(CrossEntropy);
    HF_VISIT(CrossEntropySlice);
    HF_VISIT(CrossEntropyJoin);
    HF_VISIT(CrossEntropyGradient);
    HF_VISIT(LossSum);
    HF_VISIT(AdamW);
    HF_VISIT(SquareSum);
    HF_VISIT(Add);
    HF_VISIT(Accumulate);
    HF_VISIT(TreeSum);
    HF_VISIT(Cast);
    HF_VISIT(FillZero);
    HF_VISIT(Copy);
    HF_VISIT(TensorDigest);
    HF_VISIT(OptimizerDigest);
    case OpId::count:
      break;
  }
#undef HF_VISIT
  HF_CHECK(false, "there is no op {}", static_cast<int>(id));
  __builtin_unreachable();
}

}  // namespace holdfast::kernels
