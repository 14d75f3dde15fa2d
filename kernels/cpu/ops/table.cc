// The kernels of one instruction set, for the registry (kernels/registry.h).
#include <array>

#include "kernels/composed.h"
#include "kernels/cpu/lists.h"
#include "kernels/cpu/matmul_cache.h"
#include "kernels/cpu/ops/ops.h"
#include "kernels/visit_op.h"

namespace holdfast::kernels::cpu::HF_ISA {

namespace {

#define HF_QUOTED_(name) #name
#define HF_QUOTED(name) HF_QUOTED_(name)

using Function = void (*)(const Context& context, const void* arguments);

consteval Function prepare_of(OpId op) {
  switch (op) {
    case OpId::matmul:
      return prepare_matmul;
    case OpId::layernorm_backward:
      return prepare_layernorm_backward;
    case OpId::rmsnorm_backward:
      return prepare_rmsnorm_backward;
    case OpId::attention_forward:
      return prepare_attention_forward;
    case OpId::attention_backward:
      return prepare_attention_backward;
    case OpId::cross_entropy:
      return prepare_cross_entropy;
    default:
      return nullptr;
  }
}

consteval Function run_of(OpId op) {
#define HF_RUN_OF(op, contract, op_class) \
  case OpId::op:                          \
    return run_##op;
  switch (op) {
    HF_OPS(HF_RUN_OF)
    case OpId::count:
      break;
  }
#undef HF_RUN_OF
  return nullptr;
}

consteval Implementation kernel(OpId op) {
  Implementation result;
  result.op = op;
  result.name = HF_QUOTED(HF_ISA);
  result.what = "own kernel on vectors of sixteen (kernels/cpu/simd.h), compiled for " HF_QUOTED(HF_ISA);
  result.needs = CpuIsa::HF_ISA;
  result.same_bits_as_portable = true;
  result.prepare = prepare_of(op);
  result.run = run_of(op);
  if (op != OpId::matmul) return result;
  result.what = "own blocks and tiles (kernels/cpu/gemm), compiled for " HF_QUOTED(HF_ISA);
  // The portable build has a lower preference: without an fma instruction, oneDNN is many times as fast.
  if (result.needs == CpuIsa::portable) result.preference = -1;
  return result;
}

consteval Implementation onednn_matmul() {
  Implementation result;
  result.op = OpId::matmul;
  result.name = "onednn";
  result.what = "tiles of one thread each, which follow from the shape, by oneDNN";
  result.needs = CpuIsa::HF_ISA;
  result.library = matmul_library;
  result.prepare = prepare_onednn_matmul;
  result.run = run_onednn_matmul;
  return result;
}

template <ComposedOp Op>
void run_parts(const Context& context, const void* arguments) {
  Op::visit_parts(*static_cast<const Op*>(arguments), [&context]<typename Part>(const Part& part) {
    constexpr Function run = run_of(Part::id);
    run(context, &part);
  });
}

template <ComposedOp Op>
void prepare_parts(const Context& context, const void* arguments) {
  Op::visit_parts(*static_cast<const Op*>(arguments), [&context]<typename Part>(const Part& part) {
    constexpr Function prepare = prepare_of(Part::id);
    if constexpr (prepare != nullptr) prepare(context, &part);
  });
}

// Returns the implementation that runs the kernels of the parts. Others of the op are measured against it.
template <ComposedOp Op>
consteval Implementation parts() {
  Implementation result = kernel(Op::id);
  result.name = "parts";
  result.what = "the own kernels of its parts, one after the other";
  result.preference = -1;
  result.prepare = prepare_parts<Op>;
  result.run = run_parts<Op>;
  return result;
}

#define HF_COUNT_COMPOSED(op, contract, op_class) +(ComposedOp<contract> ? 1 : 0)
constexpr std::size_t list_size = op_count + 1 HF_OPS(HF_COUNT_COMPOSED);

class ListMaker {
 public:
  template <typename Op>
  consteval void add_op() {
    add(kernel(Op::id));
    if constexpr (ComposedOp<Op>) add(parts<Op>());
  }
  consteval void add(const Implementation& implementation) { list_[size_++] = implementation; }
  consteval std::array<Implementation, list_size> list() const { return list_; }

 private:
  std::array<Implementation, list_size> list_ = {};
  std::size_t size_ = 0;
};

consteval std::array<Implementation, list_size> make_list() {
  ListMaker maker;
#define HF_ADD_OP(op, contract, op_class) maker.add_op<contract>();
  HF_OPS(HF_ADD_OP)
#undef HF_ADD_OP
  maker.add(onednn_matmul());
  return maker.list();
}

constexpr std::array<Implementation, list_size> implementations = make_list();

}  // namespace

constinit const ImplementationList table_list = {"kernels/cpu/ops/table.cc", implementations.data(),
                                                 list_size};

}  // namespace holdfast::kernels::cpu::HF_ISA
