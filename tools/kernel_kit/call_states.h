// Visits the states of a call that its contract allows: every flag set and not, every array that may be left out given
// and not. Models make few of them, and a kernel that is right for those may be wrong for the others.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string_view>
#include <type_traits>
#include <vector>

#include "kernels/op_fields.h"
#include "kernels/operand.h"
#include "runtime/measure/op_memory.h"

namespace holdfast::bench::kernel_kit {

// Returns whether the contract has a meaning for these flags and arrays together.
template <typename Op>
bool is_allowed(const Op& op) {
  if constexpr (requires { op.gelu_of; }) {
    if (op.accumulate && (op.dtype_c != DType::fp32 || op.residual != nullptr)) return false;
    return op.gelu_of == nullptr || (!op.accumulate && op.bias == nullptr && op.residual == nullptr);
  }
  if constexpr (requires { op.dresidual_sum; }) return op.dresidual_sum == nullptr || op.dresidual != nullptr;
  if constexpr (requires { op.cache; })
    return op.cache == nullptr ? op.first_position == 0 : op.first_key == nullptr;
  if constexpr (requires { op.square_sums; }) return op.digests == nullptr || op.square_sums != nullptr;
  if constexpr (requires { op.gradient_digests; })
    return op.block_digests != nullptr || (!op.checks_digests && op.gradient_digests == nullptr);
  return true;
}

// CallOptions are the switches of one call.
template <typename Op>
class CallOptions {
 public:
  explicit CallOptions(Op& op) : op_(op) {
    visit_fields(op, [this]<typename Value>(std::string_view name, const Value& value) {
      auto& field = const_cast<std::remove_const_t<Value>&>(value);  // of op, which may change
      if constexpr (std::is_same_v<Value, bool>) {
        if (!name.starts_with("transpose")) switches_.push_back([&field](bool on) { field = on; });
      }
      if constexpr (std::is_same_v<Value, DType>) {
        if (name == "moments")
          switches_.push_back([&field](bool on) { field = on ? DType::bf16 : DType::fp32; });
      }
      if constexpr (std::is_same_v<Value, float> && Op::id == OpId::cross_entropy) {
        constexpr float scale = 0.25F;
        switches_.push_back([&field](bool on) { field = on ? scale : 0.0F; });
      }
    });
    Op::visit_operands(op, [this](auto& pointer, const Operand& operand) {
      if (operand.optional) add(pointer);
    });
  }
  std::size_t size() const { return switches_.size(); }
  // Sets each switch to one bit.
  void set(std::size_t bits) {
    for (std::size_t i = 0; i < switches_.size(); ++i) switches_[i]((bits >> i & 1) != 0);
    // An update tells what it found only where it compares.
    if constexpr (requires { op_.damage; })
      op_.damage = op_.checks_digests ? static_cast<StateDamage*>(place(1)) : nullptr;
    if constexpr (requires { op_.gradient_damage; }) {
      op_.gradient_damage = op_.gradient_digests != nullptr ? static_cast<StateDamage*>(place(2)) : nullptr;
    }
  }

 private:
  template <typename Pointer>
  void add(Pointer& pointer) {
    const Pointer given = pointer != nullptr ? pointer : static_cast<Pointer>(place(3 + size()));
    switches_.push_back([&pointer, given](bool on) { pointer = on ? given : nullptr; });
  }

  // Returns an address that stands for memory, as those of samples do.
  static void* place(std::size_t index) {
    static constexpr std::byte places[32] = {};
    return const_cast<std::byte*>(places + index);
  }

  Op& op_;
  std::vector<std::function<void(bool)>> switches_;
};

// Calls visit(op) with each state of a call.
template <typename Op>
void visit_states(const Op& base, auto&& visit) {
  Op op = base;
  CallOptions options(op);
  for (std::size_t bits = 0; bits < std::size_t{1} << options.size(); ++bits) {
    options.set(bits);
    if (is_allowed(op)) visit(static_cast<const Op&>(op));
  }
}

// Lists over several tensors that ops by block take: of one block, of several, of a part of one.
struct CallLists {
  std::vector<OptimizerTensor> tensors;
  std::vector<BlockSegment> segments;
  std::int64_t elements = 0, blocks = 0;
};

// Returns lists whose second tensor has so many elements. `moment_count`: of a weight, by the rule of the update.
inline std::shared_ptr<const CallLists> make_lists(std::int64_t elements, bool with_frozen,
                                                   int moment_count = 2) {
  static constexpr std::byte places[24] = {};
  constexpr std::int64_t gap = 16, one_and_a_bit = static_cast<std::int64_t>(core::block_elements) + 1;
  auto lists = std::make_shared<CallLists>();
  for (const std::int64_t count : {std::int64_t{5}, elements, one_and_a_bit}) {
    const std::size_t index = lists->tensors.size();
    auto* const place = const_cast<std::byte*>(places + 8 * index);
    const bool is_kept = index != 1;
    const bool is_frozen = with_frozen && index == 1, has_average = index > 0 && !is_frozen;
    lists->tensors.push_back(
        {.weight = nullptr,
         .moment1 = is_frozen ? nullptr : place,
         .moment2 = is_frozen || moment_count < 2 ? nullptr : place + 1,
         .ema = has_average ? reinterpret_cast<float*>(place + 6) : nullptr,
         .copy = index == 1 ? nullptr : reinterpret_cast<BFloat16*>(place + 2),
         .kept_weight = is_kept ? reinterpret_cast<float*>(place + 3) : nullptr,
         .kept_moment1 = is_kept ? place + 4 : nullptr,
         .kept_moment2 = is_kept && moment_count > 1 ? place + 5 : nullptr,
         .kept_ema = has_average && is_kept ? reinterpret_cast<float*>(place + 7) : nullptr,
         .count = count,
         .first_block = lists->blocks,
         .weight_decay = index == 1 ? 0.0F : 0.1F,
         .rounding_block = 7 * index});
    lists->segments.push_back({.first = lists->elements, .count = count, .first_block = lists->blocks});
    lists->blocks += core::blocks_of(count);
    lists->elements += count + gap;
  }
  lists->elements -= gap;
  return lists;
}

}  // namespace holdfast::bench::kernel_kit
