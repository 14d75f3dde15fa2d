// The table of kernels of one instruction set.
#include "kernels/cpu/ops/ops.h"

namespace holdfast::cpu::HF_ISA {

namespace {

KernelTable make_table() {
  KernelTable table;
  const auto add_kernel = [&table](OpId id, auto run, auto prepare) {
    table.kernels[static_cast<std::size_t>(id)] = Kernel{name_of(id), run, prepare};
  };
  add_kernel(OpId::matmul, run_matmul, prepare_matmul);
  add_kernel(OpId::bias_gradient, run_bias_gradient, nullptr);
  add_kernel(OpId::embedding_forward, run_embedding_forward, nullptr);
  add_kernel(OpId::embedding_backward, run_embedding_backward, nullptr);
  add_kernel(OpId::layernorm_forward, run_layernorm_forward, nullptr);
  add_kernel(OpId::layernorm_backward, run_layernorm_backward, prepare_layernorm_backward);
  add_kernel(OpId::rmsnorm_forward, run_rmsnorm_forward, nullptr);
  add_kernel(OpId::rmsnorm_backward, run_rmsnorm_backward, prepare_rmsnorm_backward);
  add_kernel(OpId::rotary, run_rotary, nullptr);
  add_kernel(OpId::attention_forward, run_attention_forward, prepare_attention_forward);
  add_kernel(OpId::attention_backward, run_attention_backward, prepare_attention_backward);
  add_kernel(OpId::gelu_forward, run_gelu_forward, nullptr);
  add_kernel(OpId::gelu_backward, run_gelu_backward, nullptr);
  add_kernel(OpId::swiglu_forward, run_swiglu_forward, nullptr);
  add_kernel(OpId::swiglu_backward, run_swiglu_backward, nullptr);
  add_kernel(OpId::cross_entropy, run_cross_entropy, nullptr);
  add_kernel(OpId::loss_sum, run_loss_sum, nullptr);
  add_kernel(OpId::adamw, run_adamw, nullptr);
  add_kernel(OpId::square_sum, run_square_sum, nullptr);
  add_kernel(OpId::add, run_add, nullptr);
  add_kernel(OpId::accumulate, run_accumulate, nullptr);
  add_kernel(OpId::cast, run_cast, nullptr);
  add_kernel(OpId::fill_zero, run_fill_zero, nullptr);
  add_kernel(OpId::copy, run_copy, nullptr);
  return table;
}

}  // namespace

const KernelTable& kernel_table() {
  static const KernelTable table = make_table();
  return table;
}

}  // namespace holdfast::cpu::HF_ISA
