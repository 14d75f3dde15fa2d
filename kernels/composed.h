// Composed ops: an op that is others in turn. Its contract says which, and with which arguments; what is between them is an
// operand of it, as stored as between them:
//
//   static constexpr std::array decomposes = {OpId::tree_sum, OpId::rmsnorm_forward};
//   static void visit_parts(const ResidualRmsNorm& op, auto&& visit) { visit(sum_of(op)); visit(norm_of(op)); }
//
// Its reference is that of its parts, and so is a kernel of each device that calls theirs. The model launches it where the
// config names an implementation of it (ModelSpec::composed), and its parts elsewhere.
#pragma once

#include <span>
#include <string>

#include "kernels/op.h"

namespace holdfast::kernels {

template <typename Op>
concept ComposedOp = requires {
  Op::decomposes;
};

// Computes the references of the parts, one after the other.
template <ComposedOp Op>
void reference(const Op& op) {
  Op::visit_parts(op, [](const auto& part) { reference(part); });
}

// Returns the ops that an op is in turn; none: it is not composed.
std::span<const OpId> parts_of(OpId id);
// Returns "tree_sum and rmsnorm_forward".
std::string parts_text(OpId id);

}  // namespace holdfast::kernels
