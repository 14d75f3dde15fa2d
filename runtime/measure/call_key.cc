#include "runtime/measure/call_key.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <span>
#include <string_view>
#include <type_traits>
#include <vector>

#include "kernels/op_fields.h"
#include "runtime/measure/op_text.h"

namespace holdfast::measure {
namespace {

// Numbers of a place among others, or of a moment.
constexpr std::string_view placed[] = {"first_token", "first_index", "first_block", "rounding_block",
                                       "rounding_key"};

// Part is one field of a call, or one array of it.
struct Part {
  std::string name = {}, value = {};
  bool is_size = false;
  bool is_usual = true;  // says nothing to people
};

template <typename Value>
Part part_of(std::string_view name, const Value& value) {
  Part part{.name = std::string(name)};
  if constexpr (std::is_floating_point_v<Value>) {
    const bool is_zero = !(value < 0) && !(value > 0);
    part.value = is_zero ? "0" : "x";
    part.is_usual = name != "gradient_scale" || !is_zero;
  } else if constexpr (std::is_same_v<Value, DType>) {
    part.value = name_of(value);
    part.is_usual = name != "moments" || value == DType::fp32;
  } else if constexpr (std::is_same_v<Value, bool>) {
    part.value = value ? "1" : "0";
    part.is_usual = !value;
  } else if constexpr (std::is_integral_v<Value>) {
    const bool is_placed = std::ranges::find(placed, name) != std::end(placed);
    part.value = is_placed ? (value == 0 ? "0" : "x") : fmt::format("{}", value);
    part.is_size = !is_placed;
    part.is_usual = name != "segment_count" || value == 0;
  }
  return part;
}

// CallParts are all parts of a call, in the order of its struct, arrays last.
class CallParts {
 public:
  template <typename Op>
  explicit CallParts(const Op& op) {
    add_fields(op);
    Op::visit_operands(
        op, [this](const auto& pointer, const Operand& operand) { add_operand(pointer, operand); });
    if constexpr (requires { op.tensors; }) {
      for (const OptimizerTensor& tensor : std::span(op.tensors, static_cast<std::size_t>(op.tensor_count))) {
        visit_fields(tensor, [this](std::string_view name, const auto& value) { add_number(name, value); });
        Op::visit_tensor(op, tensor, [this](const auto& pointer, const Operand& operand) {
          add_operand(pointer, operand);
        });
      }
    }
    if constexpr (requires { op.segments; }) {
      for (const BlockSegment& segment : std::span(op.segments, static_cast<std::size_t>(op.segment_count)))
        visit_fields(segment, [this](std::string_view name, const auto& value) { add_number(name, value); });
    }
  }
  const std::vector<Part>& parts() const { return parts_; }

 private:
  template <typename Value>
  void add_number(std::string_view name, const Value& value) {
    if constexpr (!std::is_pointer_v<Value> && !std::is_array_v<Value>)
      parts_.push_back(part_of(name, value));
  }
  // Pointers that are no arrays of the op, such as the place of a result on the host, count here.
  template <typename Op>
  void add_fields(const Op& op) {
    std::vector<std::string_view> arrays = {"tensors", "segments"};
    Op::visit_operands(op, [&](const auto&, const Operand& operand) { arrays.emplace_back(operand.name); });
    visit_fields(op, [&]<typename Value>(std::string_view name, const Value& value) {
      if constexpr (std::is_pointer_v<Value>) {
        if (std::ranges::find(arrays, name) == arrays.end())
          parts_.push_back({.name = std::string(name), .value = value == nullptr ? "null" : "given"});
      } else {
        add_number(name, value);
      }
    });
  }
  // An array that an op must have is memory of its own where its pointer is null: see OpMemory.
  void add_operand(const void* pointer, const Operand& operand) {
    Part part{.name = operand.name, .value = "own"};
    if (pointer == nullptr) {
      if (operand.optional) part.value = "null";
    } else {
      const auto [found, is_first] = names_.try_emplace(pointer, operand.name);
      if (!is_first) part.value = found->second;
      part.is_usual = is_first && !operand.optional;
    }
    parts_.push_back(std::move(part));
  }

  std::vector<Part> parts_;
  std::map<const void*, std::string> names_;  // of the first array in some memory
};

CallParts parts_of(OpId id, const void* arguments) {
  return visit_op(id, arguments, [](const auto& op) { return CallParts(op); });
}

std::string_view shape_of(OpId id, const void* arguments) {
  return visit_op(id, arguments, []<typename Op>(const Op&) { return std::string_view(Op::shape); });
}

bool is_taken(const Part& option) {
  return option.value == "own" || option.value == "1";
}

// Returns what people are told of a part besides the shape.
std::string option_text(const Part& part) {
  if (part.name == "segment_count")
    return fmt::format("{} segment{}", part.value, part.value == "1" ? "" : "s");
  return is_taken(part) ? part.name : fmt::format("{}={}", part.name, part.value);
}

}  // namespace

CallKey call_key(OpId id, const void* arguments) {
  CallKey key{.id = id};
  const CallParts call = parts_of(id, arguments);
  for (const Part& part : call.parts()) {
    std::string& text = part.is_size ? key.sizes : key.state;
    text += fmt::format("{}{}={}", text.empty() ? "" : " ", part.name, part.value);
  }
  return key;
}

std::string call_text(OpId id, const void* arguments) {
  const CallParts call = parts_of(id, arguments);
  const std::string_view shape = shape_of(id, arguments);
  std::string text = shape_text(id, arguments);
  std::vector<std::string> options;
  for (const Part& part : call.parts()) {
    const bool is_in_shape =
        is_taken(part) && shape.find(fmt::format("{{{}}}", part.name)) != std::string_view::npos;
    if (part.is_usual || is_in_shape) continue;
    std::string option = option_text(part);
    if (part.name == "first_key") {
      text += " in documents";
    } else if (std::ranges::find(options, option) == options.end()) {
      options.push_back(std::move(option));
    }
  }
  return options.empty() ? text : fmt::format("{}, {}", text, fmt::join(options, ", "));
}

}  // namespace holdfast::measure
