#include "runtime/measure/op_text.h"

#include <fmt/core.h>

#include "kernels/visit_op.h"

namespace holdfast::measure {
namespace {

template <typename Op>
std::string types_text(const Op& op) {
  if constexpr (requires { op.dtype_c; }) {
    if (op.dtype != op.dtype_c) return fmt::format(" {}->{}", name_of(op.dtype), name_of(op.dtype_c));
  }
  if constexpr (requires { op.dtype; })
    return op.dtype == DType::fp32 ? "" : fmt::format(" {}", name_of(op.dtype));
  return "";
}

template <typename Value>
std::string value_text(std::string_view name, Value value) {
  if constexpr (std::is_pointer_v<Value>)
    return value != nullptr ? fmt::format(" {}", name) : "";
  else if constexpr (!std::is_same_v<Value, bool>)
    return fmt::format("{}", value);
  else if (name.starts_with("transpose"))
    return value ? "T" : "N";
  else
    return value ? fmt::format(" {}", name) : "";
}

// Returns what stands for a name in braces of Op::shape: a size, " bias" for an option that is taken, T or N.
template <typename Op>
std::string part_text(const Op& op, std::string_view name) {
  std::string text;
  if constexpr (requires { op.tensors; }) {
    std::int64_t count = 0;
    for (std::int64_t i = 0; i < op.tensor_count; ++i) count += op.tensors[i].count;
    if (name == "count") return fmt::format("{}", count);
  }
  if constexpr (requires { op.token_count; }) {
    if (name == "tokens") return op.token_count > 0 ? fmt::format(" of {} tokens", op.token_count) : "";
  }
  if constexpr (requires { op.first_position; }) {
    if (name == "cache")
      return op.cache != nullptr ? fmt::format(" after {} in a cache", op.first_position) : "";
  }
  if constexpr (requires { op.window; }) {
    const std::string sinks = op.sinks > 0 ? fmt::format(" and {} sinks", op.sinks) : "";
    if (name == "window") return op.window > 0 ? fmt::format(" in a window of {}{}", op.window, sinks) : "";
  }
  bool found = false;
  visit_shape(op, [&](std::string_view each, const auto& value) {
    if constexpr (!std::is_same_v<std::remove_cvref_t<decltype(value)>, DType>) {
      if (each != name) return;
      text = value_text(each, value);
      found = true;
    }
  });
  HF_CHECK(found, "the shape of {} has no {}", name_of(Op::id), name);
  return text;
}

}  // namespace

std::string shape_text(OpId id, const void* arguments) {
  return visit_op(id, arguments, []<typename Op>(const Op& op) {
    std::string text;
    for (std::string_view rest = Op::shape; !rest.empty();) {
      const std::size_t open = rest.find('{'), close = rest.find('}');
      text += rest.substr(0, open);
      if (open == std::string_view::npos) break;
      text += part_text(op, rest.substr(open + 1, close - open - 1));
      rest.remove_prefix(close + 1);
    }
    return text + types_text(op);
  });
}

}  // namespace holdfast::measure
