// Cuts a call of an op in two by its rows, elements or sequences, as runs cut a step among their ranks. Both parts
// together are the call: they work on its memory and must leave the same bits there.
#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "kernels/op.h"
#include "kernels/operand.h"
#include "runtime/core/block.h"

namespace holdfast::bench::kernel_kit {

// CutSize is the size of a call that a cut divides, and what its parts are multiples of; 0: the call is one piece.
struct CutSize {
  std::int64_t* size = nullptr;
  std::int64_t step = 0;
};

// An op with sums over what would be cut is one piece, unless the contract says how the sums are cut.
template <typename Op>
CutSize cut_size(Op& op) {
  switch (Op::id) {
    case OpId::add:
    case OpId::cast:
    case OpId::gelu_forward:
      if constexpr (requires { op.count; }) return {&op.count, 1};
      break;
    case OpId::accumulate:
      if constexpr (requires { op.square_sums; }) return {&op.count, op.square_sums == nullptr ? 1 : 0};
      break;
    case OpId::square_sum:
      if constexpr (requires { op.segment_count; })
        return {&op.count, op.segment_count == 0 ? static_cast<std::int64_t>(core::block_elements) : 0};
      break;
    case OpId::layernorm_forward:
    case OpId::rmsnorm_forward:
    case OpId::swiglu_forward:
    case OpId::swiglu_backward:
    case OpId::cross_entropy:
    case OpId::cross_entropy_slice:
    case OpId::cross_entropy_gradient:
    case OpId::tree_sum:
    case OpId::residual_layernorm:
    case OpId::residual_rmsnorm:
    case OpId::copy_rows:
      if constexpr (requires { op.rows; }) return {&op.rows, 1};
      break;
    case OpId::rotary:
      if constexpr (
          requires { op.sequence_length; } && requires { op.rows; })
        return {&op.rows, op.sequence_length};
      break;
    case OpId::embedding_forward:
      if constexpr (requires { op.positions; })
        return {&op.rows, op.positions == nullptr ? 1 : op.sequence_length};
      break;
    case OpId::attention_forward:
    case OpId::attention_backward:
      if constexpr (requires { op.batch; }) return {&op.batch, 1};
      break;
    default:
      break;
  }
  return {};
}

// Returns the two parts of a call, or nothing where it is one piece.
template <typename Op>
std::optional<std::pair<Op, Op>> cut_in_two(const Op& op) {
  Op first = op, second = op;
  const CutSize cut = cut_size(first);
  if (cut.step <= 0) return std::nullopt;
  const std::int64_t whole = *cut.size;
  const std::int64_t place = std::max<std::int64_t>(whole / cut.step / 3, 1) * cut.step;
  if (place >= whole) return std::nullopt;
  *cut.size = place;
  *cut_size(second).size = whole - place;

  std::vector<std::int64_t> extents;
  Op::visit_operands(op, [&](const auto&, const Operand& operand) { extents.push_back(operand.extent); });
  std::vector<std::int64_t> offsets;  // bytes of the first part of each operand
  Op::visit_operands(first, [&](const auto&, const Operand& operand) {
    const std::int64_t elements = operand.has_gaps() ? operand.rows * operand.row_stride : operand.extent;
    offsets.push_back(operand.extent == extents[offsets.size()] ? 0 : elements * operand.element_bytes);
  });
  std::size_t at = 0;
  Op::visit_operands(second, [&](auto& pointer, const Operand&) {
    const std::int64_t offset = offsets[at++];
    if (pointer == nullptr) return;
    const auto* const bytes = reinterpret_cast<const std::byte*>(pointer) + offset;
    pointer = reinterpret_cast<std::remove_reference_t<decltype(pointer)>>(const_cast<std::byte*>(bytes));
  });
  return std::pair(first, second);
}

}  // namespace holdfast::bench::kernel_kit
