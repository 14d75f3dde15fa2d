// The references as implementations of their own: one thread, in double. Slow; what the others are held to.
#include "kernels/activation.h"
#include "kernels/attention.h"
#include "kernels/cpu/lists.h"
#include "kernels/cross_entropy.h"
#include "kernels/digest.h"
#include "kernels/elementwise.h"
#include "kernels/embedding.h"
#include "kernels/matmul.h"
#include "kernels/norm.h"
#include "kernels/optimizer.h"
#include "kernels/rotary.h"
#include "kernels/tree_sum.h"

namespace holdfast::kernels::cpu {

namespace {

template <typename Op>
constexpr Implementation reference_of() {
  Implementation result;
  result.op = Op::id;
  result.name = "reference";
  result.what = "scalar, in double, on one thread: what every other implementation is tested against";
  result.preference = -1;
  result.run = [](const Context&, const void* arguments) { reference(*static_cast<const Op*>(arguments)); };
  return result;
}

constexpr Implementation implementations[] = {reference_of<Matmul>(),
                                              reference_of<BiasGradient>(),
                                              reference_of<EmbeddingForward>(),
                                              reference_of<EmbeddingBackward>(),
                                              reference_of<LayerNormForward>(),
                                              reference_of<LayerNormBackward>(),
                                              reference_of<RmsNormForward>(),
                                              reference_of<RmsNormBackward>(),
                                              reference_of<Rotary>(),
                                              reference_of<AttentionForward>(),
                                              reference_of<AttentionBackward>(),
                                              reference_of<GeluForward>(),
                                              reference_of<GeluBackward>(),
                                              reference_of<SwigluForward>(),
                                              reference_of<SwigluBackward>(),
                                              reference_of<CrossEntropy>(),
                                              reference_of<CrossEntropySlice>(),
                                              reference_of<CrossEntropyJoin>(),
                                              reference_of<CrossEntropyGradient>(),
                                              reference_of<LossSum>(),
                                              reference_of<AdamW>(),
                                              reference_of<SquareSum>(),
                                              reference_of<Add>(),
                                              reference_of<Accumulate>(),
                                              reference_of<TreeSum>(),
                                              reference_of<Cast>(),
                                              reference_of<FillZero>(),
                                              reference_of<Copy>(),
                                              reference_of<TensorDigest>(),
                                              reference_of<OptimizerDigest>()};

}  // namespace

constinit const ImplementationList reference_list = {"kernels/reference/table.cc", implementations,
                                                     sizeof(implementations) / sizeof(Implementation)};

}  // namespace holdfast::kernels::cpu
