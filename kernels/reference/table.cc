// The references as implementations of their own: one thread, in double. Slow; what the others are held to.
#include "kernels/cpu/lists.h"
#include "kernels/visit_op.h"

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

#define HF_REFERENCE(op, contract, op_class) reference_of<contract>(),
constexpr Implementation implementations[] = {HF_OPS(HF_REFERENCE)};

}  // namespace

constinit const ImplementationList reference_list = {"kernels/reference/table.cc", implementations,
                                                     sizeof(implementations) / sizeof(Implementation)};

}  // namespace holdfast::kernels::cpu
