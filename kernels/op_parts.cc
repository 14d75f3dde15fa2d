#include "kernels/composed.h"

#include <array>
#include <cstddef>

#include "kernels/visit_op.h"

namespace holdfast::kernels {

std::span<const OpId> parts_of(OpId id) {
  alignas(16) static constexpr std::array<std::byte, op_bytes_max> nothing = {};
  return visit_op(id, nothing.data(), []<typename Op>(const Op&) -> std::span<const OpId> {
    if constexpr (ComposedOp<Op>) return Op::decomposes;
    return {};
  });
}

std::string parts_text(OpId id) {
  std::string text;
  for (const OpId part : parts_of(id)) text += (text.empty() ? "" : " and ") + std::string(name_of(part));
  return text;
}

}  // namespace holdfast::kernels
